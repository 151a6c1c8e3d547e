//! Byte-pair merging: of all neighbours that the table can merge, the pair of the lowest rank first, of equals the
//! leftmost, until none is left.
//!
//! ```text
//! heap of (rank, position) over all neighbours
//! pop; if both still stand as they were pushed: merge, push the two new neighbours
//! ```
//!
//! The table is built from ids in two passes over the merges, without hashing or looking at a text: a start pays for it
//! before it can say anything. The `tokenizers` crate's own model is built from texts and takes 10 to 15 times as long
//! (smollm2 100 ms, qwen2.5 400 ms, gemma3 1300 ms of a busy machine's processor, against 6, 16 and 60 of the whole
//! tokenizer here); it also cannot give two merges one rank, which a vocabulary with scores needs (every split of a token has the token's).
//!
//! It knows ids only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A symbol that no merge knows: it parts its neighbours and gives no token.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Merge {
    right: u32,
    rank: u32,
    result: u32,
}

/// The merges by their left token.
pub(super) struct Merges {
    /// The merges of left token `i` are `entries[starts[i]..starts[i + 1]]`, in the order of their right token.
    starts: Vec<u32>,
    entries: Vec<Merge>,
}

impl Merges {
    /// `merges`: left, right and result, best first; each id below `tokens`. Neighbouring ones with the same result are
    /// equals. `usable` says which tokens may be merged at all; of a pair that comes twice the first counts.
    pub(super) fn new(merges: &[[u32; 3]], tokens: usize, usable: impl Fn(u32) -> bool) -> Self {
        let used = |merge: &[u32; 3]| merge.iter().all(|id| usable(*id));
        let mut starts = vec![0u32; tokens + 1];
        for [left, ..] in merges.iter().filter(|m| used(m)) {
            starts[*left as usize + 1] += 1;
        }
        for i in 0..tokens {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut entries = vec![Merge { right: 0, rank: 0, result: 0 }; starts[tokens] as usize];
        let (mut rank, mut last) = (0, NONE);
        for merge in merges.iter().filter(|m| used(m)) {
            let [left, right, result] = *merge;
            rank += u32::from(result != last);
            last = result;
            let at = &mut next[left as usize];
            entries[*at as usize] = Merge { right, rank, result };
            *at += 1;
        }
        for bounds in starts.windows(2) {
            // Stable, so that the first of equals is the one that is found.
            entries[bounds[0] as usize..bounds[1] as usize].sort_by_key(|merge| merge.right);
        }
        Merges { starts, entries }
    }

    /// Memory that the table takes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Merge>() * self.entries.capacity() + 4 * self.starts.capacity()
    }

    fn find(&self, left: u32, right: u32) -> Option<&Merge> {
        let bounds = self.starts.get(left as usize..left as usize + 2)?;
        let of_left = &self.entries[bounds[0] as usize..bounds[1] as usize];
        let at = of_left.partition_point(|merge| merge.right < right);
        of_left.get(at).filter(|merge| merge.right == right)
    }
}

/// Room for merging one word, reused for the next.
#[derive(Default)]
pub(super) struct Workspace {
    symbols: Vec<Symbol>,
    /// Rank, position, left and right token as they were when pushed.
    heap: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
}

struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

impl Workspace {
    /// Merges a word of single symbols and appends its tokens.
    pub(super) fn merge(&mut self, table: &Merges, word: impl Iterator<Item = u32>, out: &mut Vec<u32>) {
        self.symbols.clear();
        self.heap.clear();
        for (at, id) in (0u32..).zip(word) {
            self.symbols.push(Symbol { id, previous: at.wrapping_sub(1), next: at + 1 });
        }
        let end = self.symbols.len() as u32;
        for at in 1..end {
            self.push(table, at - 1, at);
        }
        while let Some(Reverse((_, at, left, right))) = self.heap.pop() {
            let next = self.symbols[at as usize].next;
            let stands =
                self.symbols[at as usize].id == left && next < end && self.symbols[next as usize].id == right;
            let Some(merge) = table.find(left, right).filter(|_| stands) else { continue };
            let after = self.symbols[next as usize].next;
            self.symbols[next as usize].id = NONE;
            self.symbols[at as usize].id = merge.result;
            self.symbols[at as usize].next = after;
            let before = self.symbols[at as usize].previous;
            if after < end {
                self.symbols[after as usize].previous = at;
                self.push(table, at, after);
            }
            if before != NONE {
                self.push(table, before, at);
            }
        }
        let mut at = 0;
        while at < end {
            let symbol = &self.symbols[at as usize];
            if symbol.id != NONE {
                out.push(symbol.id);
            }
            at = symbol.next;
        }
    }

    fn push(&mut self, table: &Merges, at: u32, next: u32) {
        let (left, right) = (self.symbols[at as usize].id, self.symbols[next as usize].id);
        if let Some(merge) = table.find(left, right) {
            self.heap.push(Reverse((merge.rank, at, left, right)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(merges: &[[u32; 3]], word: &[u32]) -> Vec<u32> {
        let mut out = Vec::new();
        Workspace::default().merge(&Merges::new(merges, 10, |_| true), word.iter().copied(), &mut out);
        out
    }

    #[test]
    fn the_best_pair_goes_first_and_of_equals_the_leftmost() {
        assert_eq!(merged(&[[1, 1, 2]], &[1, 1, 1]), [2, 1]);
        assert_eq!(merged(&[[1, 2, 5], [0, 1, 6]], &[0, 1, 2]), [0, 5]);
        // Both splits of token 3 have its rank: the left one wins, though it stands second.
        assert_eq!(merged(&[[1, 1, 2], [2, 1, 3], [1, 2, 3]], &[1, 1, 1, 1]), [2, 2]);
        assert_eq!(merged(&[[2, 1, 3], [1, 2, 3]], &[1, 2, 1]), [3, 1]);
    }

    #[test]
    fn an_unknown_symbol_parts_its_neighbours() {
        assert_eq!(merged(&[[1, 1, 2]], &[1, NONE, 1]), [1, 1]);
        assert_eq!(merged(&[[1, 1, 2]], &[]), [0u32; 0]);
    }

    #[test]
    fn of_a_pair_that_comes_twice_the_first_counts() {
        assert_eq!(merged(&[[1, 1, 2], [1, 1, 3]], &[1, 1]), [2]);
    }
}
