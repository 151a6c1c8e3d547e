//! Memory that weights lie in: whole files mapped read-only, and 2 MiB-aligned memory that huge pages can back.
//! The only module of this crate with unsafe code.
//!
//! It does not know what the bytes mean.
//!
//! A mapping reads through to its file. Files are expected to stay as they are while mapped: one that is overwritten in
//! place changes the weights under the reader, and one that is truncated ends the process with SIGBUS at the next touch of
//! the missing part. plumb itself replaces files only by renaming, which leaves a mapping of the old file intact.

use std::{fs::File, io, path::Path, ptr::NonNull};

use rustix::mm::{self, MapFlags, ProtFlags};

use crate::{Error, Result};

/// The huge page size of x86-64 and of aarch64 with 4 KiB base pages.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Opens `path` for reading. Folders, pipes and devices are refused before they can block or fail obscurely.
pub fn open_regular(path: &Path) -> Result<File> {
    let found = std::fs::metadata(path).map_err(|e| Error::io(path, e))?.file_type();
    if !found.is_file() {
        let found = if found.is_dir() { "a folder" } else { "a pipe, socket or device" };
        return Err(Error::malformed(path.display().to_string(), "a regular file", found));
    }
    File::open(path).map_err(|e| Error::io(path, e))
}

/// A whole file, mapped read-only wherever the system likes.
#[derive(Debug)]
pub struct FileMap(memmap2::Mmap);

impl FileMap {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// If it cannot be opened, is not a regular file, or is empty.
    pub fn open(path: &Path) -> Result<FileMap> {
        let file = open_regular(path)?;
        if file.metadata().map_err(|e| Error::io(path, e))?.len() == 0 {
            return Err(Error::malformed(path.display().to_string(), "a weight file", "an empty file"));
        }
        // SAFETY: the mapping is read-only and lives as long as the returned value. That nobody changes the file
        // meanwhile cannot be had from the system; the module's documentation says what happens then.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        Ok(FileMap(map))
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Memory at a multiple of [`HUGE_PAGE_BYTES`], advised to be backed by huge pages: a file, or private and anonymous.
#[derive(Debug)]
pub struct HugeMap {
    /// Start of the usable range, a multiple of [`HUGE_PAGE_BYTES`].
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    /// The whole reservation, which is what gets unmapped.
    reserved: NonNull<u8>,
    reserved_len: usize,
}

// SAFETY: the value owns its range of addresses; shared access only reads it, writing needs `&mut`.
unsafe impl Send for HugeMap {}
// SAFETY: as above.
unsafe impl Sync for HugeMap {}

/// How much of a range lies in physical memory, and how much of that in huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Bytes of the range that this process has mapped.
    pub resident_bytes: u64,
    /// Those of them that are mapped by 2 MiB entries.
    pub huge_page_bytes: u64,
}

impl HugeMap {
    /// Maps the first `len` bytes of `file`, read-only and shared. `len` must not exceed the file's length.
    pub fn of_file(file: &File, len: usize) -> io::Result<HugeMap> {
        let map = HugeMap::reserve(len, ProtFlags::empty())?;
        // SAFETY: the target range lies inside `map`'s own reservation, to which no reference exists yet, so replacing
        // what is mapped there affects nobody else.
        unsafe {
            mm::mmap(
                map.start.as_ptr().cast(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                0,
            )
        }?;
        map.advise_huge();
        Ok(map)
    }

    /// `len` zero bytes of private memory.
    pub fn anonymous(len: usize) -> io::Result<HugeMap> {
        let mut map = HugeMap::reserve(len, ProtFlags::READ | ProtFlags::WRITE)?;
        map.writable = true;
        map.advise_huge();
        Ok(map)
    }

    /// Takes a range of addresses long enough to hold `len` bytes at an aligned start.
    fn reserve(len: usize, protection: ProtFlags) -> io::Result<HugeMap> {
        let reserved_len = len
            .checked_next_multiple_of(HUGE_PAGE_BYTES)
            .and_then(|n| n.checked_add(HUGE_PAGE_BYTES))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        #[cfg(target_os = "linux")]
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        #[cfg(not(target_os = "linux"))]
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no existing memory.
        let reserved = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), reserved_len, protection, flags) }?;
        let reserved = NonNull::new(reserved.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let skip = reserved.as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES) - reserved.as_ptr().addr();
        // SAFETY: `skip` is below HUGE_PAGE_BYTES, and the reservation is at least that much longer than `len`.
        let start = unsafe { reserved.add(skip) };
        Ok(HugeMap { start, len, writable: false, reserved, reserved_len })
    }

    /// Asks for huge pages. A kernel without them says no, which [`HugeMap::residency`] shows later.
    fn advise_huge(&self) {
        #[cfg(target_os = "linux")]
        {
            let len = self.len.next_multiple_of(HUGE_PAGE_BYTES);
            // SAFETY: the range lies inside this value's reservation, and the advice does not change contents.
            let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), len, mm::Advice::LinuxHugepage) };
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` readable bytes start at `start` for as long as `self` lives; nobody writes them while this
        // borrow lasts (see the module's documentation for changes to a mapped file).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, for writing; `None` if they are a file's.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: an anonymous map has `len` writable bytes at `start`, and `self` is borrowed exclusively.
        self.writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// Reads one byte of every 2 MiB, so that each is mapped by one huge page if it can be.
    pub fn touch(&self) {
        for at in (0..self.len).step_by(HUGE_PAGE_BYTES) {
            std::hint::black_box(self.bytes()[at]);
        }
    }

    /// What the system reports of this range (`/proc/self/smaps`); zero where there is no such report.
    pub fn residency(&self) -> Residency {
        let start = self.start.as_ptr().addr() as u64;
        match std::fs::read_to_string("/proc/self/smaps") {
            Ok(smaps) => residency_in(&smaps, start..start + self.len as u64),
            Err(_) => Residency::default(),
        }
    }
}

impl Drop for HugeMap {
    fn drop(&mut self) {
        // SAFETY: the reservation belongs to this value alone, and no borrow of it outlives the value.
        let _ = unsafe { mm::munmap(self.reserved.as_ptr().cast(), self.reserved_len) };
    }
}

/// Asks the system to drop its cached pages of `file`; those that some process has mapped stay.
pub fn drop_cached_pages(file: &File) {
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Sums the mappings that overlap `range` in the text of `/proc/self/smaps`.
fn residency_in(smaps: &str, range: std::ops::Range<u64>) -> Residency {
    let mut sum = Residency::default();
    let mut inside = false;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(word) = words.next() else { continue };
        match word.strip_suffix(':') {
            Some(field) if inside => {
                let bytes = words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024;
                match field {
                    "Rss" => sum.resident_bytes += bytes,
                    "FilePmdMapped" | "AnonHugePages" => sum.huge_page_bytes += bytes,
                    _ => {}
                }
            }
            Some(_) => {}
            None => {
                let bounds = word.split_once('-').and_then(|(start, end)| {
                    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
                });
                inside = bounds.is_some_and(|(start, end)| start < range.end && range.start < end);
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn smaps_are_summed_over_the_range_only() {
        let smaps = "\
7f0000000000-7f0000200000 r--s 00000000 08:01 42 /models/a.plumb
Rss:                2048 kB
FilePmdMapped:      2048 kB
VmFlags: rd mr
7f0000200000-7f0000400000 r--s 00000000 08:01 42 /models/a b: c.plumb
Rss:                   4 kB
FilePmdMapped:         0 kB
7f0000400000-7f0000600000 rw-p 00000000 00:00 0
Rss:                 100 kB
AnonHugePages:      2048 kB
";
        let at = 0x7f00_0000_0000;
        let both = residency_in(smaps, at..at + 0x40_0000);
        assert_eq!(both, Residency { resident_bytes: 2052 << 10, huge_page_bytes: 2048 << 10 });
        let last = residency_in(smaps, at + 0x40_0000..at + 0x60_0000);
        assert_eq!(last, Residency { resident_bytes: 100 << 10, huge_page_bytes: 2 << 20 });
    }

    #[test]
    fn a_file_is_mapped_at_a_huge_page_boundary() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5000]).unwrap();
        let map = HugeMap::of_file(&file, 5000).unwrap();
        assert_eq!(map.bytes(), [7; 5000]);
        assert!(map.bytes().as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
    }

    #[test]
    fn private_memory_is_zero_aligned_and_writable() {
        let mut map = HugeMap::anonymous(HUGE_PAGE_BYTES + 1).unwrap();
        assert!(map.bytes().as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
        assert!(map.bytes().iter().all(|&b| b == 0));
        map.bytes_mut().unwrap()[HUGE_PAGE_BYTES] = 1;
        assert_eq!(map.bytes()[HUGE_PAGE_BYTES], 1);
        map.touch();
        if cfg!(target_os = "linux") {
            assert!(map.residency().resident_bytes > 0);
        }
    }

    #[test]
    fn an_absurd_length_is_refused() {
        assert!(HugeMap::anonymous(usize::MAX).is_err());
        assert!(HugeMap::anonymous(usize::MAX / 2).is_err());
    }
}
