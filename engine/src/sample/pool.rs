//! The tokens still in the running between two steps of the chain, and the selections that steps share.
//!
//! As long as nothing has been removed it is a view of all logits with the maximum of every block; after that a list.
//! Nothing is sorted further than a step needs. It knows no step.

use std::cmp::Ordering;

use super::math;
use super::random::BLOCK;

/// A token with its logit, after bias and penalties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: u32,
    pub(super) logit: f32,
}

/// Better first; of equals the lower token.
pub(super) fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// Room that a sampler keeps between draws.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    pub(super) block_max: Vec<f32>,
    list: Vec<Candidate>,
    scratch: Vec<f32>,
}

/// The tokens in the running; at least one, each with a logit above −∞.
pub(super) struct Pool<'a> {
    logits: &'a [f32],
    room: &'a mut Room,
    best: f32,
    narrowed: bool,
    /// So many of the list's first are its best, in order.
    ranked: usize,
}

/// What is in the running, for the draw.
pub(super) enum Running<'a> {
    /// Every token whose logit is above −∞, with the maximum of each block of logits.
    All { logits: &'a [f32], block_max: &'a [f32] },
    /// These, in no promised order.
    Listed(&'a [Candidate]),
}

impl<'a> Pool<'a> {
    /// All tokens; `best` is the greatest logit, above −∞, and `room.block_max` is filled.
    pub(super) fn new(logits: &'a [f32], best: f32, room: &'a mut Room) -> Self {
        room.list.clear();
        Pool { logits, room, best, narrowed: false, ranked: 0 }
    }

    /// The greatest logit in the running.
    pub(super) fn best(&self) -> f32 {
        self.best
    }

    /// All logits, if no token was removed so far.
    pub(super) fn all_logits(&self) -> Option<&'a [f32]> {
        (!self.narrowed).then_some(self.logits)
    }

    /// Hands the rest to the draw.
    pub(super) fn into_running(self) -> Running<'a> {
        let room: &'a Room = self.room;
        if self.narrowed {
            Running::Listed(&room.list)
        } else {
            Running::All { logits: self.logits, block_max: &room.block_max }
        }
    }

    /// Keeps tokens whose logit is at least `least`, which is not above the best.
    pub(super) fn keep_from(&mut self, least: f64) {
        if self.narrowed {
            self.room.list.retain(|c| f64::from(c.logit) >= least);
            self.ranked = self.ranked.min(self.room.list.len());
            return;
        }
        let Room { block_max, list, .. } = &mut *self.room;
        list.clear();
        for (block, (logits, &max)) in self.logits.chunks(BLOCK).zip(block_max.iter()).enumerate() {
            if max > f32::NEG_INFINITY && f64::from(max) >= least {
                for (i, &logit) in logits.iter().enumerate() {
                    if logit > f32::NEG_INFINITY && f64::from(logit) >= least {
                        list.push(Candidate { token: (block * BLOCK + i) as u32, logit });
                    }
                }
            }
        }
        self.narrowed = true;
        self.ranked = 0;
    }

    /// Keeps the `k` best tokens, `k` at least 1.
    pub(super) fn keep_top(&mut self, k: usize) {
        if !self.narrowed {
            // The k-th greatest block maximum has k logits at or above it: no logit below it is among the k best.
            let least = match self.room.block_max.len() {
                blocks if k < blocks => {
                    let scratch = &mut self.room.scratch;
                    scratch.clone_from(&self.room.block_max);
                    let (_, kth, _) = scratch.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
                    f64::from(*kth)
                }
                _ => f64::NEG_INFINITY,
            };
            self.keep_from(least);
        }
        if self.room.list.len() > k {
            self.room.list.select_nth_unstable_by(k - 1, by_rank);
            self.room.list.truncate(k);
            self.ranked = 0;
        }
    }

    /// Removes the tokens that rank before `first`, one of those in the running.
    pub(super) fn drop_before(&mut self, first: Candidate) {
        self.list();
        self.room.list.retain(|c| by_rank(c, &first).is_ge());
        self.ranked = 0;
        self.best = first.logit;
    }

    /// The tokens in the running whose logit is at least `least` and at most `most`.
    pub(super) fn between(&self, least: f64, most: f64) -> Vec<Candidate> {
        let inside = |logit: f32| (least..=most).contains(&f64::from(logit)) && logit > f32::NEG_INFINITY;
        if self.narrowed {
            return self.room.list.iter().filter(|c| inside(c.logit)).copied().collect();
        }
        let mut found = Vec::new();
        for (block, (logits, &max)) in self.logits.chunks(BLOCK).zip(&self.room.block_max).enumerate() {
            if f64::from(max) >= least {
                let tokens = logits.iter().enumerate().filter(|(_, l)| inside(**l));
                found
                    .extend(tokens.map(|(i, &logit)| Candidate { token: (block * BLOCK + i) as u32, logit }));
            }
        }
        found
    }

    /// The list, its first `n` (or all) being the best, in order.
    fn ranked_list(&mut self, n: usize) -> &[Candidate] {
        let list = self.list();
        let n = n.min(list.len());
        if self.ranked < n {
            let list = &mut self.room.list;
            if n < list.len() {
                list.select_nth_unstable_by(n - 1, by_rank);
            }
            list[..n].sort_unstable_by(by_rank);
            self.ranked = n;
        }
        &self.room.list
    }

    /// The tokens in the running as a list.
    pub(super) fn list(&mut self) -> &[Candidate] {
        if !self.narrowed {
            self.keep_from(f64::NEG_INFINITY);
        }
        &self.room.list
    }

    /// Sum of e^(logit − best) over what is in the running, in an order that the tokens alone decide.
    pub(super) fn sum_exp(&mut self) -> f64 {
        if let Some(logits) = self.all_logits() {
            return math::sum_exp(logits, self.best);
        }
        let best = self.best;
        self.ranked_list(usize::MAX).iter().map(|c| weight(c.logit, best)).fold(0.0, |a, b| a + b)
    }

    /// Sum of e^d · d, d = logit − best, over what is in the running.
    pub(super) fn sum_exp_distance(&mut self) -> f64 {
        let best = self.best;
        if let Some(logits) = self.all_logits() {
            return math::sum_exp_distance(logits, best);
        }
        let terms = self.ranked_list(usize::MAX).iter();
        let terms = terms.map(|c| weight(c.logit, best) * (f64::from(c.logit) - f64::from(best)));
        terms.fold(0.0, |a, b| a + b)
    }

    /// Keeps the fewest best tokens whose mass reaches `share` of the whole.
    pub(super) fn keep_top_mass(&mut self, share: f64) {
        let goal = share * self.sum_exp();
        let best = self.best;
        if !self.narrowed {
            // Most of the mass is near the best: rank only that, unless it does not suffice.
            for depth in [8.0, 16.0] {
                let least = f64::from(best) - depth;
                let near: f64 = self.near(least).map(|l| weight(l, best)).fold(0.0, |a, b| a + b);
                if near >= goal * 1.000_001 {
                    self.keep_from(least);
                    break;
                }
            }
        }
        let (mut mass, mut kept, mut ranked) = (0.0, 0, 128);
        loop {
            let list = self.ranked_list(ranked);
            let end = ranked.min(list.len());
            while kept < end {
                mass += weight(list[kept].logit, best);
                kept += 1;
                if mass >= goal {
                    self.room.list.truncate(kept);
                    self.ranked = kept;
                    return;
                }
            }
            if end == list.len() {
                return;
            }
            ranked *= 8;
        }
    }

    /// The logits of at least `least` while nothing has been removed.
    fn near(&self, least: f64) -> impl Iterator<Item = f32> {
        let blocks = self.logits.chunks(BLOCK).zip(&self.room.block_max);
        blocks
            .filter(move |(_, max)| f64::from(**max) >= least)
            .flat_map(|(logits, _)| logits)
            .copied()
            .filter(move |&logit| f64::from(logit) >= least)
    }

    /// Keeps exactly these, at least one of those in the running.
    pub(super) fn replace(&mut self, kept: &[Candidate]) {
        self.room.list.clear();
        self.room.list.extend_from_slice(kept);
        self.best = kept.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
        self.narrowed = true;
        self.ranked = 0;
    }
}

/// e^(logit − best).
pub(super) fn weight(logit: f32, best: f32) -> f64 {
    libm::exp(f64::from(logit) - f64::from(best))
}
