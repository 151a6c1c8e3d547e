//! Every order in which two threads can start, grow, fork, cut and drop sequences over one small cache, tried by loom: no block
//! is written while another holds it, none is lost, and none is given back twice.

use loom::sync::{Arc, Mutex};
use loom::thread;
use tensor::kv::{BlockId, KvLayout, KvSettings};

use super::{Cache, Table};

/// A step over `tokens`, as the model takes it: room first, then the tables advance; all under one lock.
fn step(cache: &Mutex<Cache>, table: &mut Table, tokens: &[u32]) -> bool {
    let mut cache = cache.lock().unwrap();
    if cache.reserve(&mut [&mut *table], &[tokens.len()], &mut |_, _, _| Ok(())).is_err() {
        return false;
    }
    let written = table.len()..table.len() + tokens.len();
    for g in 0..table.blocks.len() {
        for i in cache.layout.blocks(g, cache.layout.written(g, written.clone())) {
            let id = table.blocks[g][i];
            assert_ne!(id, BlockId::NONE, "a block that is written is there");
            assert_eq!(cache.pools[g].holders[id.0 as usize], 1, "a block that is written has one holder");
        }
    }
    cache.advance(table, tokens);
    true
}

/// One conversation: a prompt, perhaps from a kept prefix, a kept turn, a fork that goes another way, a step back.
fn conversation(cache: &Mutex<Cache>, last: u32) {
    let prompt: Vec<u32> = (0..66).chain([last]).collect();
    let mut table = cache.lock().unwrap().start(&prompt);
    let rest = prompt[table.len()..].to_vec();
    if !step(cache, &mut table, &rest) {
        return cache.lock().unwrap().discard(table);
    }
    cache.lock().unwrap().checkpoint(&table);
    let mut fork = cache.lock().unwrap().share(&table);
    step(cache, &mut fork, &[last + 1]);
    cache.lock().unwrap().finish(fork);
    let mut held = cache.lock().unwrap();
    held.truncate(&mut table, 65).unwrap();
    held.finish(table);
}

fn every_interleaving(kv: KvSettings, blocks: usize) {
    loom::model(move || {
        let mut layout = KvLayout::new(kv);
        layout.push(1, 16, 16, None);
        let pools = vec![blocks; layout.groups.len()];
        let cache = Arc::new(Mutex::new(Cache::new(layout, &pools, true)));
        let other = Arc::clone(&cache);
        let thread = thread::spawn(move || conversation(&other, 100));
        conversation(&cache, 200);
        thread.join().unwrap();
        let mut cache = cache.lock().unwrap();
        cache.forget_prefixes();
        assert_eq!(cache.usage().used_bytes, 0, "no block is lost");
    });
}

#[test]
fn two_conversations_in_any_order_over_halves() {
    every_interleaving(KvSettings::default(), 6);
}

#[test]
fn two_conversations_in_any_order_over_codes() {
    every_interleaving(KvSettings { window: 16, sinks: 2, .."q4".parse().unwrap() }, 6);
}

/// A cache too small for both: kept prefixes give way, or a conversation ends early.
#[test]
fn two_conversations_in_any_order_without_room() {
    every_interleaving(KvSettings::default(), 3);
}
