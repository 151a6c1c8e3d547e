//! From tokens' bytes to text that can be shown as it comes: characters are never split, and nothing of a stop string is
//! ever shown.
//!
//! It knows no tokenizer: it is fed bytes and text.

/// Turns the bytes of one token after another into text. What has come out so far and [`finish`](Self::finish) together
/// are `String::from_utf8_lossy` of all bytes.
#[derive(Clone, Debug, Default)]
pub struct StreamDecoder {
    /// The beginning of a character.
    held: Vec<u8>,
    /// The next byte, if a space, is not part of the text.
    strip_space: bool,
}

impl StreamDecoder {
    /// A decoder for a text that continues another.
    pub fn new() -> Self {
        Self::default()
    }

    /// A decoder for a whole text of a tokenizer that [puts a space before](crate::tokenizer::Tokenizer::strips_first_space)
    /// every text: a first space is left out.
    pub fn stripping_first_space() -> Self {
        StreamDecoder { held: Vec::new(), strip_space: true }
    }

    /// Text that is complete once these bytes have come.
    pub fn push(&mut self, mut bytes: &[u8]) -> String {
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        while done < self.held.len() {
            match std::str::from_utf8(&self.held[done..]) {
                Ok(valid) => {
                    text.push_str(valid);
                    done = self.held.len();
                }
                Err(error) => {
                    let end = done + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.held[done..end]));
                    done = end;
                    match error.error_len() {
                        Some(len) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            done += len;
                        }
                        None => break,
                    }
                }
            }
        }
        self.held.drain(..done);
        text
    }

    /// What was held at the end: nothing, or U+FFFD for a character that never became complete.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// Ends a text where one of several strings first becomes complete; of several that end there, the longest counts. The
/// text shown ends before it. How the text is cut into chunks makes no difference.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The beginning of a stop string, perhaps.
    held: String,
    found: Option<usize>,
}

impl StopStrings {
    /// Empty strings are left out: they would stop everything.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        StopStrings { stops, held: String::new(), found: None }
    }

    /// The stop string that ended the text.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|i| self.stops[i].as_str())
    }

    /// Text that can be shown once this chunk has come. After a stop string nothing more comes.
    pub fn push(&mut self, chunk: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        let seen = self.held.len();
        self.held.push_str(chunk);
        for (at, c) in chunk.char_indices() {
            let end = seen + at + c.len_utf8();
            let ended =
                self.stops.iter().enumerate().filter(|(_, stop)| self.held[..end].ends_with(stop.as_str()));
            if let Some((i, stop)) = ended.max_by_key(|(_, stop)| stop.len()) {
                let start = end - stop.len();
                self.found = Some(i);
                let mut held = std::mem::take(&mut self.held);
                held.truncate(start);
                return held;
            }
        }
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let may_begin = |at: usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..]));
        let from = self.held.len().saturating_sub(longest);
        let keep =
            (from..self.held.len()).filter(|at| self.held.is_char_boundary(*at)).find(|at| may_begin(*at));
        let keep = keep.unwrap_or(self.held.len());
        let rest = self.held.split_off(keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held at the end, which turned out to be no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_does_not_depend_on_how_bytes_come(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..4),
                    prop::collection::vec(prop::sample::select(b"\xE2\x96\x81\xF0\x9F\x98\x80\xC3 a".to_vec()), 0..3),
                ],
                0..20,
            ),
        ) {
            let mut decoder = StreamDecoder::new();
            let mut text = String::new();
            for piece in &pieces {
                text.push_str(&decoder.push(piece));
            }
            text.push_str(&decoder.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&pieces.concat()).into_owned());
        }

        #[test]
        fn characters_come_whole_and_at_once(text in "\\PC{0,20}") {
            let mut decoder = StreamDecoder::new();
            for c in text.chars() {
                let mut buffer = [0; 4];
                let bytes = c.encode_utf8(&mut buffer).as_bytes();
                let (last, first) = bytes.split_last().unwrap();
                for byte in first {
                    prop_assert_eq!(decoder.push(&[*byte]), "");
                }
                prop_assert_eq!(decoder.push(&[*last]), c.to_string());
            }
            prop_assert_eq!(decoder.finish(), "");
        }

        #[test]
        fn stop_strings_stop_as_a_plain_search_does(
            chunks in prop::collection::vec("[abé\n]{0,5}", 0..12),
            stops in prop::collection::vec("[abé\n]{0,4}", 0..4),
        ) {
            let text = chunks.concat();
            // The plain search: over every prefix, from the shortest.
            let mut expected = (text.as_str(), None);
            'search: for (at, c) in text.char_indices() {
                let prefix = &text[..at + c.len_utf8()];
                let mut ends: Vec<_> = stops.iter().filter(|s| !s.is_empty() && prefix.ends_with(*s)).collect();
                ends.sort_by_key(|s| s.len());
                if let Some(stop) = ends.last() {
                    expected = (&prefix[..prefix.len() - stop.len()], Some(stop.as_str()));
                    break 'search;
                }
            }
            let mut stopper = StopStrings::new(stops.clone());
            let mut shown = String::new();
            for chunk in &chunks {
                shown.push_str(&stopper.push(chunk));
                // Nothing is ever shown that has to be taken back.
                prop_assert!(expected.0.starts_with(&shown), "{shown:?} shown of {:?}", expected.0);
            }
            let found = stopper.found().map(str::to_owned);
            shown.push_str(&stopper.finish());
            prop_assert_eq!((shown.as_str(), found.as_deref()), expected);
        }

        #[test]
        fn only_what_may_become_a_stop_string_is_held(chunk in "[ab]{0,8}", stop in "[ab]{1,4}") {
            let mut stopper = StopStrings::new([stop.clone()]);
            let shown = stopper.push(&chunk);
            if stopper.found().is_none() {
                prop_assert!(stop.starts_with(&chunk[shown.len()..]));
            }
        }
    }

    #[test]
    fn a_first_space_can_be_left_out_once() {
        let mut decoder = StreamDecoder::stripping_first_space();
        assert_eq!(decoder.push(b""), "");
        assert_eq!(decoder.push(b" a"), "a");
        assert_eq!(decoder.push(b" b"), " b");
    }
}
