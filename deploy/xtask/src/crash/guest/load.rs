//! The load: writers that append, overwrite in place (through the page cache, and past it with O_DSYNC), replace by rename,
//! and commit to SQLite, each on its own until its file system fails. What will be written is told to the host before, what
//! a sync has promised after it: the host must not know of a promise that was not made, nor miss a write that was begun.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use clap::Args;

use crate::crash::content::{self, Rng, SECTOR};

/// `O_DIRECT | O_DSYNC` of Linux on x86-64: writes that the kernel sends with FUA.
const DIRECT_DSYNC: i32 = 0o40000 | 0o10000;

/// What the load writes where.
#[derive(Args)]
pub struct Options {
    /// The host that is told.
    host: String,
    /// Decides sizes and order.
    seed: u64,
    /// Decides contents, and is the same in every round.
    contents: u64,
    /// Folders to write in.
    #[arg(long = "files", value_name = "DIR")]
    files: Vec<PathBuf>,
    /// Databases with a rollback journal.
    #[arg(long = "rollback", value_name = "FILE")]
    rollback: Vec<PathBuf>,
    /// Databases with a write-ahead log.
    #[arg(long = "wal", value_name = "FILE")]
    wal: Vec<PathBuf>,
}

/// The way to the host.
struct Host(Mutex<TcpStream>);

impl Host {
    fn say(&self, line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
        // A poisoned lock is a writer that panicked: the others' lines are whole all the same.
        let mut stream = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        stream.write_all(format!("{line}\n").as_bytes())
    }
}

/// Runs all writers until each has met an error, which is what the host waits for.
pub fn run(options: &Options) -> Result<(), String> {
    let stream = TcpStream::connect(&options.host).map_err(|e| format!("{}: {e}", options.host))?;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let host = Host(Mutex::new(stream));
    host.say(format_args!("load")).map_err(|e| e.to_string())?;
    let (host, seed, contents) = (&host, options.seed, options.contents);
    std::thread::scope(|scope| {
        let mut number = 0;
        let mut start = |path: PathBuf, work: fn(&Writer<'_>, &mut Rng) -> std::io::Result<()>| {
            number += 1;
            let mut rng = Rng::new(seed.wrapping_mul(1000) + number);
            scope.spawn(move || {
                let path = path.display().to_string();
                if let Err(e) = work(&Writer { host, seed: contents, path: &path }, &mut rng) {
                    // The host is gone too, if it cannot be told.
                    let _ = host.say(format_args!("error {path} {e}"));
                }
            });
        };
        for dir in &options.files {
            start(dir.join("append"), append);
            start(dir.join("inplace"), |w, rng| in_place(w, rng, false));
            start(dir.join("direct"), |w, rng| in_place(w, rng, true));
            start(dir.join("replace"), replace);
        }
        for path in &options.rollback {
            // In mode DELETE even synchronous=FULL does not make the last commit durable: the journal's removal is not synced.
            start(path.clone(), |w, _| sqlite(w, "TRUNCATE"));
        }
        for path in &options.wal {
            start(path.clone(), |w, _| sqlite(w, "WAL"));
        }
    });
    Ok(())
}

/// A writer's place: its folder, or its database.
struct Writer<'a> {
    host: &'a Host,
    seed: u64,
    path: &'a str,
}

impl Writer<'_> {
    /// Makes the folder and its name durable.
    fn folder(&self) -> std::io::Result<File> {
        std::fs::create_dir(self.path)?;
        let parent = PathBuf::from(self.path).parent().map(PathBuf::from).unwrap_or_default();
        File::open(parent)?.sync_all()?;
        File::open(self.path)
    }
}

/// Log files: records of any size and alignment, some of them between two syncs.
fn append(w: &Writer, rng: &mut Rng) -> std::io::Result<()> {
    let folder = w.folder()?;
    let mut buffer = Vec::new();
    for number in 0.. {
        let path = format!("{}/{number}", w.path);
        let key = content::key(w.seed, &path);
        w.host.say(format_args!("file {path} append"))?;
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path)?;
        folder.sync_all()?;
        let (mut len, full) = (0, rng.between(200_000, 3_000_000));
        while len < full {
            for _ in 0..rng.between(1, 4) {
                let most = *[100, 5_000, 70_000, 300_000].get(rng.between(0, 3) as usize).unwrap_or(&1);
                buffer.resize(rng.between(1, most) as usize, 0);
                content::fill(key, len, &mut buffer);
                len += buffer.len() as u64;
                w.host.say(format_args!("begin {path} {len}"))?;
                file.write_all(&buffer)?;
            }
            if rng.between(0, 1) == 0 {
                file.sync_data()?
            } else {
                file.sync_all()?
            };
            w.host.say(format_args!("kept {path} {len}"))?;
        }
    }
    Ok(())
}

/// A buffer whose start is a multiple of 4096 in memory, as O_DIRECT wants it.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Aligned(bytes, start)
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.0[self.1..self.1 + len]
    }
}

/// A table of records that are overwritten in any order.
fn in_place(w: &Writer, rng: &mut Rng, direct: bool) -> std::io::Result<()> {
    let folder = w.folder()?;
    let path = format!("{}/table", w.path);
    let key = content::key(w.seed, &path);
    // Past the page cache whole blocks are written; through it, records that begin and end inside of blocks.
    let sectors =
        if direct { 8 * rng.between(1, 6) } else { *[1, 3, 8, 21].get(rng.between(0, 3) as usize).unwrap_or(&8) };
    let records = 1_500_000 / (sectors * SECTOR as u64);
    let len = sectors as usize * SECTOR;
    let mut buffer = Aligned::new(len);
    let mut write = |file: &File, record: u64, version: u64| {
        let bytes = buffer.bytes(len);
        for (i, sector) in bytes.chunks_mut(SECTOR).enumerate() {
            sector.copy_from_slice(&content::sector(key, version, record * sectors + i as u64));
        }
        file.write_all_at(bytes, record * len as u64)
    };
    w.host.say(format_args!("file {path} inplace {sectors} {records}"))?;
    let mut file = File::create_new(&path)?;
    for record in 0..records {
        write(&file, record, 1)?;
    }
    file.sync_all()?;
    folder.sync_all()?;
    w.host.say(format_args!("made {path} 1"))?;
    if direct {
        file = OpenOptions::new().write(true).custom_flags(DIRECT_DSYNC).open(&path)?;
    }
    let mut versions = vec![1; records as usize];
    loop {
        let batch: Vec<u64> =
            (0..if direct { 1 } else { rng.between(1, 6) }).map(|_| rng.between(0, records - 1)).collect();
        for record in &batch {
            let version = &mut versions[*record as usize];
            *version += 1;
            w.host.say(format_args!("begin {path} {record} {version}"))?;
            write(&file, *record, *version)?;
        }
        if !direct {
            file.sync_data()?;
        }
        for record in &batch {
            w.host.say(format_args!("kept {path} {record} {}", versions[*record as usize]))?;
        }
    }
}

/// Files that are written aside and renamed over.
fn replace(w: &Writer, rng: &mut Rng) -> std::io::Result<()> {
    let folder = w.folder()?;
    let mut versions = [0u64; 6];
    for number in 0..versions.len() {
        w.host.say(format_args!("file {}/{number} replace", w.path))?;
    }
    loop {
        let number = rng.between(0, versions.len() as u64 - 1) as usize;
        let path = format!("{}/{number}", w.path);
        versions[number] += 1;
        let version = versions[number];
        let aside = format!("{path}.new");
        w.host.say(format_args!("begin {path} {version}"))?;
        let mut file = File::create(&aside)?;
        file.write_all(&content::whole(content::key(w.seed, &path), version))?;
        file.sync_all()?;
        std::fs::rename(&aside, &path)?;
        folder.sync_all()?;
        w.host.say(format_args!("kept {path} {version}"))?;
    }
}

/// A row for each transaction, and a counter that must agree with the rows.
fn sqlite(w: &Writer, journal: &str) -> std::io::Result<()> {
    let path = w.path;
    let key = content::key(w.seed, path);
    w.host.say(format_args!("file {path} sqlite"))?;
    // It must end with the first error (-bail), or it would go on to the line that says "kept".
    let mut child = Command::new("stdbuf")
        .args(["-oL", "sqlite3", "-bail", "-batch", path])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else { return Ok(()) };
    let mut lines = BufReader::new(from).lines();
    writeln!(
        to,
        "PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=100;\n\
         CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v TEXT); CREATE TABLE IF NOT EXISTS c(n INTEGER);\n\
         SELECT 'rows '||coalesce(max(id),0) FROM t;"
    )?;
    let ended = || std::io::Error::other("sqlite3 has ended");
    let mut id: u64 = loop {
        let line = lines.next().ok_or_else(ended)??;
        if let Some(rows) = line.strip_prefix("rows ") {
            break rows.parse().map_err(std::io::Error::other)?;
        }
    };
    loop {
        id += 1;
        w.host.say(format_args!("begin {path} {id}"))?;
        let row = content::row(key, id);
        writeln!(
            to,
            "BEGIN; INSERT INTO t VALUES({id},'{row}'); DELETE FROM c; INSERT INTO c VALUES({id}); COMMIT; SELECT 'kept {id}';"
        )?;
        if lines.next().ok_or_else(ended)?? != format!("kept {id}") {
            return Err(ended());
        }
        w.host.say(format_args!("kept {path} {id}"))?;
    }
}
