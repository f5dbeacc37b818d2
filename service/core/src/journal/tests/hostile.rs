//! Whatever is in a ring, a scan ends, reads each block at most twice, and keeps no more than the ring could hold.

use proptest::prelude::*;

use super::*;

fn reseal(bytes: &mut [u8], length: usize) {
    bytes[8..12].fill(0);
    let crc = crc32c::crc32c(&bytes[..length]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// A ring with some history: it has wrapped, has payload and intents, and records in flight.
fn lived(rng: &mut Dice, copies: usize) -> Bench {
    let mut b = Bench::new(copies, 10 + rng.below(50) as u32);
    for seq in 1..40u64 {
        let room = b.ring.usage().capacity - b.ring.usage().used;
        let writes: Vec<Write> = (0..rng.below(5))
            .map(|n| {
                let (stripe, row) = (rng.below(4) as u32, rng.below(2) as u16);
                if rng.one_in(3) { intent(stripe, row, n as u16, seq) } else { payload(stripe, row, n as u16, seq) }
            })
            .collect();
        if writes.len() as u32 >= room {
            break;
        }
        b.record(&writes);
        if rng.one_in(2) && seq > 5 {
            let oldest = b.ring.flush_point() + 1;
            b.release(oldest);
        }
    }
    b
}

fn check(copies: &[Vec<u8>], blocks: u32, seed: u64) -> Result<Replay, Fault> {
    let mut rng = Dice::new(seed);
    let piece = 1 + rng.below(20) as u32;
    let mut driver = Driver { piece, seed, ..Driver::default() };
    for _ in 0..rng.below(4) {
        driver.unreadable.insert((rng.below(copies.len()) as u8, rng.below(blocks as usize) as u32));
    }
    let result = driver.run(copies, blocks);
    assert!(driver.blocks <= 2 * u64::from(blocks) * copies.len() as u64);
    if let Ok(replay) = &result {
        let cells = blocks as usize * ENTRIES_MAX;
        assert!(replay.items().len() <= cells && replay.repairs.len() <= blocks as usize * copies.len());
        assert!(replay.rot.len() <= blocks as usize);
        assert!(replay.rot.windows(2).all(|w| w[0].last < w[1].first));
        assert!(replay.rot.iter().all(|r| r.first <= r.last && r.last < replay.summary.end));
        assert!(replay.summary.blocks < u64::from(blocks));
        for item in replay.items() {
            assert!(item.sequence >= replay.anchor.tail && item.sequence < replay.summary.end);
            if let Some(p) = item.payload {
                let bytes = &copies[usize::from(p.copy)][p.block as usize * BLOCK..][..BLOCK];
                assert_eq!(crc32c::crc32c(bytes), item.crc, "what is named is whole");
            }
        }
        for r in &replay.repairs {
            assert!(r.block < blocks && r.to != 0);
            assert!(usize::from(r.from) < copies.len() && r.to >> copies.len() == 0 && r.to >> r.from & 1 == 0);
        }
        // Another order of answers, another piece: the same result.
        let again = Driver { piece: piece + 7, seed: seed ^ 1, unreadable: driver.unreadable, ..Driver::default() }
            .run(copies, blocks);
        assert!(Ok(replay) == again.as_ref(), "{replay:?}\n{again:?}");
    }
    result
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_no_ring(seed in any::<u64>(), blocks in 1u32..20, copies in 1usize..4) {
        let mut rng = Dice::new(seed);
        let copies: Vec<Vec<u8>> = (0..copies)
            .map(|_| (0..blocks as usize * BLOCK / 8).flat_map(|_| rng.next().to_le_bytes()).collect())
            .collect();
        prop_assert!(check(&copies, blocks, seed).is_err());
    }

    /// Valid rings with blocks spoiled, swapped, copied, cleared, and with fields changed under a right checksum.
    #[test]
    fn spoiled_rings_are_read_to_their_end(seed in any::<u64>(), copies in 1usize..4) {
        let mut rng = Dice::new(seed);
        let mut b = lived(&mut rng, copies);
        for _ in 0..1 + rng.below(12) {
            let copy = rng.below(copies);
            let block = if rng.one_in(4) { rng.below(2) } else { rng.below(b.blocks as usize) } as u32;
            let other = b.copies[copy][rng.below(b.blocks as usize) * BLOCK..][..BLOCK].to_vec();
            let noise = rng.next();
            let at = rng.below(120);
            let extreme = [0, 1, 2, 3, 200, 201, 255, u64::MAX, u64::MAX - 1, 1 << 62, (1 << 62) - 1, 1 << 32, noise];
            let value = extreme[rng.below(extreme.len())].to_le_bytes();
            let size = [1, 2, 4, 8][rng.below(4)];
            let aligned = at / size * size;
            let kind = rng.below(6);
            // Half of the changes are made to all copies alike, so that no other copy helps.
            let which = if rng.one_in(2) { 0..copies } else { copy..copy + 1 };
            for copy in which {
                let bytes = b.block_mut(copy, block);
                match kind {
                    0 => bytes[at] ^= noise as u8,
                    1 => bytes.fill(noise as u8),
                    2 => bytes.copy_from_slice(&other),
                    3 => bytes[512 * (at % 8)..][..512].copy_from_slice(&other[..512]),
                    _ => {
                        bytes[aligned..aligned + size].copy_from_slice(&value[..size]);
                        reseal(bytes, if block < 2 { 512 } else { BLOCK });
                    }
                }
            }
        }
        let _ = check(&b.copies, b.blocks, seed);
    }
}

/// The mutations above must get deep: most rings must still be read, and all kinds of answers come up.
#[test]
fn spoiled_rings_give_all_kinds_of_answers() {
    let (mut whole, mut rot, mut unknown_places, mut torn) = (0, 0, 0, 0);
    for seed in 0..300 {
        let mut rng = Dice::new(seed);
        let mut b = lived(&mut rng, 1);
        for _ in 0..1 + seed % 3 {
            let block = 2 + rng.below(b.blocks as usize - 2) as u32;
            b.spoil(block, &[0]);
        }
        let Ok(replay) = check(&b.copies, b.blocks, seed) else { continue };
        whole += usize::from(replay.rot.is_empty());
        rot += usize::from(!replay.rot.is_empty());
        unknown_places += usize::from(replay.doubtful_before().is_some());
        torn += usize::from(replay.summary.torn > 0);
    }
    assert!(whole > 5 && rot > 20 && unknown_places > 20 && torn > 5, "{whole} {rot} {unknown_places} {torn}");
}
