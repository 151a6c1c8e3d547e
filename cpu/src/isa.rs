//! Which kernel tables this CPU can run, and their names.

use tensor::{Error, Result};

/// A kernel table, named by its instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust; the reference for all others.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same with VNNI.
    Avx512Vnni,
}

impl Isa {
    /// Every table, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni];

    /// Its name, as `PLUMB_ISA` and the reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
        }
    }

    /// Whether this CPU can run the table.
    pub fn is_supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Isa::Portable => true,
            Isa::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                    && std::arch::is_x86_feature_detected!("f16c")
            }
            Isa::Avx512 => {
                Isa::Avx2.is_supported()
                    && std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
            }
            Isa::Avx512Vnni => {
                Isa::Avx512.is_supported() && std::arch::is_x86_feature_detected!("avx512vnni")
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Portable
        }
    }

    /// Every table this CPU can run, slowest first.
    pub fn supported() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|i| i.is_supported()).collect()
    }

    /// The fastest table this CPU can run.
    pub fn best() -> Isa {
        Isa::supported().pop().unwrap_or(Isa::Portable)
    }

    /// The table of a name such as `avx2`; `avx512` means the one with VNNI where the CPU has it, and
    /// `avx512-bw` the one without.
    ///
    /// # Errors
    /// An unknown name, or a table that this CPU cannot run.
    pub fn from_name(name: &str) -> Result<Isa> {
        let isa = match name {
            "portable" => Isa::Portable,
            "avx2" => Isa::Avx2,
            "avx512" if Isa::Avx512Vnni.is_supported() => Isa::Avx512Vnni,
            "avx512" | "avx512-bw" => Isa::Avx512,
            "avx512-vnni" => Isa::Avx512Vnni,
            "neon" => {
                return Err(Error::unsupported(
                    "the neon kernel table",
                    "it has not been built and tested yet; aarch64 uses the portable table",
                ));
            }
            other => {
                return Err(Error::malformed(
                    "instruction set",
                    "portable, avx2, avx512, avx512-bw, avx512-vnni or neon",
                    other,
                ));
            }
        };
        if isa.is_supported() {
            Ok(isa)
        } else {
            let have: Vec<_> = Isa::supported().iter().map(|i| i.name()).collect();
            Err(Error::unsupported(
                format!("the {} kernel table", isa.name()),
                format!("this CPU lacks the instructions; it runs {}", have.join(", ")),
            ))
        }
    }
}
