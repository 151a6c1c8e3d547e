//! The printable alphabet in which byte-level vocabularies write raw bytes (published with GPT-2): one character per
//! byte, printable Latin-1 bytes as themselves, the other 68 as U+0100 onwards in byte order.
//!
//! It knows nothing of tokens.

/// True for the bytes that stand for themselves.
const fn printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const CHARS: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut shifted = 0;
    let mut byte = 0;
    while byte < 256 {
        table[byte] = if printable(byte as u8) {
            byte as u8 as char
        } else {
            shifted += 1;
            match char::from_u32(0x100 + shifted - 1) {
                Some(c) => c,
                None => panic!("U+0100.. are characters"),
            }
        };
        byte += 1;
    }
    table
};

/// Bytes of the characters U+0100 to U+0143, in order.
const SHIFTED: [u8; 68] = {
    let mut table = [0; 68];
    let (mut shifted, mut byte) = (0, 0);
    while byte < 256 {
        if !printable(byte as u8) {
            table[shifted] = byte as u8;
            shifted += 1;
        }
        byte += 1;
    }
    table
};

/// Writes `text`'s bytes in the alphabet, replacing what `out` held.
pub(super) fn to_alphabet(text: &str, out: &mut String) {
    out.clear();
    out.extend(text.bytes().map(|byte| CHARS[byte as usize]));
}

/// The bytes that a token written in the alphabet stands for; characters outside it stand for themselves.
pub(super) fn from_alphabet(token: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(token.len());
    for c in token.chars() {
        match c as u32 {
            code @ 0..=0xFF if printable(code as u8) => out.push(code as u8),
            code @ 0x100..=0x143 => out.push(SHIFTED[code as usize - 0x100]),
            _ => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_characters_of_the_alphabet() {
        // From the published table: space, newline, tab, delete, soft hyphen, 'A', 'ÿ'.
        for (byte, c) in [
            (b' ', 'Ġ'),
            (b'\n', 'Ċ'),
            (b'\t', 'ĉ'),
            (0x7F, 'ġ'),
            (0xAD, 'Ń'),
            (b'A', 'A'),
            (0xFF, 'ÿ'),
            (0, 'Ā'),
        ] {
            assert_eq!(CHARS[byte as usize], c);
        }
    }

    #[test]
    fn every_byte_comes_back() {
        for byte in 0..=255u8 {
            assert_eq!(from_alphabet(&CHARS[byte as usize].to_string()), [byte]);
        }
    }
}
