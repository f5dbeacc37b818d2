//! The speed of the kernels on this machine, for `raidd bench parity`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{KERNELS, Kernel, Term, combine, copy, copy_streaming};

/// Bytes of each member's piece: the default chunk.
const CHUNK: usize = 64 << 10;
/// Each figure is the median of this many rounds.
const ROUNDS: usize = 7;
/// The length of a round.
const ROUND: Duration = Duration::from_millis(20);
/// Starts of buffers are staggered by this much, as the pool's are: page-aligned starts collide in the cache's sets.
const STAGGER: usize = 512;

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    /// The kernel's name, or `memory`.
    pub kernel: &'static str,
    /// What was computed: `xor`, `pq`, `delta`, `recover2`, `copy`, `copy_streaming`.
    pub operation: &'static str,
    /// Sources.
    pub sources: usize,
    /// Bytes in each source.
    pub bytes: usize,
    /// Source bytes per second, in GiB/s.
    pub gib_per_s: f64,
}

/// All figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The kernel that the daemon would use.
    pub chosen: &'static str,
    /// The machine's plain copy rate in the same run, in GiB/s of data copied: the yardstick for all others. Source and
    /// destination fit in the cache, as the kernels' do.
    pub copy_gib_per_s: f64,
    /// The figures.
    pub rows: Vec<BenchRow>,
}

/// Measures every kernel that this CPU can run. Takes a few seconds of one core.
pub fn bench_report() -> BenchReport {
    let memory = Memory::new(12);
    let mut rows = vec![];
    for (operation, function) in
        [("copy", copy as unsafe fn(*mut u8, *const u8, usize)), ("copy_streaming", copy_streaming)]
    {
        let (dst, src) = (memory.at(0), memory.at(1));
        // SAFETY: two buffers of CHUNK bytes.
        let gib_per_s = rate(CHUNK, || unsafe { function(dst, black_box(src), CHUNK) });
        rows.push(BenchRow { kernel: "memory", operation, sources: 1, bytes: CHUNK, gib_per_s });
    }
    let copy_gib_per_s = rows[0].gib_per_s;
    for kernel in KERNELS.iter().filter(|k| k.available()) {
        for sources in [3, 7, 10] {
            rows.push(measure(kernel, "xor", 1, false, &memory, sources, |_| [1, 0]));
            rows.push(measure(kernel, "pq", 2, false, &memory, sources, |i| [1, 1 << (i % 8)]));
            rows.push(measure(kernel, "recover2", 2, false, &memory, sources, |i| [17 + i as u8, 99 + i as u8]));
        }
        rows.push(measure(kernel, "delta", 2, true, &memory, 2, |_| [1, 8]));
    }
    BenchReport { chosen: super::kernel().name(), copy_gib_per_s, rows }
}

fn measure(
    kernel: &'static Kernel,
    operation: &'static str,
    outputs: usize,
    accumulate: bool,
    memory: &Memory,
    sources: usize,
    coef: impl Fn(usize) -> [u8; 2],
) -> BenchRow {
    let dst = [memory.at(0), memory.at(1)];
    let terms: Vec<Term> = (0..sources).map(|i| (memory.at(2 + i).cast_const(), coef(i))).collect();
    // SAFETY: all buffers have CHUNK bytes and are disjoint.
    let gib_per_s = rate(CHUNK * sources, || unsafe {
        combine(kernel, CHUNK, &dst[..outputs], accumulate, black_box(&terms));
    });
    BenchRow { kernel: kernel.name(), operation, sources, bytes: CHUNK, gib_per_s }
}

/// The median rate of a call that moves `bytes`, in GiB/s.
fn rate(bytes: usize, mut call: impl FnMut()) -> f64 {
    call();
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let mut calls = 0u32;
            while start.elapsed() < ROUND {
                for _ in 0..8 {
                    call();
                }
                calls += 8;
            }
            bytes as f64 * f64::from(calls) / start.elapsed().as_secs_f64() / f64::from(1 << 30)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Buffers of [`CHUNK`] bytes with staggered starts, all touched.
struct Memory {
    bytes: Vec<u8>,
    base: *mut u8,
}

impl Memory {
    fn new(buffers: usize) -> Memory {
        let mut bytes: Vec<u8> = (0..buffers * (CHUNK + STAGGER)).map(|i| ((i * 31) >> 3) as u8).collect();
        let base = bytes.as_mut_ptr();
        Memory { bytes, base }
    }

    fn at(&self, buffer: usize) -> *mut u8 {
        let offset = buffer * (CHUNK + STAGGER);
        assert!(offset + CHUNK <= self.bytes.len(), "there is no buffer {buffer}");
        self.base.wrapping_add(offset)
    }
}
