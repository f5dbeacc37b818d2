//! What the machine does meanwhile: the CPU time of other processes, and its memory-copy rate.

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The CPU use of a process between two moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// The process.
    pub pid: u32,
    /// Cores that it kept busy: CPU seconds of all its threads per second.
    pub cores: f64,
    /// The share of one core that its busiest thread used. A target that polls without end shows 1 always.
    pub busiest_thread: f64,
    /// Of `cores`, the part inside the kernel.
    pub system: f64,
}

/// The CPU time of each thread of a process, at one moment.
pub struct CpuClock {
    pid: u32,
    at: Instant,
    /// Thread, user ticks, system ticks.
    threads: Vec<(u32, u64, u64)>,
}

/// The unit of the times in `/proc`: USER_HZ, 100 on every architecture that Linux has.
const TICKS_PER_SECOND: f64 = 100.0;

impl CpuClock {
    /// Reads the clock.
    ///
    /// # Errors
    ///
    /// If there is no such process, or `/proc` is not to be had.
    pub fn read(pid: u32) -> Result<CpuClock, String> {
        let folder = format!("/proc/{pid}/task");
        let tasks = fs::read_dir(&folder).map_err(|e| format!("cannot read {folder}: {e}; is the process alive?"))?;
        let mut threads = vec![];
        for task in tasks.flatten() {
            let Some(id) = task.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
            // A thread that ended since the listing has no time that matters.
            let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { continue };
            if let Some((user, system)) = parse_stat(&stat) {
                threads.push((id, user, system));
            }
        }
        Ok(CpuClock { pid, at: Instant::now(), threads })
    }

    /// The use since an earlier reading.
    pub fn since(&self, earlier: &CpuClock) -> CpuUse {
        let seconds = (self.at - earlier.at).as_secs_f64();
        let (mut user, mut system, mut busiest) = (0, 0, 0);
        for (id, u, s) in &self.threads {
            let before = earlier.threads.iter().find(|t| t.0 == *id).map_or((0, 0), |t| (t.1, t.2));
            let (u, s) = (u.saturating_sub(before.0), s.saturating_sub(before.1));
            user += u;
            system += s;
            busiest = busiest.max(u + s);
        }
        let cores = |ticks: u64| ticks as f64 / TICKS_PER_SECOND / seconds;
        CpuUse { pid: self.pid, cores: cores(user + system), busiest_thread: cores(busiest), system: cores(system) }
    }
}

/// User and system ticks of a `stat` line. The name may hold anything, parentheses and blanks included.
fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    // After the name comes field 3; 14 and 15 are the times.
    let user = fields.nth(11)?.parse().ok()?;
    let system = fields.next()?.parse().ok()?;
    Some((user, system))
}

/// The rate of plain copies from memory to memory on this core, in GiB/s of data copied. Takes 60 ms and 64 MiB.
pub fn memcpy_rate() -> f64 {
    const PIECE: usize = 64 << 10;
    const PIECES: usize = 512;
    let src = vec![0x5au8; PIECE * PIECES];
    let mut dst = vec![0u8; PIECE * PIECES];
    let copy = |dst: &mut [u8], i: usize| {
        let at = i * PIECE;
        dst[at..at + PIECE].copy_from_slice(black_box(&src[at..at + PIECE]));
    };
    (0..PIECES).for_each(|i| copy(&mut dst, i));
    let start = Instant::now();
    let mut copied = 0u64;
    while start.elapsed() < Duration::from_millis(50) {
        for i in 0..PIECES / 8 {
            copy(&mut dst, (copied as usize / PIECE + i) % PIECES);
        }
        copied += (PIECE * PIECES / 8) as u64;
        black_box(&dst);
    }
    copied as f64 / start.elapsed().as_secs_f64() / f64::from(1 << 30)
}

/// Pins this thread to a core.
///
/// # Errors
///
/// If there is no such core, or this process may not use it.
pub fn pin(core: usize) -> Result<(), String> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let Some(id) = allowed.iter().find(|c| c.id == core) else {
        let list: Vec<_> = allowed.iter().map(|c| c.id.to_string()).collect();
        return Err(format!("core {core} is not to be had; this process may use {}", list.join(", ")));
    };
    if core_affinity::set_for_current(*id) { Ok(()) } else { Err(format!("the system refused to pin to core {core}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_with_a_nasty_name() {
        let line = "42 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        assert_eq!(parse_stat(line), Some((11, 12)));
        assert_eq!(parse_stat("nonsense"), None);
    }

    #[test]
    fn the_use_is_the_difference_per_second() {
        let at = Instant::now();
        let earlier = CpuClock { pid: 7, at, threads: vec![(1, 100, 10), (2, 0, 0)] };
        let later = CpuClock { pid: 7, at: at + Duration::from_secs(2), threads: vec![(1, 200, 110), (3, 100, 0)] };
        let used = later.since(&earlier);
        assert_eq!(used, CpuUse { pid: 7, cores: 1.5, busiest_thread: 1.0, system: 0.5 });
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = CpuClock::read(u32::MAX).err().unwrap();
        assert!(error.contains(&u32::MAX.to_string()), "{error}");
        assert!(CpuClock::read(std::process::id()).is_ok());
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        assert!(pin(99_999).unwrap_err().contains("99999"));
    }
}
