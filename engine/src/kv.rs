//! Which sequence owns which block of the cache: allocation, sharing by reference counts, freeing behind sliding
//! windows, and prefixes kept for reuse.
//!
//! A prefix that is kept holds references to its blocks; whoever is about to write into a block that someone else also
//! holds copies it first. Which positions a step needs and writes is the layout's to say; what lies in a block, and when
//! a step runs, is not known here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tensor::kv::{BlockId, KvLayout};

use crate::{Error, Result};

/// Prefixes kept at once. Each lookup compares the prompt with every one of them.
const MOST_PREFIXES: usize = 256;

/// One group's blocks: how many hold each, and which are free. The lowest free one is taken first, so that the pool
/// fills from its start.
#[derive(Debug)]
struct Pool {
    holders: Vec<u32>,
    free: BinaryHeap<Reverse<u32>>,
}

impl Pool {
    fn new(blocks: usize) -> Self {
        Pool { holders: vec![0; blocks], free: (0..blocks as u32).map(Reverse).collect() }
    }

    fn take(&mut self) -> Option<BlockId> {
        let Reverse(id) = self.free.pop()?;
        self.holders[id as usize] = 1;
        Some(BlockId(id))
    }

    fn hold(&mut self, id: BlockId) {
        if id != BlockId::NONE {
            self.holders[id.0 as usize] += 1;
        }
    }

    fn release(&mut self, id: BlockId) {
        if id == BlockId::NONE {
            return;
        }
        let holders = &mut self.holders[id.0 as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(Reverse(id.0));
        }
    }

    fn is_shared(&self, id: BlockId) -> bool {
        id != BlockId::NONE && self.holders[id.0 as usize] > 1
    }
}

/// What one sequence, or one kept prefix, holds: its tokens and per group the block of each 64 positions.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) tokens: Vec<u32>,
    pub(crate) blocks: Vec<Vec<BlockId>>,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }
}

#[derive(Debug)]
struct Prefix {
    table: Table,
    last_used: u64,
}

/// How full the cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Bytes of blocks that someone holds.
    pub used_bytes: u64,
    /// Bytes of all blocks.
    pub pool_bytes: u64,
    /// Prefixes kept for reuse.
    pub prefixes: usize,
    /// Prompt tokens that were taken from a kept prefix so far.
    pub reused_tokens: u64,
}

/// The blocks of one executor.
#[derive(Debug)]
pub(crate) struct Cache {
    layout: KvLayout,
    pools: Vec<Pool>,
    prefixes: Vec<Prefix>,
    keep_prefixes: bool,
    clock: u64,
    reused_tokens: u64,
}

/// Copies a block within a group: (group, from, to).
pub(crate) type CopyBlock<'a> = dyn FnMut(usize, BlockId, BlockId) -> tensor::Result<()> + 'a;

impl Cache {
    /// A cache over pools of `blocks[g]` blocks.
    pub(crate) fn new(layout: KvLayout, blocks: &[usize], keep_prefixes: bool) -> Self {
        let pools = blocks.iter().map(|&n| Pool::new(n)).collect();
        Cache { layout, pools, prefixes: Vec::new(), keep_prefixes, clock: 0, reused_tokens: 0 }
    }

    pub(crate) fn usage(&self) -> CacheUse {
        let mut usage = CacheUse {
            prefixes: self.prefixes.len(),
            reused_tokens: self.reused_tokens,
            ..CacheUse::default()
        };
        for (pool, group) in self.pools.iter().zip(&self.layout.groups) {
            let bytes = |n: usize| (n * group.block_bytes) as u64;
            usage.used_bytes += bytes(pool.holders.len() - pool.free.len());
            usage.pool_bytes += bytes(pool.holders.len());
        }
        usage
    }

    /// An empty table, or one that shares the longest usable kept prefix of `tokens`, short of the last token: its
    /// logits are still to be computed.
    pub(crate) fn start(&mut self, tokens: &[u32]) -> Table {
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let common = |p: &Prefix| p.table.tokens.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let usable = self.prefixes.iter().enumerate().map(|(i, p)| (i, common(p)));
        let usable = usable.filter(|&(i, n)| n > 0 && self.is_held(&self.prefixes[i].table, n));
        let Some((best, n)) = usable.max_by_key(|&(_, n)| n) else {
            return Table { tokens: Vec::new(), blocks: vec![Vec::new(); self.pools.len()] };
        };
        self.clock += 1;
        self.prefixes[best].last_used = self.clock;
        self.reused_tokens += n as u64;
        let from = &self.prefixes[best].table;
        let blocks = (0..self.pools.len()).map(|g| {
            let first = self.layout.blocks(g, self.layout.needed(g, n)).start;
            let keep = |(i, &id): (usize, &BlockId)| if i < first { BlockId::NONE } else { id };
            from.blocks[g][..self.layout.table_len(g, n)].iter().enumerate().map(keep).collect()
        });
        let table = Table { tokens: wanted[..n].to_vec(), blocks: blocks.collect() };
        self.hold(&table);
        table
    }

    /// A table of fresh blocks for `tokens`, where `held` has them: what a file is read into.
    ///
    /// # Errors
    /// [`Error::CacheFull`] when there is no room even without kept prefixes.
    pub(crate) fn restore(&mut self, tokens: Vec<u32>, held: &[Vec<bool>]) -> Result<Table> {
        for (g, held) in held.iter().enumerate() {
            let needed = held.iter().filter(|&&h| h).count();
            while self.pools[g].free.len() < needed {
                if !self.evict() {
                    let (free, total) = (self.pools[g].free.len(), self.pools[g].holders.len());
                    return Err(Error::CacheFull { needed, free, total });
                }
            }
        }
        let blocks = self.pools.iter_mut().zip(held).map(|(pool, held)| {
            held.iter().map(|&h| if h { pool.take() } else { None }.unwrap_or(BlockId::NONE)).collect()
        });
        Ok(Table { blocks: blocks.collect(), tokens })
    }

    /// Another table with the same content.
    pub(crate) fn share(&mut self, table: &Table) -> Table {
        self.hold(table);
        Table { tokens: table.tokens.clone(), blocks: table.blocks.clone() }
    }

    /// Makes room for `added[i]` more positions of `tables[i]`: takes blocks, and copies an open block that is shared.
    /// Kept prefixes give way, the longest unused first.
    ///
    /// # Errors
    /// [`Error::CacheFull`] when that is not enough; no table has changed then.
    pub(crate) fn reserve(
        &mut self,
        tables: &mut [&mut Table],
        added: &[usize],
        copy: &mut CopyBlock<'_>,
    ) -> Result<()> {
        for g in 0..self.pools.len() {
            loop {
                let needed = tables.iter().zip(added).map(|(t, &n)| self.blocks_needed(g, t, n)).sum();
                let free = self.pools[g].free.len();
                if needed <= free {
                    break;
                }
                if !self.evict() {
                    let total = self.pools[g].holders.len();
                    return Err(Error::CacheFull { needed, free, total });
                }
            }
        }
        for g in 0..self.pools.len() {
            for (table, &n) in tables.iter_mut().zip(added) {
                self.extend(g, table, n, copy)?;
            }
        }
        Ok(())
    }

    /// Blocks that [`Cache::extend`] will take.
    fn blocks_needed(&self, g: usize, table: &Table, added: usize) -> usize {
        if added == 0 {
            return 0;
        }
        let list = &table.blocks[g];
        let end = table.len() + added;
        let written = self.layout.blocks(g, self.layout.written(g, table.len()..end));
        let replaced = list.iter().take(written.end).skip(written.start);
        let replaced = replaced.filter(|&&id| id == BlockId::NONE || self.pools[g].is_shared(id)).count();
        self.layout.table_len(g, end).saturating_sub(list.len()) + replaced
    }

    fn extend(&mut self, g: usize, table: &mut Table, added: usize, copy: &mut CopyBlock<'_>) -> Result<()> {
        if added == 0 {
            return Ok(());
        }
        let end = table.len() + added;
        let written = self.layout.blocks(g, self.layout.written(g, table.len()..end));
        let table_len = self.layout.table_len(g, end);
        let pool = &mut self.pools[g];
        let full =
            |pool: &Pool| Error::CacheFull { needed: 1, free: pool.free.len(), total: pool.holders.len() };
        let list = &mut table.blocks[g];
        for slot in list.iter_mut().take(written.end).skip(written.start) {
            if *slot == BlockId::NONE {
                // Freed, then returned to: nothing that it held is needed.
                *slot = pool.take().ok_or_else(|| full(pool))?;
            } else if pool.is_shared(*slot) {
                let new = pool.take().ok_or_else(|| full(pool))?;
                if let Err(e) = copy(g, *slot, new) {
                    pool.release(new);
                    return Err(e.into());
                }
                pool.release(*slot);
                *slot = new;
            }
        }
        while list.len() < table_len {
            list.push(pool.take().ok_or_else(|| full(pool))?);
        }
        Ok(())
    }

    /// Notes that a step has written these tokens, and frees what no later query sees.
    pub(crate) fn advance(&mut self, table: &mut Table, tokens: &[u32]) {
        table.tokens.extend_from_slice(tokens);
        let len = table.len();
        for g in 0..self.pools.len() {
            for slot in table.blocks[g].iter_mut().take(self.layout.freed(g, len)) {
                self.pools[g].release(*slot);
                *slot = BlockId::NONE;
            }
        }
    }

    /// Takes a table back to its first `len` positions.
    ///
    /// # Errors
    /// A sliding layer has already dropped what the next query would need.
    pub(crate) fn truncate(&mut self, table: &mut Table, len: usize) -> Result<()> {
        if len > table.len() {
            return Err(Error::invalid("length to return to", format!("at most {}", table.len()), len));
        }
        if !self.is_held(table, len) {
            let expected = "a length whose sliding window is still held";
            return Err(Error::invalid("length to return to", expected, len));
        }
        table.tokens.truncate(len);
        self.trim(table);
        Ok(())
    }

    /// Gives a table's blocks back, keeping them as a prefix where the cache keeps any.
    pub(crate) fn finish(&mut self, mut table: Table) {
        self.trim(&mut table);
        self.keep(table);
    }

    /// Gives a table's blocks back and keeps nothing.
    pub(crate) fn discard(&mut self, table: Table) {
        self.release(&table);
    }

    /// Keeps a prefix of a sequence that goes on.
    pub(crate) fn checkpoint(&mut self, table: &Table) {
        if self.keep_prefixes {
            let mut shared = self.share(table);
            self.trim(&mut shared);
            self.keep(shared);
        }
    }

    fn keep(&mut self, table: Table) {
        self.clock += 1;
        let covers = |cache: &Cache, a: &Table, b: &Table| {
            a.tokens.starts_with(&b.tokens)
                && cache.is_held(a, b.len())
                && cache.is_held(a, b.len().saturating_sub(1))
        };
        let known = self.prefixes.iter().position(|p| covers(self, &p.table, &table));
        if let Some(i) = known {
            self.prefixes[i].last_used = self.clock;
        }
        if !self.keep_prefixes || table.len() == 0 || known.is_some() {
            self.release(&table);
            return;
        }
        let covered: Vec<usize> =
            (0..self.prefixes.len()).filter(|&i| covers(self, &table, &self.prefixes[i].table)).collect();
        for i in covered.into_iter().rev() {
            let old = self.prefixes.swap_remove(i);
            self.release(&old.table);
        }
        if self.prefixes.len() >= MOST_PREFIXES {
            self.evict();
        }
        self.prefixes.push(Prefix { table, last_used: self.clock });
    }

    /// Drops the prefix unused for longest; false if there is none.
    fn evict(&mut self) -> bool {
        let oldest = self.prefixes.iter().enumerate().min_by_key(|(_, p)| p.last_used).map(|(i, _)| i);
        let Some(i) = oldest else { return false };
        let old = self.prefixes.swap_remove(i);
        self.release(&old.table);
        true
    }

    /// Forgets every kept prefix.
    pub(crate) fn forget_prefixes(&mut self) {
        while self.evict() {}
    }

    /// True if a step that begins at `position` finds all that it needs of what lies before.
    fn is_held(&self, table: &Table, position: usize) -> bool {
        table.blocks.iter().enumerate().all(|(g, list)| {
            let needed = self.layout.blocks(g, self.layout.needed(g, position));
            needed.is_empty() || list.get(needed).is_some_and(|l| !l.contains(&BlockId::NONE))
        })
    }

    /// Gives back blocks beyond a table's length.
    fn trim(&mut self, table: &mut Table) {
        let len = table.len();
        for (g, (pool, list)) in self.pools.iter_mut().zip(&mut table.blocks).enumerate() {
            let blocks = self.layout.table_len(g, len);
            for id in list.drain(blocks.min(list.len())..) {
                pool.release(id);
            }
        }
    }

    fn hold(&mut self, table: &Table) {
        for (pool, list) in self.pools.iter_mut().zip(&table.blocks) {
            list.iter().for_each(|&id| pool.hold(id));
        }
    }

    fn release(&mut self, table: &Table) {
        for (pool, list) in self.pools.iter_mut().zip(&table.blocks) {
            list.iter().for_each(|&id| pool.release(id));
        }
    }
}

#[cfg(test)]
#[path = "kv_interleavings.rs"]
mod interleavings;
