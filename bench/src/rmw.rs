//! The read-modify-write probe of a drive: read, change, write back in place, one after the other, each write durable
//! before the next read. It is what a partial-stripe write costs on a member, and it tells drives apart that look the
//! same by their data sheets.

mod drive;
#[cfg(test)]
mod tests;

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Failure;
use crate::pattern::Random;
use crate::report::{Report, TableData, number};
use crate::stats::{Latencies, Percentiles};
use crate::units::{parse_size, show_size};
use drive::{Drive, Positioned};

/// The drives take turns this many times, so that a change of the machine's load meets all of them.
const TURNS: u64 = 20;
/// The largest access.
const LARGEST: u64 = 64 << 20;

/// The arguments of `raidbench rmw`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "raidbench rmw [OPTIONS] PATH... SIZE COUNT")]
pub struct RmwArgs {
    /// One or more drives (block devices, or files of the size to test); then the bytes of each access (4k, 64KiB); then
    /// the number of accesses to each drive
    #[arg(value_name = "PATH... SIZE COUNT", required = true, num_args = 3..)]
    arguments: Vec<String>,
    /// Do not ask before the content of the drives is destroyed
    #[arg(long)]
    yes: bool,
    /// Where the random offsets start from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The arguments, checked.
#[derive(Debug, PartialEq)]
struct Plan {
    paths: Vec<PathBuf>,
    size: u64,
    count: u64,
}

impl Plan {
    fn new(arguments: &[String]) -> Result<Plan, String> {
        let [paths @ .., size, count] = arguments else { return Err("rmw wants PATH... SIZE COUNT".into()) };
        let size = parse_size(size).map_err(|e| format!("SIZE: {e}"))?;
        if size == 0 || !size.is_multiple_of(512) {
            return Err(format!("SIZE: {size} is not a multiple of 512 bytes, the smallest logical block of a drive"));
        }
        if size > LARGEST {
            return Err(format!("SIZE: {} is more than {}", show_size(size), show_size(LARGEST)));
        }
        let count: u64 = count
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| format!("COUNT: {count:?} is not a number of accesses, one or more"))?;
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        for (i, path) in paths.iter().enumerate() {
            if paths[..i].contains(path) {
                return Err(format!("{} is named twice", path.display()));
            }
        }
        Ok(Plan { paths, size, count })
    }
}

/// What one drive did.
#[derive(Serialize)]
struct Outcome {
    path: String,
    direct: bool,
    size: u64,
    count: u64,
    /// Accesses (a read and a write each) per second.
    per_second: f64,
    /// Bytes read and as many written, per second, in MiB.
    mib_per_s: f64,
    latency_us: Option<Percentiles>,
    read_latency_us: Option<Percentiles>,
    write_latency_us: Option<Percentiles>,
}

/// A drive and what was measured on it so far.
struct Probe {
    drive: Drive,
    random: Random,
    buffer: Buffer,
    busy: Duration,
    total: Latencies,
    reads: Latencies,
    writes: Latencies,
}

/// Runs the probe.
///
/// # Errors
///
/// Wrong arguments, a drive that cannot be used, an answer other than the path, a failed access.
pub fn run(args: &RmwArgs, report: &mut Report) -> Result<(), Failure> {
    let plan = Plan::new(&args.arguments).map_err(Failure::Usage)?;
    let mut probes = vec![];
    for path in &plan.paths {
        let drive = Drive::open(path, plan.size).map_err(Failure::Run)?;
        if let Some(twin) = probes.iter().find(|p: &&Probe| p.drive.same_as(&drive)) {
            let message = format!("{} and {} are the same drive", twin.drive.path.display(), path.display());
            return Err(Failure::Usage(message));
        }
        probes.push(Probe {
            random: Random::new(args.seed),
            buffer: Buffer::new(plan.size as usize),
            busy: Duration::ZERO,
            total: Latencies::new(),
            reads: Latencies::new(),
            writes: Latencies::new(),
            drive,
        });
    }
    if !args.yes {
        let drives: Vec<&Drive> = probes.iter().map(|p| &p.drive).collect();
        confirm(&drives, &mut std::io::stdin().lock(), &mut std::io::stderr()).map_err(Failure::Usage)?;
    }
    for turn in 0..TURNS.min(plan.count) {
        let turns = TURNS.min(plan.count);
        let share = plan.count / turns + u64::from(turn < plan.count % turns);
        for probe in &mut probes {
            for _ in 0..share {
                probe.access(plan.size).map_err(Failure::Run)?;
            }
        }
    }
    let results: Vec<Outcome> = probes.iter().map(|p| p.result(&plan)).collect();
    show(&plan, &results, report);
    for result in &results {
        report.result(result)?;
    }
    Ok(())
}

/// Names what will be destroyed, and wants each path typed.
fn confirm(drives: &[&Drive], input: &mut impl BufRead, output: &mut impl Write) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("cannot ask before destroying ({e}); say --yes if you are sure");
    for drive in drives {
        let path = drive.path.display().to_string();
        writeln!(output, "rmw overwrites {path} ({}) at random places. What it holds is LOST.", show_size(drive.bytes))
            .and_then(|()| write!(output, "Type the path to go on: "))
            .and_then(|()| output.flush())
            .map_err(failed)?;
        let mut line = String::new();
        input.read_line(&mut line).map_err(failed)?;
        if line.trim() != path {
            return Err(format!(
                "{path} was not confirmed; nothing was written. Type its path when asked, or say --yes"
            ));
        }
    }
    Ok(())
}

impl Probe {
    /// One access: read, change, write back in place.
    fn access(&mut self, size: u64) -> Result<(), String> {
        let offset = self.random.below(self.drive.bytes / size) * size;
        let buffer = self.buffer.bytes();
        let start = Instant::now();
        read_full(&self.drive, buffer, offset).map_err(|e| self.drive.failed("read", offset, &e))?;
        let between = Instant::now();
        change(buffer);
        write_full(&self.drive, buffer, offset).map_err(|e| self.drive.failed("write", offset, &e))?;
        let end = Instant::now();
        self.busy += end - start;
        self.reads.record((between - start).as_nanos() as u64);
        self.writes.record((end - between).as_nanos() as u64);
        self.total.record((end - start).as_nanos() as u64);
        Ok(())
    }

    fn result(&self, plan: &Plan) -> Outcome {
        let per_second = plan.count as f64 / self.busy.as_secs_f64();
        Outcome {
            path: self.drive.path.display().to_string(),
            direct: self.drive.direct,
            size: plan.size,
            count: plan.count,
            per_second,
            mib_per_s: per_second * plan.size as f64 / f64::from(1 << 20),
            latency_us: self.total.summary(),
            read_latency_us: self.reads.summary(),
            write_latency_us: self.writes.summary(),
        }
    }
}

/// Changes each logical block, so that no drive can get away with comparing.
fn change(buffer: &mut [u8]) {
    for block in buffer.chunks_mut(512) {
        block[0] = block[0].wrapping_add(1);
    }
}

/// Reads all of the buffer, in as many reads as it takes.
fn read_full(drive: &impl Positioned, mut buffer: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !buffer.is_empty() {
        match drive.read_at(buffer, offset) {
            Ok(0) => return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the drive ends here")),
            Ok(n) => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of the buffer, in as many writes as it takes.
fn write_full(drive: &impl Positioned, mut buffer: &[u8], mut offset: u64) -> std::io::Result<()> {
    while !buffer.is_empty() {
        match drive.write_at(buffer, offset) {
            Ok(0) => return Err(std::io::Error::new(std::io::ErrorKind::WriteZero, "the drive takes no more")),
            Ok(n) => {
                buffer = &buffer[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Memory that starts at a page, which is what O_DIRECT wants of every drive.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    const ALIGN: usize = 4096;

    fn new(len: usize) -> Buffer {
        let memory = vec![0; len + Self::ALIGN];
        let start = memory.as_ptr().align_offset(Self::ALIGN);
        Buffer { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

fn show(plan: &Plan, results: &[Outcome], report: &mut Report) {
    let title = format!("Read-modify-write of {}, {} accesses to each drive", show_size(plan.size), plan.count);
    let mut table = TableData::new(title, ["".to_owned()].into_iter().chain(results.iter().map(|r| r.path.clone())));
    let line = |name: &str, cell: &dyn Fn(&Outcome) -> String| {
        std::iter::once(name.to_owned()).chain(results.iter().map(cell)).collect::<Vec<_>>()
    };
    table.row(line("opened", &|r| if r.direct { "O_DIRECT | O_SYNC" } else { "O_SYNC (no O_DIRECT here)" }.into()));
    table.row(line("accesses/s", &|r| number(r.per_second)));
    table.row(line("MiB/s", &|r| number(r.mib_per_s)));
    table.row(line("times the first", &|r| format!("{:.2}", r.per_second / results[0].per_second)));
    type Part = fn(&Outcome) -> Option<Percentiles>;
    let parts: [(&str, Part); 3] =
        [("access", |r| r.latency_us), ("read", |r| r.read_latency_us), ("write", |r| r.write_latency_us)];
    for (name, part) in parts {
        let all: Vec<_> = results.iter().filter_map(part).map(|p| p.cells()).collect();
        for i in 0..all[0].len() {
            let cells = all.iter().map(|c| number(c[i].1));
            table.row(std::iter::once(format!("{name}, {} us", all[0][i].0)).chain(cells));
        }
    }
    report.print(table);
}
