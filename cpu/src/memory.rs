//! Memory of an executor: aligned f32 and block buffers, and the KV pool's mapping.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use memmap2::MmapMut;
use tensor::{Error, Result};

/// Asks for the cache line at p, wherever it points.
#[inline(always)]
pub(crate) fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Zeroed memory aligned to a cache line, shared by the threads of a step: they write disjoint parts between barriers.
pub(crate) struct Shared<T: Copy> {
    ptr: NonNull<T>,
    len: usize,
}

// SAFETY: plain memory; every access goes through unsafe functions whose callers keep writes disjoint.
unsafe impl<T: Copy + Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Send> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    /// `len` zeroed elements; pages that are never touched take no memory.
    pub(crate) fn new(what: &str, len: usize) -> Result<Shared<T>> {
        let fail = || Error::OutOfMemory {
            what: what.into(),
            needed_bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
            available_bytes: 0,
        };
        let layout = Self::layout(len.max(1)).ok_or_else(fail)?;
        // SAFETY: the layout has a size above zero; all-zero bytes are valid for the plain types used here.
        let ptr = unsafe { alloc_zeroed(layout) };
        Ok(Shared { ptr: NonNull::new(ptr.cast()).ok_or_else(fail)?, len })
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::array::<T>(len).ok()?.align_to(64).ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub(crate) fn ptr(&self) -> *mut T {
        self.ptr.as_ptr()
    }

    /// `len` elements from `at`.
    ///
    /// # Safety
    /// No thread writes them meanwhile.
    pub(crate) unsafe fn get(&self, at: usize, len: usize) -> &[T] {
        assert!(at <= self.len && len <= self.len - at, "{at}+{len} of {}", self.len);
        // SAFETY: within the allocation; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts(self.ptr().add(at), len) }
    }

    /// `len` elements from `at`, for writing.
    ///
    /// # Safety
    /// No other thread touches them meanwhile.
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's contract
    pub(crate) unsafe fn get_mut(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "{at}+{len} of {}", self.len);
        // SAFETY: within the allocation; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.ptr().add(at), len) }
    }
}

impl<T: Copy> Drop for Shared<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len.max(1)).expect("as allocated");
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.ptr.as_ptr().cast(), layout) }
    }
}

/// The blocks of one KV group: an anonymous mapping advised to use huge pages, resident as far as it was written.
pub(crate) struct BlockPool {
    map: Option<MmapMut>,
    ptr: *mut u8,
    pub(crate) block_bytes: usize,
    pub(crate) blocks: usize,
}

// SAFETY: plain memory; accesses go through raw pointers whose users keep writes disjoint.
unsafe impl Send for BlockPool {}
// SAFETY: as above.
unsafe impl Sync for BlockPool {}

impl BlockPool {
    /// Reserves the pool.
    pub(crate) fn new(blocks: usize, block_bytes: usize) -> Result<BlockPool> {
        let oom = |needed: u64| Error::OutOfMemory {
            what: format!("a KV pool of {blocks} blocks"),
            needed_bytes: needed,
            available_bytes: 0,
        };
        let bytes = blocks.checked_mul(block_bytes).ok_or_else(|| oom(u64::MAX))?;
        if bytes == 0 {
            return Ok(BlockPool { map: None, ptr: std::ptr::null_mut(), block_bytes, blocks });
        }
        let mut map = MmapMut::map_anon(bytes).map_err(|_| oom(bytes as u64))?;
        #[cfg(target_os = "linux")]
        // Only advice: without huge pages the pool works, and reports say what was got.
        let _ = map.advise(memmap2::Advice::HugePage);
        let ptr = map.as_mut_ptr();
        Ok(BlockPool { map: Some(map), ptr, block_bytes, blocks })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.map.as_ref().map_or(0, |m| m.len())
    }

    /// A block's first byte.
    pub(crate) fn block(&self, id: u32) -> *mut u8 {
        assert!((id as usize) < self.blocks, "block {id} of {}", self.blocks);
        // SAFETY: within the mapping.
        unsafe { self.ptr.add(id as usize * self.block_bytes) }
    }
}
