//! A drive to probe: opened past the page cache, and refused while somebody uses it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::units::show_size;

/// Reads and writes at a place, which may do less than they were asked for.
pub(super) trait Positioned {
    /// As `pread`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// As `pwrite`.
    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<usize>;
}

/// An opened drive.
#[derive(Debug)]
pub(super) struct Drive {
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// True if the page cache is passed by.
    pub direct: bool,
    /// What tells it from others: the device's number, or the file's device and inode.
    identity: (bool, u64, u64),
    file: File,
}

impl Positioned for Drive {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(buffer, offset)
    }
}

impl Drive {
    /// Opens a drive for accesses of `size` bytes.
    pub fn open(path: &Path, size: u64) -> Result<Drive, String> {
        let name = path.display();
        let metadata = fs::metadata(path).map_err(|e| format!("cannot use {name}: {e}"))?;
        let kind = metadata.file_type();
        let is_device = kind.is_block_device();
        if !is_device && !kind.is_file() {
            return Err(format!("{name} is neither a block device nor a file"));
        }
        if is_device {
            let (major, minor) = split(metadata.rdev());
            let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
            if let Some(user) = user_of(path, metadata.rdev(), &sys) {
                return Err(format!("{name} is in use: {user}. Refused; unmount or stop it first"));
            }
            let block = logical_block(&sys);
            if !size.is_multiple_of(block) {
                return Err(format!(
                    "SIZE: {size} is not a multiple of the {block} bytes of a logical block of {name}"
                ));
            }
        }
        let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        // O_EXCL without O_CREAT: the kernel refuses a device that is mounted or claimed, whatever we overlooked.
        let exclusive = if is_device { libc::O_EXCL } else { 0 };
        let (mut file, direct) = match open(libc::O_DIRECT | libc::O_SYNC | exclusive) {
            Ok(file) => (file, true),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                let file = open(libc::O_SYNC | exclusive).map_err(|e| format!("cannot open {name}: {e}"))?;
                (file, false)
            }
            Err(e) => return Err(format!("cannot open {name}: {e}")),
        };
        let bytes = file.seek(SeekFrom::End(0)).map_err(|e| format!("cannot get the size of {name}: {e}"))?;
        if bytes < size {
            return Err(format!("{name} has {}, too few for one access of {}", show_size(bytes), show_size(size)));
        }
        let identity = if is_device { (true, metadata.rdev(), 0) } else { (false, metadata.dev(), metadata.ino()) };
        Ok(Drive { path: path.to_owned(), bytes, direct, identity, file })
    }

    /// True if both are one drive, by whatever path.
    pub fn same_as(&self, other: &Drive) -> bool {
        self.identity == other.identity
    }

    /// A failed access, in words.
    pub fn failed(&self, what: &str, offset: u64, error: &io::Error) -> String {
        format!("{what} of {} at byte {offset} failed: {error}; the probe was stopped", self.path.display())
    }
}

/// A device number's two parts.
fn split(device: u64) -> (u64, u64) {
    (nix::sys::stat::major(device), nix::sys::stat::minor(device))
}

/// The logical block size of a device; a partition's is that of its disk.
fn logical_block(sys: &Path) -> u64 {
    ["queue", "../queue"]
        .iter()
        .find_map(|q| fs::read_to_string(sys.join(q).join("logical_block_size")).ok()?.trim().parse().ok())
        .unwrap_or(512)
}

/// Who uses a device or a part of it, in words.
fn user_of(path: &Path, device: u64, sys: &Path) -> Option<String> {
    let mut devices = vec![split(device)];
    for entry in fs::read_dir(sys).into_iter().flatten().flatten() {
        if let Some(part) = fs::read_to_string(entry.path().join("dev")).ok().and_then(|d| parse_device(&d)) {
            devices.push(part);
            if has_holders(&entry.path()) {
                return Some(format!("its part {} is held by another device", entry.file_name().display()));
            }
        }
    }
    if has_holders(sys) {
        return Some("another device holds it".into());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(place) = mounted(&mounts, &devices, path) {
        return Some(format!("it is mounted at {place}"));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swapped = swaps.lines().skip(1).filter_map(|l| l.split_whitespace().next()).any(|used| {
        fs::metadata(used).is_ok_and(|m| m.file_type().is_block_device() && devices.contains(&split(m.rdev())))
    });
    swapped.then(|| "it is swap space".into())
}

fn has_holders(sys: &Path) -> bool {
    fs::read_dir(sys.join("holders")).is_ok_and(|mut d| d.next().is_some())
}

fn parse_device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Where one of the devices is mounted: by its number, or (btrfs and others mount under a number of their own) by name.
pub(super) fn mounted(mountinfo: &str, devices: &[(u64, u64)], path: &Path) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let device = fields.nth(2).and_then(parse_device)?;
        let place = fields.nth(1)?;
        let source = line.split(" - ").nth(1)?.split(' ').nth(1)?;
        (devices.contains(&device) || Path::new(source) == path).then(|| place.to_owned())
    })
}
