//! The flags of the KV cache, for every command that loads a model.

use tensor::kv::{DEFAULT_SINKS, DEFAULT_WINDOW, KvSettings, MOST_SINKS};

use crate::failure::usage;

/// How keys and values are stored.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct KvFlags {
    /// How keys and values are stored: f16, q8, q6, q5, q4, q3 or q2 for both, or apart as KEYS/VALUES [default: f16]
    #[arg(long, value_name = "FORMAT", help_heading = "KV cache")]
    pub(crate) kv: Option<KvSettings>,
    /// Positions before a token that it sees unpacked, at least [default: 128, or the context]
    #[arg(long, value_name = "N", help_heading = "KV cache")]
    pub(crate) kv_window: Option<usize>,
    /// First positions that stay unpacked, at most 32 [default: 4 with codes of at most 4 bits, else 0]
    #[arg(long, value_name = "N", help_heading = "KV cache")]
    pub(crate) kv_sinks: Option<usize>,
    /// What is rotated before it is packed [default: keys, with codes of at most 4 bits]
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "KV cache")]
    pub(crate) kv_rotate: Option<Rotated>,
}

/// What is rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Rotated {
    None,
    Keys,
    Values,
    Both,
}

impl KvFlags {
    /// The settings for a context.
    pub(crate) fn settings(&self, context: usize) -> anyhow::Result<KvSettings> {
        let kv = self.kv.unwrap_or_default();
        if kv.is_f16()
            && let Some(flag) = [
                self.kv_window.map(|_| "--kv-window"),
                self.kv_sinks.map(|_| "--kv-sinks"),
                self.kv_rotate.map(|_| "--kv-rotate"),
            ]
            .into_iter()
            .flatten()
            .next()
        {
            return Err(usage(format!("{flag} needs a packed format: --kv")));
        }
        let window = match self.kv_window {
            Some(n) if n > context => {
                return Err(usage(format!(
                    "--kv-window: expected at most the context, {context}, found {n}"
                )));
            }
            Some(n) => n,
            None => DEFAULT_WINDOW.min(context),
        };
        let sinks = self.kv_sinks.unwrap_or(kv.sinks);
        if sinks > MOST_SINKS {
            return Err(usage(format!("--kv-sinks: expected at most {MOST_SINKS}, found {sinks}")));
        }
        let (rotate_keys, rotate_values) = match self.kv_rotate {
            None => (kv.rotate_keys, kv.rotate_values),
            Some(r) => {
                (matches!(r, Rotated::Keys | Rotated::Both), matches!(r, Rotated::Values | Rotated::Both))
            }
        };
        Ok(KvSettings { window, sinks, rotate_keys, rotate_values, ..kv })
    }

    /// Flags from settings such as `kv=q4`, `kv-window=64`, of which `get` gives the text.
    pub(crate) fn from_settings(get: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<KvFlags> {
        let wrong = |key: &str, text: &str, e: String| usage(format!("{key}={text}: {e}"));
        let number = |key: &str| {
            get(key)
                .map(|t| t.parse().map_err(|_| wrong(key, &t, "expected a whole number".into())))
                .transpose()
        };
        let kv = get("kv").map(|t| t.parse().map_err(|e: tensor::Error| wrong("kv", &t, e.to_string())));
        let rotate = get("kv-rotate").map(|t| {
            <Rotated as clap::ValueEnum>::from_str(&t, false).map_err(|e| wrong("kv-rotate", &t, e))
        });
        Ok(KvFlags {
            kv: kv.transpose()?,
            kv_window: number("kv-window")?,
            kv_sinks: number("kv-sinks")?,
            kv_rotate: rotate.transpose()?,
        })
    }
}

const _: () = assert!(DEFAULT_WINDOW == 128 && DEFAULT_SINKS == 4 && MOST_SINKS == 32, "as the help says");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_settings_or_an_error_with_the_numbers() {
        let flags = |kv: &str| KvFlags { kv: Some(kv.parse().unwrap()), ..KvFlags::default() };
        assert_eq!(
            KvFlags::default().settings(100).unwrap(),
            KvSettings { window: 100, ..KvSettings::default() }
        );
        let q4 = flags("q4").settings(4096).unwrap();
        assert_eq!((q4.window, q4.sinks, q4.rotate_keys, q4.rotate_values), (128, 4, true, false));
        let q8 = flags("q8").settings(64).unwrap();
        assert_eq!((q8.window, q8.sinks, q8.rotate_keys), (64, 0, false));
        let both = KvFlags { kv_rotate: Some(Rotated::Both), kv_window: Some(0), ..flags("q2/q8") };
        let both = both.settings(4096).unwrap();
        assert_eq!((both.window, both.rotate_keys, both.rotate_values), (0, true, true));
        for (wrong, says) in [
            (KvFlags { kv_window: Some(5000), ..flags("q4") }, "4096, found 5000"),
            (KvFlags { kv_sinks: Some(33), ..flags("q4") }, "at most 32, found 33"),
            (KvFlags { kv_sinks: Some(4), ..flags("f16") }, "--kv-sinks needs"),
        ] {
            let e = wrong.settings(4096).unwrap_err().to_string();
            assert!(e.contains(says), "{e}");
        }
    }
}
