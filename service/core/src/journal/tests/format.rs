use super::super::format::{compose, decode_header};
use super::*;

fn anchor() -> Anchor {
    Anchor { identity: IDENTITY, epoch: EPOCH, generation: 9, tail: 0x0102, tail_block: 77, blocks: 500 }
}

fn header(writes: &[Write]) -> Vec<u8> {
    let (mut ring, _) = Ring::new(IDENTITY, EPOCH, 500);
    ring.anchored();
    let payload = writes.iter().filter(|w| w.entry.kind == Kind::Payload).count() as u16;
    let place = ring.append(payload).expect("room");
    record_bytes(&mut ring, &place, writes)[..BLOCK].to_vec()
}

fn decode(bytes: &[u8]) -> Option<(u64, u16, usize)> {
    let mut entries = Vec::new();
    let header = decode_header(bytes, &IDENTITY, EPOCH, FIRST_BLOCK, &mut entries);
    assert!(header.is_some() || entries.is_empty(), "nothing is added by a header that is none");
    header.map(|h| (h.sequence, h.payload, entries.len()))
}

/// Puts the header's own checksum right again after a change.
fn reseal(bytes: &mut [u8]) {
    bytes[8..12].fill(0);
    let crc = crc32c::crc32c(bytes);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn constants_are_those_of_the_docs() {
    assert_eq!(ENTRIES_MAX, 200);
    assert_eq!(RECORD_BLOCKS_MAX, 201);
    assert_eq!(RING_BLOCKS_MIN, 404);
}

#[test]
fn an_anchor_is_these_bytes() {
    let mut bytes = vec![0xff; BLOCK];
    anchor().encode(&mut bytes);
    let mut expected = Vec::new();
    expected.extend(b"RAIDDJA1");
    expected.extend(&bytes[8..12]);
    expected.extend([3, 0, 0, 0]);
    expected.extend([0xa7; 16]);
    expected.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0xed, 0x5e, 0xed, 0x5e, 0xed, 0x5e, 0xed, 0x5e]);
    expected.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([2, 1, 0, 0, 0, 0, 0, 0]);
    expected.extend([77, 0, 0, 0]);
    expected.extend([0xf4, 1, 0, 0]);
    expected.extend([5, 0]);
    expected.resize(BLOCK, 0);
    assert_eq!(bytes, expected);
    expected[8..12].fill(0);
    assert_eq!(bytes[8..12], crc32c::crc32c(&expected[..512]).to_le_bytes());
    assert_eq!(Anchor::decode(&bytes, &IDENTITY, 500), Some(anchor()));
    assert_eq!(anchor().block(), 1);
}

#[test]
fn a_header_is_these_bytes() {
    let (mut ring, _) = Ring::new(IDENTITY, EPOCH, 500);
    ring.anchored();
    ring.append(0).expect("room");
    ring.durable(1);
    let place = ring.append(1).expect("room");
    let writes = [payload(0x0a0b, 0x1f, 4, 11), intent(2, 3, 1, 12)];
    let bytes = &record_bytes(&mut ring, &place, &writes)[..BLOCK];
    let mut expected = Vec::new();
    expected.extend(b"RAIDDJH1");
    expected.extend(&bytes[8..12]);
    expected.extend([3, 0, 0, 0]);
    expected.extend([0xa7; 16]);
    expected.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0xed, 0x5e, 0xed, 0x5e, 0xed, 0x5e, 0xed, 0x5e]);
    expected.extend([2, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([3, 0, 0, 0]);
    expected.extend([5, 0]);
    expected.extend([2, 0]);
    expected.extend([1, 0]);
    expected.resize(80, 0);
    expected.extend([0, 0, 0, 0, 0x0b, 0x0a, 0, 0, 0x1f, 0, 4, 0, 1, 0, 0, 0]);
    expected.extend(crc_of(11).to_le_bytes());
    expected.extend([0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 1, 0, 2, 0, 0, 0]);
    expected.extend(crc_of(12).to_le_bytes());
    expected.resize(BLOCK, 0);
    assert_eq!(bytes, expected);
    expected[8..12].fill(0);
    assert_eq!(bytes[8..12], crc32c::crc32c(&expected).to_le_bytes());
}

#[test]
fn every_flipped_bit_is_noticed() {
    let mut bytes = header(&[payload(1, 2, 3, 4), intent(5, 6, 7, 8)]);
    assert_eq!(decode(&bytes), Some((1, 1, 2)));
    for bit in 0..BLOCK * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode(&bytes), None, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    anchor().encode(&mut bytes);
    for bit in 0..512 * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Anchor::decode(&bytes, &IDENTITY, 500), None, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn what_belongs_to_another_ring_is_not_taken() {
    let bytes = header(&[payload(1, 2, 3, 4)]);
    let other = |identity: Identity, epoch: Epoch, block: u32| {
        decode_header(&bytes, &identity, epoch, block, &mut Vec::new()).is_some()
    };
    assert!(other(IDENTITY, EPOCH, 2));
    assert!(!other(Identity { array: [0; 16], ..IDENTITY }, EPOCH, 2));
    assert!(!other(Identity { volume: VolumeId(4), ..IDENTITY }, EPOCH, 2));
    assert!(!other(Identity { shard: 4, ..IDENTITY }, EPOCH, 2));
    assert!(!other(IDENTITY, Epoch { number: 6, ..EPOCH }, 2));
    assert!(!other(IDENTITY, Epoch { nonce: 6, ..EPOCH }, 2));
    assert!(!other(IDENTITY, EPOCH, 3), "a block that was written to the wrong place");
    let mut bytes = vec![0; BLOCK];
    anchor().encode(&mut bytes);
    assert_eq!(Anchor::decode(&bytes, &Identity { shard: 4, ..IDENTITY }, 500), None);
    assert_eq!(Anchor::decode(&bytes, &IDENTITY, 501), None, "a ring of another length");
    assert_eq!(Anchor::decode(&bytes[..511], &IDENTITY, 500), None);
}

#[test]
fn numbers_that_contradict_each_other_are_refused_though_the_checksum_is_right() {
    let whole = header(&[payload(1, 2, 3, 4), intent(5, 6, 7, 8)]);
    let changed = |at: usize, value: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        reseal(&mut bytes);
        decode(&bytes)
    };
    assert_eq!(changed(76, &[1]), Some((1, 1, 2)), "reserved bytes may be used later");
    assert_eq!(changed(70, &201u16.to_le_bytes()), None, "more entries than the block holds");
    assert_eq!(changed(70, &u16::MAX.to_le_bytes()), None);
    assert_eq!(changed(70, &0u16.to_le_bytes()), None, "payload without an entry");
    assert_eq!(changed(72, &2u16.to_le_bytes()), None, "more payload than entries");
    assert_eq!(changed(72, &u16::MAX.to_le_bytes()), None);
    assert_eq!(changed(56, &1u64.to_le_bytes()), None, "it cannot know itself durable");
    assert_eq!(changed(48, &u64::MAX.to_le_bytes()), None, "a sequence that sums would overflow with");
    assert_eq!(changed(80 + 12, &[3]), Some((1, 1, 2)), "an odd kind of a later version has payload");
    assert_eq!(changed(80 + 12, &[4]), None, "an even one has none");
    for (at, value) in [(56, 0u64), (56, u64::MAX), (64, 1), (64, 500), (64, u64::from(u32::MAX))] {
        let mut bytes = vec![0; BLOCK];
        anchor().encode(&mut bytes);
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()[..4]);
        bytes[at + 4..at + 8].copy_from_slice(&if at == 56 { value.to_le_bytes() } else { [0; 8] }[4..]);
        bytes[68..72].copy_from_slice(&500u32.to_le_bytes());
        bytes[8..12].fill(0);
        let crc = crc32c::crc32c(&bytes[..512]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Anchor::decode(&bytes, &IDENTITY, 500), None, "{at} {value}");
    }
}

#[test]
fn a_full_header_holds_what_was_put_in() {
    let writes: Vec<Write> =
        (0..200).map(|n| if n % 2 == 0 { payload(n, 1, 2, n.into()) } else { intent(n, 1, 2, n.into()) }).collect();
    let mut entries = Vec::new();
    let bytes = header(&writes);
    let found = decode_header(&bytes, &IDENTITY, EPOCH, FIRST_BLOCK, &mut entries).expect("a header");
    assert_eq!((found.sequence, found.durable, found.payload), (1, 0, 100));
    assert_eq!(entries.len(), 200);
    for (write, entry) in writes.iter().zip(&entries) {
        assert_eq!((entry.stripe, entry.row, entry.column), (write.entry.stripe, 1, 2));
        assert_eq!(entry.crc, crc_of(write.tag));
    }
}

/// A record that says something else than what is behind it must not get as far as the disk.
#[test]
fn a_wrong_header_is_never_made() {
    let refused = |f: &dyn Fn(&mut [u8])| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&mut vec![0; BLOCK]))).is_err()
    };
    let (mut ring, _) = Ring::new(IDENTITY, EPOCH, 500);
    ring.anchored();
    let place = ring.append(1).expect("room");
    let put = |bytes: &mut [u8], n: u32| {
        compose(bytes, &IDENTITY, EPOCH, &place, (0..n).map(|s| payload(s, 0, 0, 0).entry));
    };
    assert!(!refused(&|b| put(b, 1)));
    assert!(refused(&|b| put(b, 0)));
    assert!(refused(&|b| put(b, 2)));
    assert!(refused(&|b| put(&mut b[1..], 1)));
    assert!(refused(&|b| compose(b, &IDENTITY, EPOCH, &place, (0..201).map(|s| intent(s, 0, 0, 0).entry))));
    assert!(refused(&|b| seal(b, [1])), "not composed");
    let sealed = |n: usize| {
        refused(&|b| {
            put(b, 1);
            seal(b, vec![1; n]);
        })
    };
    assert!(sealed(0) && !sealed(1) && sealed(2));
}
