//! What templates take for granted because Python is underneath: `json.dumps`, `strftime`, methods of texts.
//!
//! It knows no template.

use jiff::ZonedDateTime;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Python's methods on texts, lists and dictionaries.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Jinja's `iterable` test: not for `none`.
pub(super) fn is_iterable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
}

/// `strftime` of Python, at `now`.
pub(super) fn strftime(format: &str, now: &ZonedDateTime) -> Result<String, jiff::Error> {
    jiff::fmt::strtime::format(format, now)
}

/// How `json.dumps` lays out.
struct Layout {
    item: String,
    key: String,
    indent: Option<String>,
    ascii: bool,
    sort_keys: bool,
}

/// `json.dumps(value, ensure_ascii=False, …)`, the `tojson` of chat templates.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent.as_i64().unwrap_or(0)).unwrap_or(0).min(64)),
        }),
    };
    let separators: Option<(String, String)> = match kwargs.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            Some((pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()))
        }
        _ => None,
    };
    let (item, key) =
        separators.unwrap_or_else(|| (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()));
    let layout = Layout {
        item,
        key,
        indent,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    layout.write(value, 0, &mut out)?;
    Ok(out)
}

impl Layout {
    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                out.push('[');
                let mut empty = true;
                for item in value.try_iter()? {
                    if !std::mem::take(&mut empty) {
                        out.push_str(&self.item);
                    }
                    self.line(depth + 1, out);
                    self.write(&item, depth + 1, out)?;
                }
                if !empty {
                    self.line(depth, out);
                }
                out.push(']');
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    let name = match key.kind() {
                        ValueKind::None => "null".to_owned(),
                        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
                        ValueKind::Number => number(&key),
                        _ => key.to_string(),
                    };
                    entries.push((name, item));
                }
                if self.sort_keys {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                out.push('{');
                for (i, (name, item)) in entries.iter().enumerate() {
                    if i > 0 {
                        out.push_str(&self.item);
                    }
                    self.line(depth + 1, out);
                    self.text(name, out);
                    out.push_str(&self.key);
                    self.write(item, depth + 1, out)?;
                }
                if !entries.is_empty() {
                    self.line(depth, out);
                }
                out.push('}');
            }
            other => {
                let what = format!("tojson: a value of kind {other} has no JSON");
                return Err(Error::new(ErrorKind::BadSerialization, what));
            }
        }
        Ok(())
    }
}

/// A number as Python writes it: floats in the shortest form that reads back, exponents from 1e16 and below 1e-4.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(x) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if !x.is_finite() {
        let sign = if x < 0.0 { "-" } else { "" };
        return if x.is_nan() { "NaN".to_owned() } else { format!("{sign}Infinity") };
    }
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}
