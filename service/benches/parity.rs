//! Every parity kernel that this CPU can run, on pieces that stay in its cache. `raidbench parity` measures from memory too.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use raid_core::gf;
use raidd::parity::{KERNELS, combine_slices};

/// Bytes of each member's piece: the default chunk.
const CHUNK: usize = 64 << 10;
/// Starts of pieces are staggered by this much, as the pool's are.
const STAGGER: usize = 512;
/// Data columns.
const DATA: usize = 7;

fn parity(c: &mut Criterion) {
    let mut memory = vec![0x5a; (DATA + 2) * (CHUNK + STAGGER)];
    let mut pieces = memory.chunks_exact_mut(CHUNK + STAGGER).map(|piece| &mut piece[..CHUNK]);
    let mut outputs: Vec<&mut [u8]> = pieces.by_ref().take(2).collect();
    let sources: Vec<&[u8]> = pieces.map(|piece| &*piece).collect();
    let coefficients = |of: &dyn Fn(usize) -> [u8; 2]| -> Vec<(&[u8], [u8; 2])> {
        sources.iter().enumerate().map(|(i, source)| (*source, of(i))).collect()
    };
    let q = |i: usize| gf::exp(i as u32);
    // The first two data columns are lost; the sources are the others, P and Q.
    let have = (1 << (DATA + 2)) - 4;
    let lost = [0, 1].map(|column| gf::recover(DATA as u16, have, column).expect("two parities for two columns"));
    let mut group = c.benchmark_group("parity");
    group.throughput(Throughput::Bytes((DATA * CHUNK) as u64));
    for kernel in KERNELS.iter().filter(|kernel| kernel.available()) {
        for (operation, count, terms) in [
            ("xor", 1, coefficients(&|_| [1, 0])),
            ("pq", 2, coefficients(&|i| [1, q(i)])),
            ("recover", 2, coefficients(&|i| lost.map(|coefs| coefs[i + 2]))),
        ] {
            group.bench_function(format!("{operation}, {}", kernel.name()), |b| {
                b.iter(|| combine_slices(kernel, &mut outputs[..count], false, black_box(&terms)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, parity);
criterion_main!(benches);
