//! Rust source with everything that is not code blanked: comments, strings, character literals. Lines stay in place.

/// `source` with the inside of comments and literals replaced by spaces (newlines kept).
pub(crate) fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !follows_word(bytes, at) => match raw_string_end(bytes, at) {
                Some(end) => end,
                None => at + 1,
            },
            b'\'' => char_end(bytes, at),
            _ => at + 1,
        };
        if end > at + 1 {
            for byte in &mut out[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The lines (from 1) on which `word` stands as a whole word in `code`.
pub(crate) fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut lines = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let whole = line
            .match_indices(word)
            .any(|(at, _)| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word));
        if whole {
            lines.push(index + 1);
        }
    }
    lines
}

/// True if the `r` at `at` belongs to a longer word. In `br"…"` and `cr"…"` it does not: those are raw strings.
fn follows_word(bytes: &[u8], at: usize) -> bool {
    let is_word = |n: usize| {
        let before = at.checked_sub(n).map(|i| bytes[i]);
        before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let prefixed = at > 0 && matches!(bytes[at - 1], b'b' | b'c');
    if prefixed { is_word(2) } else { is_word(1) }
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| at + n)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"`, `r#"…"#` and so on; `None` if it is no raw string (a raw identifier, a name).
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let hashes = bytes[start + 1..].iter().take_while(|&&b| b == b'#').count();
    let open = start + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = &bytes[open + 1..];
    Some(
        body.windows(close.len())
            .position(|w| w == close)
            .map_or(bytes.len(), |n| open + 1 + n + close.len()),
    )
}

/// The end of a character literal; one past the quote if it is a lifetime.
fn char_end(bytes: &[u8], start: usize) -> usize {
    let rest = &bytes[start + 1..];
    if rest.first() == Some(&b'\\') {
        // The escaped character itself may be a quote.
        return rest.iter().skip(2).position(|&b| b == b'\'').map_or(start + 1, |n| start + 1 + 2 + n + 1);
    }
    // One character of up to four bytes, then a quote.
    match rest.iter().take(5).position(|&b| b == b'\'') {
        Some(n) if n > 0 && std::str::from_utf8(&rest[..n]).is_ok_and(|s| s.chars().count() == 1) => {
            start + n + 2
        }
        _ => start + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_comments_and_literals_and_keeps_code() {
        let blank = |s: &str| code_only(s).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(blank("a // unsafe\nb"), "a b");
        assert_eq!(blank("a /* x /* unsafe */ y */ b"), "a b");
        assert_eq!(blank("f(\"un\\\"safe\") + g"), "f( ) + g");
        assert_eq!(blank("f(r#\"unsafe \" \"#) + g"), "f( ) + g");
        assert_eq!(blank("f(br\"x\") + g"), "f(b ) + g");
        assert_eq!(blank("let r = for_r; r#type"), "let r = for_r; r#type");
        assert_eq!(blank("fn f<'a>(x: &'a str) { '\"'; '\\''; 'é' }"), "fn f<'a>(x: &'a str) { ; ; }");
    }

    #[test]
    fn an_unclosed_literal_ends_with_the_file() {
        for source in ["\"abc", "/* abc", "r#\"abc", "'", "'\\", "\"\\"] {
            assert_eq!(code_only(source).len(), source.len());
        }
    }

    #[test]
    fn finds_whole_words_only() {
        assert_eq!(lines_with_word("unsafe_code\nunsafe {\nnot_unsafe\n(unsafe)", "unsafe"), [2, 4]);
    }
}
