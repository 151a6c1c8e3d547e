//! Named pre-tokenizers: how a byte-level BPE vocabulary's text is cut into words before merging.
//!
//! The expressions are those that the models publish in their tokenizer.json, under the names that GGUF files use for
//! them. Words never depend on backtracking: the only look-ahead the published expressions use, `\s+(?!\S)` ("spaces,
//! but leave the last one to the word that follows"), is a rule applied after a match ([`Tail`]), so that the `regex`
//! crate's linear-time engine can run everything, however hostile the text.
//!
//! It knows nothing of vocabularies or merges.

use std::ops::Range;

use regex::Regex;

/// What happens to a match that is white space alone, stands before something else and is longer than one character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// It stays whole.
    Keep,
    /// Its last character is given back to the word that follows.
    GiveBack,
    /// The same, unless it ends in a line break: then another branch of the expression matched.
    GiveBackInLine,
}

/// One cut: matches become pieces of their own, and so does what lies between them. Steps apply in turn, each within
/// the pieces of the step before.
enum Step {
    Split(&'static str, Tail),
    /// Runs of digits at a word's end are cut out, in groups of three counted from the right:
    /// `\d{1,3}(?=(?:\d{3})*\b)`.
    DigitGroups,
}

/// A row of the table.
struct Named {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    steps: &'static [Step],
    /// A word that is a token as it stands is that token, whatever the merges say.
    ignore_merges: bool,
    /// The beginning token is prepended unless the file says otherwise.
    add_bos: bool,
}

const fn row(names: &'static [&'static str], steps: &'static [Step]) -> Named {
    Named { names, steps, ignore_merges: false, add_bos: false }
}

use Step::{DigitGroups, Split};
use Tail::{GiveBack, GiveBackInLine, Keep};

macro_rules! contractions {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}
/// Words with at most one leading mark, then numbers, then marks with their line breaks, then white space.
macro_rules! words {
    ($numbers:literal) => {
        concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        )
    };
}
/// Words cut where a lower-case letter meets an upper-case one.
macro_rules! cased_words {
    ($contractions:expr, $numbers:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $contractions,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $contractions,
            "|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )
    };
}

const GPT2: Step = Split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", GiveBack);
const LLAMA3: Step = Split(words!(r"\p{N}{1,3}"), GiveBackInLine);
const QWEN2: Step = Split(words!(r"\p{N}"), GiveBackInLine);
const ONE_NUMBER: Step = Split(r"\p{N}", Keep);
const THREE_NUMBERS: Step = Split(r"\p{N}{1,3}", Keep);
const THREE_DIGITS: Step = Split(r"[0-9][0-9][0-9]", Keep);
/// Japanese and Chinese without spaces between words.
const IDEOGRAPHS: Step = Split(r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+", Keep);
const DEEPSEEK_CJK: Step = Split(r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+", Keep);
const DEEPSEEK3_WORDS: Step = Split(
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"
    ),
    GiveBackInLine,
);
const BLOOM: Step = Split(r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+", Keep);
/// The letters of alphabets with case, as DeepSeek LLM lists them.
const DEEPSEEK_LETTERS: Step = Split(
    concat!(
        r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}",
        r"\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}",
        r"\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}",
        r"\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}",
        r"\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}",
        r"\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}",
        r"\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}",
        r"\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}",
        r"\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}",
        r"\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}",
        r"\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
        r"\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}",
        r"\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}",
        r"\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}",
        r"\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}",
        r"\u{1E900}-\u{1E943}]+"
    ),
    Keep,
);
const DEEPSEEK_MARKS: Step =
    Split(r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+", Keep);
static TABLE: &[Named] = &[
    row(&["default"], &[Split(r"[\p{P}$+<=>\^~|]+", Keep), GPT2, Split(r"\p{N}+", Keep), THREE_DIGITS]),
    row(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
            "a.x-4.0",
            "modern-bert",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
        ],
        &[GPT2],
    ),
    row(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[ONE_NUMBER, GPT2],
    ),
    Named {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        steps: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    row(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    Named { names: &["glm4", "glm5"], steps: &[LLAMA3], ignore_merges: true, add_bos: false },
    Named {
        names: &["minicpm5"],
        steps: &[THREE_NUMBERS, Split(words!(r"\p{N}+"), GiveBackInLine)],
        ignore_merges: true,
        add_bos: false,
    },
    row(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    row(
        &["qwen35"],
        &[Split(
            concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
            ),
            GiveBackInLine,
        )],
    ),
    row(
        &["ufakzeka"],
        &[Split(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+", GiveBackInLine)],
    ),
    row(&["laguna"], &[Split(r"\n+", Keep), QWEN2]),
    row(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[Split(
            concat!(
                r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+"
            ),
            GiveBackInLine,
        )],
    ),
    row(
        &["seed-coder"],
        &[Split(
            concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+"
            ),
            GiveBackInLine,
        )],
    ),
    row(
        &["exaone-moe"],
        &[Split(
            concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+"
            ),
            GiveBackInLine,
        )],
    ),
    row(&["falcon"], &[Split(r"[\p{P}$+<=>\^~|`]+", Keep), GPT2, THREE_DIGITS]),
    row(
        &["deepseek-llm"],
        &[
            Split(r"[\r\n]", Keep),
            DEEPSEEK_LETTERS,
            DEEPSEEK_MARKS,
            Split(r"\s+$", Keep),
            DEEPSEEK_CJK,
            Split(r"\p{N}+", Keep),
        ],
    ),
    row(
        &["deepseek-coder"],
        &[
            Split(r"[\r\n]", Keep),
            Split(r"\s?\p{L}+", Keep),
            Split(r"\s?\p{P}+", Keep),
            DEEPSEEK_CJK,
            ONE_NUMBER,
        ],
    ),
    row(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[THREE_NUMBERS, IDEOGRAPHS, DEEPSEEK3_WORDS],
    ),
    Named {
        names: &["tekken"],
        steps: &[Split(cased_words!("", r"\p{N}"), GiveBackInLine)],
        ignore_merges: true,
        add_bos: true,
    },
    row(
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        &[Split(cased_words!(concat!(contractions!(), "?"), r"\p{N}{1,3}"), GiveBackInLine)],
    ),
    row(
        &["tiny_aya", "cohere2moe"],
        &[DigitGroups, Split(cased_words!(concat!(contractions!(), "?"), r"\p{N}{1,3}"), GiveBackInLine)],
    ),
    row(&["bloom", "gpt3-finnish", "poro-chat"], &[BLOOM]),
    row(&["viking"], &[BLOOM, ONE_NUMBER]),
];

/// A pre-tokenizer, compiled.
pub(super) struct PreTokenizer {
    steps: Vec<Compiled>,
    pub(super) ignore_merges: bool,
}

enum Compiled {
    Split(Box<Regex>, Tail),
    Groups(Box<Regex>),
}

/// All names, for messages.
pub(super) fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = TABLE.iter().flat_map(|row| row.names).copied().collect();
    names.sort_unstable();
    names
}

/// True if `name` is in the table.
pub(super) fn known(name: &str) -> bool {
    TABLE.iter().any(|row| row.names.contains(&name))
}

/// True if vocabularies of that name have the beginning token added unless the file says otherwise.
pub(super) fn adds_bos(name: &str) -> bool {
    TABLE.iter().any(|row| row.add_bos && row.names.contains(&name))
}

impl PreTokenizer {
    /// The pre-tokenizer of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let row = TABLE.iter().find(|row| row.names.contains(&name))?;
        let compile = |pattern| Regex::new(pattern).map(Box::new).ok();
        let steps = row
            .steps
            .iter()
            .map(|step| match step {
                Split(pattern, tail) => compile(*pattern).map(|regex| Compiled::Split(regex, *tail)),
                DigitGroups => compile(r"\d+\b").map(Compiled::Groups),
            })
            .collect::<Option<Vec<_>>>()?;
        Some(PreTokenizer { steps, ignore_merges: row.ignore_merges })
    }

    /// Byte ranges of the words of `text`, in order and without gaps.
    pub(super) fn words(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(0..text.len());
        }
        for step in &self.steps {
            let mut cut = Vec::with_capacity(pieces.len() * 4);
            for piece in pieces {
                step.cut(text, piece, &mut cut);
            }
            pieces = cut;
        }
        pieces
    }
}

impl Compiled {
    /// Cuts one piece, appending its parts.
    fn cut(&self, text: &str, piece: Range<usize>, out: &mut Vec<Range<usize>>) {
        let part = &text[piece.clone()];
        let mut done = 0;
        let mut push = |range: Range<usize>| {
            if !range.is_empty() {
                out.push(piece.start + range.start..piece.start + range.end);
            }
        };
        match self {
            Compiled::Split(regex, tail) => {
                while let Some(found) = regex.find_at(part, done) {
                    let end = found.start() + kept(found.as_str(), found.end() == part.len(), *tail);
                    push(done..found.start());
                    push(found.start()..end);
                    done = end;
                }
            }
            Compiled::Groups(regex) => {
                for found in regex.find_iter(part) {
                    push(done..found.start());
                    done = found.start();
                    let count = found.as_str().chars().count();
                    for (i, (at, c)) in found.as_str().char_indices().enumerate() {
                        if (count - 1 - i).is_multiple_of(3) {
                            let end = found.start() + at + c.len_utf8();
                            push(done..end);
                            done = end;
                        }
                    }
                }
            }
        }
        push(done..part.len());
    }
}

/// How many bytes of a match stay in it.
fn kept(found: &str, at_end: bool, tail: Tail) -> usize {
    let len = found.len();
    if tail == Tail::Keep || at_end || !found.chars().all(char::is_whitespace) {
        return len;
    }
    match found.chars().next_back() {
        Some('\r' | '\n') if tail == Tail::GiveBackInLine => len,
        Some(last) if last.len_utf8() < len => len - last.len_utf8(),
        _ => len,
    }
}
