use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use super::drive::mounted;
use super::*;

fn arguments(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn arguments_are_split_from_the_end() {
    let plan = Plan::new(&arguments("/dev/a /dev/b 4k 10")).unwrap();
    assert_eq!(plan, Plan { paths: vec!["/dev/a".into(), "/dev/b".into()], size: 4096, count: 10 });
}

#[test]
fn wrong_arguments_are_named() {
    for (text, word) in [
        ("/dev/a 1000 10", "512"),
        ("/dev/a 0 10", "512"),
        ("/dev/a x 10", "SIZE"),
        ("/dev/a 1G 10", "SIZE"),
        ("/dev/a 4k 0", "COUNT"),
        ("/dev/a 4k many", "COUNT"),
        ("/dev/a /dev/a 4k 1", "twice"),
    ] {
        let error = Plan::new(&arguments(text)).unwrap_err();
        assert!(error.contains(word), "{text}: {error}");
    }
}

/// A drive that does as much of each access as it is told, then all of it.
struct Short {
    content: RefCell<Vec<u8>>,
    amounts: RefCell<VecDeque<std::io::Result<usize>>>,
}

impl Short {
    fn new(content: Vec<u8>, amounts: impl IntoIterator<Item = std::io::Result<usize>>) -> Short {
        Short { content: RefCell::new(content), amounts: RefCell::new(amounts.into_iter().collect()) }
    }

    fn amount(&self, len: usize, offset: u64) -> std::io::Result<usize> {
        let left = self.content.borrow().len() - offset as usize;
        let next = self.amounts.borrow_mut().pop_front().unwrap_or(Ok(len))?;
        Ok(next.min(len).min(left))
    }
}

impl Positioned for Short {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let n = self.amount(buffer.len(), offset)?;
        buffer[..n].copy_from_slice(&self.content.borrow()[offset as usize..][..n]);
        Ok(n)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> std::io::Result<usize> {
        let n = self.amount(buffer.len(), offset)?;
        self.content.borrow_mut()[offset as usize..][..n].copy_from_slice(&buffer[..n]);
        Ok(n)
    }
}

fn interrupted() -> std::io::Result<usize> {
    Err(std::io::ErrorKind::Interrupted.into())
}

#[test]
fn short_reads_and_writes_are_continued() {
    let content: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
    let mut buffer = vec![0; 2048];
    let drive = Short::new(content.clone(), [Ok(512), interrupted(), Ok(1)]);
    read_full(&drive, &mut buffer, 1024).unwrap();
    assert_eq!(buffer, content[1024..3072]);

    let drive = Short::new(vec![0; 4096], [Ok(1), interrupted(), Ok(700)]);
    write_full(&drive, &buffer, 512).unwrap();
    assert_eq!(drive.content.borrow()[512..2560], buffer);
    assert!(drive.content.borrow()[2560..].iter().all(|b| *b == 0));
}

#[test]
fn a_drive_that_ends_or_takes_nothing_is_an_error() {
    let drive = Short::new(vec![0; 1024], []);
    let error = read_full(&drive, &mut [0; 2048], 512).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    let error = write_full(&drive, &[1; 2048], 512).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WriteZero);
}

#[test]
fn every_logical_block_is_changed() {
    let mut buffer = vec![255; 2048];
    change(&mut buffer);
    assert!(buffer.chunks(512).all(|b| b[0] == 0 && b[1] == 255));
}

#[test]
fn buffers_start_at_a_page() {
    for len in [512, 4096, 65536] {
        let mut buffer = Buffer::new(len);
        assert_eq!(buffer.bytes().len(), len);
        assert_eq!(buffer.bytes().as_ptr() as usize % 4096, 0);
    }
}

#[test]
fn mounted_devices_are_found_by_number_and_by_name() {
    let mountinfo = "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
                     30 22 0:40 / /data rw - btrfs /dev/sdb rw,space_cache=v2\n";
    assert_eq!(mounted(mountinfo, &[(259, 0), (259, 2)], Path::new("/dev/nvme0n1")).as_deref(), Some("/"));
    assert_eq!(mounted(mountinfo, &[(8, 16)], Path::new("/dev/sdb")).as_deref(), Some("/data"));
    assert_eq!(mounted(mountinfo, &[(8, 0)], Path::new("/dev/sda")), None);
}

fn temporary(name: &str, bytes: usize) -> PathBuf {
    let path = std::env::temp_dir().join(format!("raidbench-rmw-{}-{name}", std::process::id()));
    fs::write(&path, vec![0; bytes]).unwrap();
    path
}

#[test]
fn a_drive_smaller_than_one_access_is_refused() {
    let path = temporary("small", 2048);
    let error = Drive::open(&path, 4096).unwrap_err();
    assert!(error.contains("too few"), "{error}");
    fs::remove_file(path).unwrap();
}

#[test]
fn only_the_path_itself_confirms() {
    let path = temporary("confirm", 4096);
    let drive = Drive::open(&path, 4096).unwrap();
    let mut asked = vec![];
    let mut answer = |text: &str| confirm(&[&drive], &mut text.as_bytes(), &mut asked);
    assert!(answer("").is_err());
    assert!(answer("yes\n").unwrap_err().contains("nothing was written"));
    answer(&format!("{}\n", path.display())).unwrap();
    assert!(String::from_utf8(asked).unwrap().contains("LOST"));
    fs::remove_file(path).unwrap();
}

#[test]
fn the_probe_changes_the_file_in_place_and_counts() {
    let path = temporary("probe", 64 << 10);
    let args = RmwArgs { arguments: vec![path.display().to_string(), "4k".into(), "50".into()], yes: true, seed: 3 };
    let mut report = Report::new(None);
    run(&args, &mut report).unwrap();
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), 64 << 10);
    let changes: u32 = content.chunks(4096).map(|b| u32::from(b[512])).sum();
    assert_eq!(changes, 50);
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(value["results"][0]["latency_us"]["count"], 50);
    fs::remove_file(path).unwrap();
}
