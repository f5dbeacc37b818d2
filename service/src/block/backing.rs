//! Opening what is behind a member: a regular file, a kernel block device, or RAM; once, and for nobody else.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{Flock, FlockArg};
use raid_core::units::Bytes;

use super::ram::RamDisk;
use super::uring::{DirectIo, direct_io};
use super::{BlockInfo, MemberHandle};
use crate::dma::Memory;

/// Smallest member that is accepted, in bytes: superblocks, configuration slots and one extent need room.
pub const SMALLEST: u64 = 8 << 20;

/// Devices that this process has open, by device and inode number, with the address under which they were opened.
static OPEN: Mutex<BTreeMap<(u64, u64), String>> = Mutex::new(BTreeMap::new());

/// An opened device. It stays locked until the last clone and the last queue are gone.
#[derive(Clone)]
pub struct Backing {
    info: BlockInfo,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Ram(RamDisk),
    File(Arc<OpenFile>),
}

/// A file that is locked for this process. The lock is held for the life of the process, or until the member is released.
pub struct OpenFile {
    pub(super) file: Flock<File>,
    pub(super) direct: bool,
    /// A kernel block device, not a regular file.
    pub(super) block_device: bool,
    // Last: whoever sees the claim gone must find the lock gone too.
    _claim: Claim,
}

/// This process's word on a device, by device and inode number.
struct Claim((u64, u64));

impl Claim {
    fn on(key: (u64, u64), path: &Path, address: &str) -> Result<Claim, String> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = open.get(&key) {
            return Err(format!(
                "{} is in use by this raidd already, as {other}; a device can be a member only once",
                path.display()
            ));
        }
        open.insert(key, address.to_string());
        Ok(Claim(key))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Tells devices apart, whatever path leads to them.
fn key(meta: &Metadata) -> (u64, u64) {
    if meta.file_type().is_block_device() { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) }
}

/// Splits `ram:SIZE[:NAME]`; anything else is a path, with or without `file:`.
fn ram_size(address: &str) -> Option<Result<u64, String>> {
    let rest = address.strip_prefix("ram:")?;
    let text = rest.split(':').next().unwrap_or("");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1u64,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        other => return Some(Err(format!("'{address}': '{other}' is no unit: use KiB, MiB or GiB"))),
    };
    Some(match digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| *n >= SMALLEST) {
        Some(size) => Ok(size & !4095),
        None => Err(format!("'{address}': give a size of at least 8 MiB, such as ram:256MiB:NAME")),
    })
}

impl Backing {
    /// Opens a device for this process alone. With `create`, a path that does not exist becomes a sparse file of that many
    /// bytes; an existing file is never resized.
    pub fn open(address: &str, create: Option<u64>) -> Result<Backing, String> {
        if let Some(size) = ram_size(address) {
            let disk = RamDisk::new(address, size?).map_err(|e| format!("{address}: no memory for it: {e}"))?;
            return Ok(Backing { info: disk.info().clone(), kind: Kind::Ram(disk) });
        }
        let path = PathBuf::from(address.strip_prefix("file:").unwrap_or(address));
        open_path(&path, address, create)
    }

    /// What it is.
    pub fn info(&self) -> &BlockInfo {
        &self.info
    }

    /// Makes queues to it, one for each reactor that asks.
    pub fn handle(&self, memory: &Memory) -> MemberHandle {
        let (backing, memory) = (self.clone(), memory.clone());
        Arc::new(move |cx| match &backing.kind {
            Kind::Ram(disk) => Ok(Box::new(disk.open(&memory))),
            Kind::File(file) => super::uring::open(cx, file.clone(), backing.info.clone(), &memory),
        })
    }

    /// Has the memory of a RAM device at hand before the first write; for others there is nothing to do.
    pub fn populate(&self) {
        if let Kind::Ram(disk) = &self.kind {
            disk.populate();
        }
    }

    /// The same file once more, through the page cache; `None` for RAM. The lock stays with this one.
    pub(super) fn reopen_cached(&self) -> Option<std::io::Result<File>> {
        match &self.kind {
            Kind::Ram(_) => None,
            Kind::File(file) => {
                // By descriptor: the path may lead to another file by now.
                let path = format!("/proc/self/fd/{}", file.file.as_raw_fd());
                Some(OpenOptions::new().read(true).write(true).open(path))
            }
        }
    }

    /// False where O_DIRECT is not to be had and the page cache is in the way.
    pub fn direct(&self) -> bool {
        match &self.kind {
            Kind::Ram(_) => true,
            Kind::File(file) => file.direct,
        }
    }
}

fn open_path(path: &Path, address: &str, create: Option<u64>) -> Result<Backing, String> {
    let fail = |what: &str, e: &dyn std::fmt::Display| format!("{} {what}: {e}", path.display());
    let mut created = false;
    if let Some(size) = create
        && !path.exists()
    {
        if size < SMALLEST {
            return Err(format!("{}: {} is too little for a member: give at least 8 MiB", path.display(), Bytes(size)));
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| fail("cannot be created", &e))?;
        if let Err(e) = file.set_len(size & !4095) {
            let _ = std::fs::remove_file(path);
            return Err(fail("cannot be made that large", &e));
        }
        // A member that holds a committed superblock must not vanish with the folder's cached entry.
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if let Err(e) = file.sync_all().and_then(|()| File::open(folder)?.sync_all()) {
            let _ = std::fs::remove_file(path);
            return Err(fail("cannot be made durable", &e));
        }
        created = true;
    }
    let result = open_existing(path, address);
    if created && result.is_err() {
        // A refused operation changes nothing.
        let _ = std::fs::remove_file(path);
    }
    result
}

/// Somebody holds the lock of a file or device: a raidd that ends may do so for a moment after it is gone from sight.
pub fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, nix::errno::Errno::EWOULDBLOCK)))
}

fn open_existing(path: &Path, address: &str) -> Result<Backing, String> {
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{}: there is no such file or device", path.display())
        }
        _ => format!("{} cannot be looked at: {e}", path.display()),
    })?;
    let block_device = meta.file_type().is_block_device();
    if !block_device && !meta.is_file() {
        return Err(format!("{} is neither a regular file nor a block device", path.display()));
    }
    let claim = Claim::on(key(&meta), path, address)?;
    let (file, direct, info) = lock_and_measure(path, block_device, &meta)?;
    let file = Arc::new(OpenFile { file, direct, block_device, _claim: claim });
    Ok(Backing { info: BlockInfo { address: address.to_string(), ..info }, kind: Kind::File(file) })
}

fn lock_and_measure(
    path: &Path,
    block_device: bool,
    seen: &Metadata,
) -> Result<(Flock<File>, bool, BlockInfo), String> {
    let (file, direct) = open_for_this_process(path, block_device)?;
    let meta = file.metadata().map_err(|e| format!("{} cannot be looked at: {e}", path.display()))?;
    if key(&meta) != key(seen) {
        return Err(format!("{} became another file while it was being opened; try again", path.display()));
    }
    let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| match e {
        nix::errno::Errno::EWOULDBLOCK => format!(
            "{} is locked by another process{}, perhaps another raidd that has assembled its array; stop that one first",
            path.display(),
            lock_holder(&meta).map(|who| format!(" ({who})")).unwrap_or_default()
        ),
        e => format!("{} cannot be locked: {e}", path.display()),
    })?;
    let info = measure(path, &file, block_device, direct)?;
    if info.size < SMALLEST {
        return Err(format!(
            "{} has {}, too little for a member: at least 8 MiB are needed",
            path.display(),
            Bytes(info.size)
        ));
    }
    Ok((file, direct.is_some(), info))
}

/// Opens with O_DIRECT, and with what that asks for; or through the page cache where it cannot be used.
fn open_for_this_process(path: &Path, block_device: bool) -> Result<(File, Option<DirectIo>), String> {
    let exclusive = if block_device { libc::O_EXCL } else { 0 };
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags | exclusive).open(path);
    let fail = |e: std::io::Error| match e.raw_os_error() {
        Some(libc::EBUSY) => {
            format!("{} is in use (mounted, or claimed by another program); release it first", path.display())
        }
        _ => format!("{} cannot be opened for reading and writing: {e}", path.display()),
    };
    match open(libc::O_DIRECT) {
        Ok(file) => {
            let direct = direct_io(&file);
            // Buffers start at multiples of 512 bytes, and blocks of the array are 4096 bytes.
            if (1..=4096).contains(&direct.offset) && direct.memory <= 512 {
                return Ok((file, Some(direct)));
            }
        }
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
        Err(e) => return Err(fail(e)),
    }
    let file = open(0).map_err(fail)?;
    tracing::warn!(
        "{}: O_DIRECT is not to be had here, so the page cache is used; flushes still reach the medium",
        path.display()
    );
    Ok((file, None))
}

/// The process that holds a lock on a file, if the kernel tells.
fn lock_holder(meta: &Metadata) -> Option<String> {
    let (major, minor) = (nix::sys::stat::major(meta.dev()), nix::sys::stat::minor(meta.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // "1: FLOCK  ADVISORY  WRITE 4711 fd:00:1234 0 EOF"
    let pid = locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(4);
        let pid = words.next()?;
        (words.next() == Some(file.as_str())).then_some(pid)
    })?;
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => Some(format!("{}, process {pid}", name.trim())),
        Err(_) => Some(format!("process {pid}")),
    }
}

fn measure(path: &Path, file: &File, block_device: bool, direct: Option<DirectIo>) -> Result<BlockInfo, String> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: its size cannot be read: {e}", path.display());
    let meta = file.metadata().map_err(|e| fail(&e))?;
    let common = BlockInfo {
        address: path.display().to_string(),
        size: meta.len() & !4095,
        block_size: 512,
        physical_block_size: 4096,
        volatile_cache: true,
        fast_zero: true,
        unmap: true,
        rotational: false,
        optimal_io: 0,
        memory_alignment: 512,
    };
    if !block_device {
        let block_size = direct.map_or(512, |d| if d.offset <= 512 { 512 } else { 4096 });
        return Ok(BlockInfo { block_size, ..common });
    }
    let (size, block_size, physical_block_size) = super::uring::device_geometry(file).map_err(|e| fail(&e))?;
    if !matches!(block_size, 512 | 4096) {
        return Err(format!(
            "{}: its logical blocks have {block_size} bytes; members have blocks of 512 or 4096 bytes",
            path.display()
        ));
    }
    let queue = Queue::of(meta.rdev());
    let rotational = queue.number("rotational") == Some(1);
    Ok(BlockInfo {
        size: size & !4095,
        block_size,
        physical_block_size,
        // A cache that the kernel does not know of must be thought volatile.
        volatile_cache: queue.text("write_cache").is_none_or(|t| t != "write through"),
        // A disk that takes the command may still have to write each block.
        fast_zero: !rotational && queue.number("write_zeroes_max_bytes").is_some_and(|n| n > 0),
        unmap: queue.number("discard_max_bytes").is_some_and(|n| n > 0),
        rotational,
        optimal_io: queue.number("optimal_io_size").and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        ..common
    })
}

/// What the kernel tells of a block device's queue.
struct Queue(PathBuf);

impl Queue {
    fn of(rdev: u64) -> Queue {
        let (major, minor) = (nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition has the queue of its disk. The link must be followed first: its own parent is another folder.
        let device = device.canonicalize().unwrap_or(device);
        let own = device.join("queue");
        Queue(if own.is_dir() { own } else { device.join("../queue") })
    }

    fn text(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(name)).ok().map(|t| t.trim().to_string())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("raidd-backing-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn refused(address: &str, create: Option<u64>) -> String {
        Backing::open(address, create).err().expect("a refusal")
    }

    #[test]
    fn the_same_file_is_refused_twice_by_any_path() {
        let dir = dir("twice");
        let one = dir.join("one");
        let first = Backing::open(one.to_str().unwrap(), Some(16 << 20)).unwrap();
        std::os::unix::fs::symlink(&one, dir.join("sym")).unwrap();
        std::fs::hard_link(&one, dir.join("hard")).unwrap();
        for other in ["one", "sym", "hard"] {
            let e = refused(dir.join(other).to_str().unwrap(), None);
            assert!(e.contains("only once"), "{e}");
        }
        drop(first);
        Backing::open(dir.join("hard").to_str().unwrap(), None).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_that_somebody_has_locked_is_refused() {
        let dir = dir("locked");
        let path = dir.join("m");
        drop(Backing::open(path.to_str().unwrap(), Some(16 << 20)).unwrap());
        let other =
            Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusiveNonblock).map_err(|(_, e)| e).unwrap();
        assert!(is_locked(&path) && !is_locked(&dir.join("absent")));
        let e = refused(path.to_str().unwrap(), None);
        assert!(e.contains("locked by another process"), "{e}");
        assert!(e.contains(&std::process::id().to_string()), "who holds it is not said: {e}");
        drop(other);
        assert!(!is_locked(&path));
        Backing::open(path.to_str().unwrap(), None).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn bad_addresses_are_refused_and_leave_nothing_behind() {
        let dir = dir("bad");
        let path = |n: &str| dir.join(n).to_str().unwrap().to_string();
        assert!(refused(&path("none"), None).contains("no such file"));
        assert!(refused(&path("small"), Some(4096)).contains("at least 8 MiB"));
        assert!(refused(&path("no/folder"), Some(16 << 20)).contains("cannot be created"));
        assert!(refused(dir.to_str().unwrap(), None).contains("neither a regular file"));
        assert!(refused("ram:12X", None).contains("no unit"));
        assert!(refused("ram:4KiB", None).contains("at least 8 MiB"));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
