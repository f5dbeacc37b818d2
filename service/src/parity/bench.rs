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
/// The most buffers that one operation needs: ten sources and two destinations.
const BUFFERS: usize = 12;
/// Sets of buffers for the cold figures: 156 MiB, several times what a core gets of the last cache.
const COLD_SETS: usize = 208;

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
    /// False if the same buffers are used over and over, so that they are in the second cache; true if each call gets
    /// others, so that they come from memory.
    pub cold: bool,
    /// Source bytes per second, in GiB/s.
    pub gib_per_s: f64,
}

/// All figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The kernel that the daemon would use.
    pub chosen: &'static str,
    /// The figures. The first are plain copies, the yardstick for all others.
    pub rows: Vec<BenchRow>,
}

/// Measures every kernel that this CPU can run. Takes about five seconds of one core, and 160 MiB of memory.
pub fn bench_report() -> BenchReport {
    let memory = Memory::new(COLD_SETS * BUFFERS);
    let mut rows = vec![];
    for cold in [false, true] {
        for (operation, function) in
            [("copy", copy as unsafe fn(*mut u8, *const u8, usize)), ("copy_streaming", copy_streaming)]
        {
            let gib_per_s = rate(CHUNK, cold, |set| {
                let (dst, src) = (memory.at(set, 0), memory.at(set, 1));
                // SAFETY: two buffers of CHUNK bytes.
                unsafe { function(dst, black_box(src), CHUNK) }
            });
            rows.push(BenchRow { kernel: "memory", operation, sources: 1, bytes: CHUNK, cold, gib_per_s });
        }
    }
    for kernel in KERNELS.iter().filter(|k| k.available()) {
        let mut row = |operation, outputs, cold, sources, coef: &dyn Fn(usize) -> [u8; 2]| {
            let gib_per_s = measure(kernel, outputs, operation == "delta", cold, &memory, sources, coef);
            rows.push(BenchRow { kernel: kernel.name(), operation, sources, bytes: CHUNK, cold, gib_per_s });
        };
        for (sources, cold) in [(3, false), (7, false), (10, false), (10, true)] {
            row("xor", 1, cold, sources, &|_| [1, 0]);
            row("pq", 2, cold, sources, &|i| [1, 1 << (i % 8)]);
            row("recover2", 2, cold, sources, &|i| [17 + i as u8, 99 + i as u8]);
        }
        row("delta", 2, false, 2, &|_| [1, 8]);
    }
    BenchReport { chosen: super::kernel().name(), rows }
}

fn measure(
    kernel: &Kernel,
    outputs: usize,
    accumulate: bool,
    cold: bool,
    memory: &Memory,
    sources: usize,
    coef: &dyn Fn(usize) -> [u8; 2],
) -> f64 {
    rate(CHUNK * sources, cold, |set| {
        let dst = [memory.at(set, 0), memory.at(set, 1)];
        let mut terms: [Term; BUFFERS - 2] = [(std::ptr::null(), [0; 2]); BUFFERS - 2];
        for (i, term) in terms[..sources].iter_mut().enumerate() {
            *term = (memory.at(set, 2 + i).cast_const(), coef(i));
        }
        // SAFETY: the kernel is available; all buffers have CHUNK bytes and are disjoint.
        unsafe { combine(kernel, CHUNK, &dst[..outputs], accumulate, black_box(&terms[..sources])) }
    })
}

/// The median rate of a call that reads `bytes`, in GiB/s. The call is told which set of buffers to use.
fn rate(bytes: usize, cold: bool, mut call: impl FnMut(usize)) -> f64 {
    let sets = if cold { COLD_SETS } else { 1 };
    let mut calls = 0usize;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (start, first) = (Instant::now(), calls);
            while start.elapsed() < ROUND {
                for _ in 0..8 {
                    call(calls % sets);
                    calls += 1;
                }
            }
            bytes as f64 * (calls - first) as f64 / start.elapsed().as_secs_f64() / f64::from(1 << 30)
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
        let mut bytes = vec![0x5a; buffers * (CHUNK + STAGGER)];
        let base = bytes.as_mut_ptr();
        Memory { bytes, base }
    }

    fn at(&self, set: usize, buffer: usize) -> *mut u8 {
        let offset = (set * BUFFERS + buffer) * (CHUNK + STAGGER);
        assert!(offset + CHUNK <= self.bytes.len(), "there is no buffer {buffer} in set {set}");
        self.base.wrapping_add(offset)
    }
}
