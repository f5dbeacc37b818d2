use super::super::replay::resolve;
use super::*;

fn row(stripe: u32, row: u16) -> RowId {
    RowId { group: 0, stripe, row }
}

#[test]
fn an_empty_ring_has_nothing() {
    let replay = Bench::new(2, 50).replay();
    assert!(replay.is_empty());
    assert_eq!(replay.summary, Summary { end: 1, ..Summary::default() });
    assert_eq!((replay.anchor.generation, replay.anchor.epoch), (1, EPOCH));
}

#[test]
fn the_newest_payload_of_a_block_is_found() {
    let mut b = Bench::new(2, 60);
    b.record(&[payload(4, 1, 0, 1), payload(4, 1, 2, 2)]);
    b.record(&[payload(3, 9, 1, 3), payload(4, 1, 0, 4)]);
    b.record(&[payload(3, 8, 1, 5), payload(3, 8, 1, 6)]);
    let replay = b.replay();
    let (payloads, intents) = short(&replay, &b.copies, 1..7);
    assert_eq!(payloads, [(3, 8, 1, 6), (3, 9, 1, 3), (4, 1, 0, 4), (4, 1, 2, 2)]);
    assert_eq!(intents, []);
    assert_eq!(replay.summary, Summary { end: 4, records: 3, blocks: 9, torn: 0, repaired: 0 });
    assert_eq!(replay.items().len(), 4);
    assert_eq!((replay.rot, replay.repairs), (vec![], vec![]));
}

/// After a bypassed full-stripe write an older record of the same rows must not be replayed over it.
#[test]
fn an_intent_revokes_older_payload_of_its_row_and_no_newer_one() {
    let mut b = Bench::new(2, 60);
    b.record(&[payload(1, 0, 0, 1), payload(1, 0, 3, 2), payload(1, 1, 0, 3)]);
    b.record(&(0..4).map(|c| intent(1, 0, c, 10 + u64::from(c))).collect::<Vec<_>>());
    let (payloads, intents) = short(&b.replay(), &b.copies, 1..30);
    assert_eq!(payloads, [(1, 1, 0, 3)], "another row of the stripe is not touched");
    assert_eq!(intents, [(1, 0, 0, 10), (1, 0, 1, 11), (1, 0, 2, 12), (1, 0, 3, 13)]);
    // A partial write afterwards counts again; the intent still says what the other columns hold.
    b.record(&[payload(1, 0, 2, 20), payload(1, 0, 3, 21)]);
    let replay = b.replay();
    let (payloads, intents) = short(&replay, &b.copies, 1..30);
    assert_eq!(payloads, [(1, 0, 2, 20), (1, 0, 3, 21), (1, 1, 0, 3)]);
    assert_eq!(intents.len(), 4);
    let first = replay.rows().next().expect("a row");
    assert!(first.later.iter().all(|p| first.intents.iter().all(|i| p.sequence > i.sequence)));
    // The next intent displaces the one before it, and the payload between them.
    b.record(&(0..4).map(|c| intent(1, 0, c, 24 + u64::from(c))).collect::<Vec<_>>());
    let (payloads, intents) = short(&b.replay(), &b.copies, 1..30);
    assert_eq!(payloads, [(1, 1, 0, 3)]);
    assert_eq!(intents.iter().map(|i| i.3).collect::<Vec<_>>(), [24, 25, 26, 27]);
}

/// Write-back: data is logged alone, and parity when the row is written out. What comes after that is not in the parity.
#[test]
fn what_parity_covers_is_kept_apart_from_what_is_newer() {
    let mut b = Bench::new(2, 60);
    let replay = |b: &Bench| {
        let mut driver = Driver { data_columns: 3, ..Driver::default() };
        lists(&driver.run(&b.copies, b.blocks).expect("an anchor"), &b.copies, 1..30)
    };
    b.record(&[payload(1, 0, 0, 1), payload(1, 0, 1, 2)]);
    b.record(&[payload(1, 0, 0, 3)]);
    assert_eq!(replay(&b), [vec![], vec![(1, 0, 0, 3), (1, 0, 1, 2)], vec![]]);
    b.record(&[payload(1, 0, 3, 4)]);
    let settled = vec![(1, 0, 0, 3), (1, 0, 1, 2), (1, 0, 3, 4)];
    assert_eq!(replay(&b), [settled.clone(), vec![], vec![]]);
    // Without the 3, the 4 could give back no missing column.
    b.record(&[payload(1, 0, 0, 5), payload(1, 0, 2, 6)]);
    b.record(&[payload(1, 0, 0, 7)]);
    assert_eq!(replay(&b), [settled, vec![(1, 0, 0, 7), (1, 0, 2, 6)], vec![]]);
    b.record(&[payload(1, 0, 3, 8)]);
    assert_eq!(replay(&b)[0], [(1, 0, 0, 7), (1, 0, 1, 2), (1, 0, 2, 6), (1, 0, 3, 8)]);
    assert_eq!(replay(&b)[1], []);
    // An intent revokes both.
    b.record(&[payload(1, 0, 0, 9)]);
    b.record(&(0..4).map(|c| intent(1, 0, c, 10 + u64::from(c))).collect::<Vec<_>>());
    b.record(&[payload(1, 0, 1, 20)]);
    let [settled, later, intents] = replay(&b);
    assert_eq!((settled, later, intents.len()), (vec![], vec![(1, 0, 1, 20)], 4));
    // Write-through: data and parity in one record.
    b.record(&[payload(1, 0, 2, 21), payload(1, 0, 3, 22)]);
    assert_eq!(replay(&b)[0], [(1, 0, 1, 20), (1, 0, 2, 21), (1, 0, 3, 22)]);
}

#[test]
fn replay_begins_at_the_tail_and_goes_around() {
    let mut b = Bench::new(2, 12);
    for seq in 1..40 {
        // Three blocks each in a ring of ten: every place of the wrap comes up.
        b.record(&[payload(seq, 0, 0, seq.into()), payload(seq, 0, 1, 100 + u64::from(seq))]);
        if seq > 2 {
            b.release(u64::from(seq) - 2);
        }
        let from = seq.saturating_sub(1).max(1);
        let expected: Short = (from..=seq).flat_map(|s| [(s, 0, 0, s.into()), (s, 0, 1, 100 + u64::from(s))]).collect();
        let replay = b.replay();
        assert_eq!(short(&replay, &b.copies, 1..200).0, expected, "{seq}");
        assert_eq!(replay.summary.end, u64::from(seq) + 1);
        assert_eq!(replay.anchor.tail, u64::from(from));
    }
}

#[test]
fn what_one_copy_lost_another_one_gives() {
    let mut b = Bench::new(3, 60);
    let first = b.record(&[payload(1, 0, 0, 1), payload(1, 0, 1, 2)]);
    let second = b.record(&[payload(2, 0, 0, 3)]);
    let third = b.record(&[payload(3, 0, 0, 4)]);
    b.spoil(first.block, &[0, 1]);
    b.spoil(first.block + 2, &[1, 2]);
    b.spoil(second.block + 1, &[0]);
    let last = b.put(&[payload(4, 0, 0, 5)], &[1]);
    let replay = b.replay();
    assert_eq!(short(&replay, &b.copies, 1..6).0.len(), 5);
    assert_eq!(replay.rot, []);
    assert_eq!(replay.summary.records, 4);
    // The last header says that record 3 counted, so every copy had it and the records before: nothing to make safe.
    assert_eq!(last.durable, third.sequence);
    assert_eq!(
        replay.repairs,
        [Repair { block: last.block, from: 1, to: 0b101 }, Repair { block: last.block + 1, from: 1, to: 0b101 }]
    );
    assert_eq!(replay.summary.repaired, 5);
}

#[test]
fn a_record_being_written_ends_the_replay_and_what_is_behind_it() {
    let mut b = Bench::new(2, 60);
    b.record(&[payload(1, 0, 0, 1)]);
    let torn = b.put(&[payload(2, 0, 0, 2)], &[0, 1]);
    b.put(&[payload(3, 0, 0, 3)], &[0, 1]);
    b.put(&[payload(4, 0, 0, 4)], &[0]);
    for bad in [torn.block, torn.block + 1] {
        b.spoil(bad, &[0, 1]);
        let replay = b.replay();
        assert_eq!(short(&replay, &b.copies, 1..5).0, [(1, 0, 0, 1)]);
        assert_eq!((replay.rot, replay.repairs), (vec![], vec![]));
        assert_eq!(replay.summary, Summary { end: 2, records: 1, blocks: 2, torn: 3, repaired: 0 });
        b.spoil(bad, &[0, 1]);
    }
    // Nothing spoiled: all of it is whole, and is taken.
    let replay = b.replay();
    assert_eq!((replay.summary.records, replay.summary.torn), (4, 0));
}

/// The first bad payload must not end the replay although valid records follow.
#[test]
fn lost_payload_is_reported_and_replay_goes_on() {
    let mut b = Bench::new(2, 60);
    b.record(&[payload(1, 0, 0, 1), payload(1, 0, 3, 2)]);
    let rot = b.record(&[payload(1, 0, 0, 3), payload(1, 0, 3, 4), payload(7, 7, 7, 5), intent(5, 5, 0, 6)]);
    b.record(&[payload(2, 0, 0, 7)]);
    b.record(&[payload(3, 0, 0, 8)]);
    b.spoil(rot.block + 1, &[0, 1]);
    b.spoil(rot.block + 3, &[0, 1]);
    let replay = b.replay();
    let places = vec![(row(1, 0), 0), (row(7, 7), 7)];
    assert_eq!(replay.rot, [Rot { first: 2, last: 2, places }]);
    assert_eq!(replay.doubtful_before(), None, "it is known what is lost");
    assert_eq!(replay.summary, Summary { end: 5, records: 3, blocks: 11, torn: 0, repaired: 0 });
    // The older payload of the lost block is not brought back: it would be old data beside new parity.
    let first = replay.rows().next().expect("a row");
    assert_eq!(first.id, row(1, 0));
    let found: Vec<_> = first.later.iter().map(|p| (p.column, p.sequence, p.crc, p.payload.is_some())).collect();
    assert_eq!(found, [(0, 2, crc_of(3), false), (3, 2, crc_of(4), true)]);
    let ids: Vec<_> = replay.rows().map(|r| r.id).collect();
    assert_eq!(ids, [row(1, 0), row(2, 0), row(3, 0), row(5, 5), row(7, 7)]);
    // Written again later, it is no longer needed.
    b.record(&[payload(7, 7, 7, 9)]);
    let replay = b.replay();
    assert!(replay.rows().last().expect("a row").later[0].payload.is_some());
    assert_eq!(replay.rot.len(), 1);
}

#[test]
fn behind_a_lost_header_the_next_one_is_found() {
    let mut b = Bench::new(2, 100);
    b.record(&[payload(1, 0, 0, 1)]);
    let lost: Vec<Place> =
        (0..3).map(|n| b.record(&[payload(2, 0, 0, 10 + n), payload(2, 0, 1, 20 + n), intent(9, 9, 9, 1)])).collect();
    b.record(&[payload(3, 0, 0, 2)]);
    let end = b.record(&[payload(4, 0, 0, 3)]);
    lost.iter().for_each(|p| b.spoil(p.block, &[0, 1]));
    let replay = b.replay();
    assert_eq!(short(&replay, &b.copies, 1..30).0, [(1, 0, 0, 1), (3, 0, 0, 2), (4, 0, 0, 3)]);
    assert_eq!(replay.rot, [Rot { first: 2, last: 4, places: vec![] }]);
    assert_eq!(replay.doubtful_before(), Some(4));
    assert_eq!((replay.summary.end, replay.summary.records), (7, 3));
    // The same, and the last record, which nobody has called durable, is not whole.
    b.spoil(end.block + 1, &[0, 1]);
    let replay = b.replay();
    assert_eq!(replay.rot, [Rot { first: 2, last: 4, places: vec![] }]);
    assert_eq!((replay.summary.end, replay.summary.torn), (6, 1));
}

/// A gap of which the first half counted and the second half was being written.
#[test]
fn a_gap_may_be_rot_at_its_start_and_torn_at_its_end() {
    let mut b = Bench::new(1, 100);
    b.record(&[payload(1, 0, 0, 1)]);
    let rot = b.record(&[payload(2, 0, 0, 2)]);
    let torn = b.put(&[payload(3, 0, 0, 3)], &[0]);
    b.put(&[payload(4, 0, 0, 4)], &[0]);
    b.spoil(rot.block, &[0]);
    b.spoil(torn.block, &[0]);
    let replay = b.replay();
    assert_eq!(replay.rot, [Rot { first: 2, last: 2, places: vec![] }]);
    assert_eq!((replay.summary.end, replay.summary.records, replay.summary.torn), (3, 1, 2));
    assert_eq!(short(&replay, &b.copies, 1..5).0, [(1, 0, 0, 1)]);
}

/// A record without entries says that the ones before it counted: an idle writer's last record is not taken for torn.
#[test]
fn an_empty_record_vouches_for_those_before_it() {
    let mut b = Bench::new(2, 50);
    let last = b.record(&[payload(1, 0, 0, 1)]);
    b.spoil(last.block + 1, &[0, 1]);
    assert_eq!(b.replay().summary.end, 1, "nobody knows that it counted");
    b.record(&[]);
    let replay = b.replay();
    assert_eq!((replay.summary.end, replay.rot.len()), (3, 1));
}

/// A corrupt length must not make replay read past the record or the ring, not even with a right checksum.
#[test]
fn a_header_that_promises_more_than_the_ring_has_is_none() {
    let mut b = Bench::new(1, 30);
    b.record(&[payload(1, 0, 0, 1)]);
    let entries: Vec<Write> = (0..26).map(|n| payload(2, n, 0, 2)).collect();
    let (mut large, _) = Ring::new(IDENTITY, EPOCH, 300);
    large.anchored();
    large.append(1);
    let place = large.append(26).expect("room in the larger ring");
    let header = record_bytes(&mut large, &place, &entries)[..BLOCK].to_vec();
    b.block_mut(0, place.block).copy_from_slice(&header);
    let replay = b.replay();
    assert_eq!((replay.summary.end, replay.summary.torn), (2, 0));
    // 26 blocks behind the first record are all that there are, and one is the header.
    let (mut large, _) = Ring::new(IDENTITY, EPOCH, 300);
    large.anchored();
    large.append(1);
    let place = large.append(25).expect("room in the larger ring");
    let header = record_bytes(&mut large, &place, &entries[..25])[..BLOCK].to_vec();
    b.block_mut(0, place.block).copy_from_slice(&header);
    assert_eq!(b.replay().summary.torn, 1, "this one would fit, and is a torn record");
}

/// A sequence number that the blocks in between cannot account for is no record of this ring, whatever its checksum.
#[test]
fn a_header_from_the_future_is_none() {
    for (gap, sequence, taken) in
        [(0, 3, false), (0, 2, true), (1, 3, true), (1, 4, false), (3, 5, true), (3, 6, false)]
    {
        let mut b = Bench::new(1, 30);
        let first = b.record(&[payload(1, 0, 0, 1)]);
        let mut place = b.ring.append(0).expect("room");
        (place.block, place.sequence, place.durable) = (first.block + 2 + gap, sequence, sequence - 1);
        let bytes = record_bytes(&mut b.ring, &place, &[intent(9, 9, 9, 9)]);
        b.block_mut(0, place.block).copy_from_slice(&bytes);
        let end = b.replay().summary.end;
        assert_eq!(end, if taken { sequence + 1 } else { 2 }, "{sequence} after {gap} blocks");
    }
}

#[test]
fn records_of_an_older_epoch_are_never_taken() {
    let mut b = Bench::new(2, 40);
    for seq in 0..8 {
        b.record(&[payload(seq, 0, 0, 1), payload(seq, 0, 1, 2)]);
    }
    let before = b.replay();
    assert_eq!(before.summary.records, 8);
    let epoch = Epoch { number: EPOCH.number + 1, nonce: 77 };
    let (ring, anchor) = Ring::after(&before, epoch);
    assert_eq!(anchor.generation, before.anchor.generation + 1);
    assert_ne!(anchor.block(), before.anchor.block(), "the old anchor stays until the new one is durable");
    // The power goes when only one copy has the new anchor: it is the newest, and everything was replayed before it.
    anchor.encode(b.block_mut(1, anchor.block()));
    assert_eq!((b.replay().anchor, b.replay().items().len()), (anchor, 0));
    assert_eq!(b.replay().repairs, [Repair { block: anchor.block(), from: 1, to: 1 }]);
    b.anchor(&anchor);
    assert!(b.replay().is_empty());
    b.ring = ring;
    b.ring.anchored();
    // The new records lie among old ones whose headers are just as whole, and end before one of them.
    b.record(&[payload(100, 0, 0, 3), payload(100, 0, 1, 4)]);
    b.record(&[payload(101, 0, 0, 5), payload(101, 0, 1, 6)]);
    let replay = b.replay();
    assert_eq!(short(&replay, &b.copies, 1..7).0, [(100, 0, 0, 3), (100, 0, 1, 4), (101, 0, 0, 5), (101, 0, 1, 6)]);
    assert_eq!((replay.summary.end, replay.summary.torn), (3, 0));
    // The same with a torn record at the end, where the search goes through all the old ones.
    let torn = b.put(&[payload(102, 0, 0, 5)], &[0, 1]);
    b.spoil(torn.block, &[0, 1]);
    assert_eq!((b.replay().summary.end, b.replay().rot.len()), (3, 0));
    // An old ring's anchors may have higher generations; the epoch decides.
    let old = Anchor { epoch: EPOCH, generation: 1000, ..before.anchor };
    old.encode(b.block_mut(0, before.anchor.block()));
    assert_eq!(b.replay().anchor, anchor);
}

/// An initiator writes blocks that look like headers: the search behind a lost header must not fall for them.
#[test]
fn user_data_is_no_record() {
    let mut b = Bench::new(1, 60);
    b.record(&[payload(1, 0, 0, 1)]);
    let lost = b.record(&(0..6).map(|n| payload(2, n, 0, 1)).collect::<Vec<_>>());
    b.record(&[payload(3, 0, 0, 3)]);
    b.spoil(lost.block, &[0]);
    let mut forge = |epoch: Epoch| {
        for block in lost.block + 1..lost.block + 7 {
            let (mut forged, _) = Ring::new(IDENTITY, epoch, 60);
            forged.anchored();
            let mut place = forged.append(0).expect("room");
            (place.block, place.sequence, place.durable) = (block, 3, 2);
            let bytes = record_bytes(&mut forged, &place, &[intent(66, 6, 6, 1)]);
            b.block_mut(0, block).copy_from_slice(&bytes);
        }
        short(&b.replay(), &b.copies, 1..4)
    };
    assert_eq!(forge(EPOCH).1, [(66, 6, 6, 1)], "with the nonce it would be one");
    // It knows everything but the nonce.
    let (payloads, intents) = forge(Epoch { nonce: 0, ..EPOCH });
    assert_eq!(payloads, [(1, 0, 0, 1), (3, 0, 0, 3)]);
    assert_eq!(intents, []);
}

#[test]
fn a_record_in_the_wrong_place_is_not_taken() {
    let mut b = Bench::new(1, 60);
    b.record(&[intent(1, 0, 0, 1)]);
    let second = b.record(&[intent(2, 0, 0, 1)]);
    b.record(&[intent(3, 0, 0, 1)]);
    // The second one's block was written where a fourth would begin.
    let bytes = b.block_mut(0, second.block).to_vec();
    b.block_mut(0, second.block + 2).copy_from_slice(&bytes);
    assert_eq!((b.replay().summary.end, b.replay().summary.torn), (4, 0));
}

#[test]
fn entries_of_a_later_version_stop_the_assembly() {
    let mut b = Bench::new(2, 60);
    b.record(&[payload(1, 0, 0, 1)]);
    let newer = b.record(&[payload(2, 0, 0, 2), intent(2, 0, 1, 2)]);
    for (entry, kind) in [(0, 3u8), (1, 4)] {
        let whole = b.copies.clone();
        for copy in 0..2 {
            let header = b.block_mut(copy, newer.block);
            header[80 + entry * 20 + 12] = kind;
            header[8..12].fill(0);
            let crc = crc32c::crc32c(header);
            header[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        let fault = b.scan().expect_err("an unknown kind");
        assert_eq!(fault, Fault::Newer { volume: VolumeId(3), shard: 5, sequence: 2, kind });
        assert!(fault.to_string().contains("newer"), "{fault}");
        // In a torn record it is of no matter.
        b.spoil(newer.block, &[0, 1]);
        assert_eq!(b.replay().summary.end, 2);
        b.copies = whole;
    }
}

#[test]
fn without_an_anchor_the_journal_is_lost() {
    let mut b = Bench::new(2, 60);
    b.record(&[payload(1, 0, 0, 1)]);
    b.spoil(1, &[0]);
    assert_eq!(b.replay().summary.records, 1);
    b.spoil(1, &[1]);
    let fault = b.scan().expect_err("no anchor");
    assert_eq!(fault, Fault::Lost { volume: VolumeId(3), shard: 5 });
    assert!(fault.to_string().contains("--force"), "{fault}");
    let shape = Shape { identity: IDENTITY, copies: 2, blocks: 2, piece: 8, data_columns: 3 };
    assert!(Scan::new(shape).is_done(), "no ring is that short");
    assert!(Scan::new(Shape { copies: 0, blocks: 20, ..shape }).next_read().is_none());
}

/// The newest anchor of any copy wins, and losing it costs nothing but time: the one before it leads to the same records.
#[test]
fn the_anchor_before_the_newest_is_as_good_until_space_is_used_again() {
    let mut b = Bench::new(2, 60);
    for seq in 1..6 {
        b.record(&[payload(seq, 0, 0, seq.into())]);
    }
    b.release(1);
    b.ring.written(2);
    let anchor = b.ring.advance(b.ring.flush_point()).expect("an anchor");
    assert_eq!(b.replay().anchor.tail, 2);
    anchor.encode(b.block_mut(1, anchor.block()));
    assert_eq!(b.replay().anchor.tail, 3);
    assert_eq!(b.replay().summary.end, 6);
    b.spoil(anchor.block(), &[1]);
    assert_eq!((b.replay().anchor.tail, b.replay().summary.end), (2, 6));
}

#[test]
fn unreadable_blocks_are_like_bad_ones() {
    let mut b = Bench::new(2, 60);
    for seq in 1..9 {
        b.record(&[payload(seq, 0, 0, seq.into()), payload(seq, 0, 1, 100 + u64::from(seq))]);
    }
    let whole = b.replay();
    let fourth = b.places[3].block;
    let cases: [(&[(u8, u32)], bool); 5] = [
        (&[(0, 0), (0, 1)], true),
        (&[(0, fourth), (0, fourth + 4), (1, fourth + 1)], true),
        (&[(1, fourth), (1, fourth + 1)], true),
        (&[(0, fourth + 1), (1, fourth + 1)], false),
        (&[(0, fourth), (1, fourth)], false),
    ];
    for (unreadable, all_there) in cases {
        for piece in [1, 3, 16, 1000] {
            let mut driver = Driver { piece, unreadable: unreadable.iter().copied().collect(), ..Driver::default() };
            let replay = driver.run(&b.copies, b.blocks).expect("an anchor");
            assert_eq!(replay.summary.end, 9);
            assert_eq!(replay.rot.is_empty(), all_there, "{unreadable:?}");
            if all_there {
                let pairs = replay.items().iter().zip(whole.items());
                assert!(pairs.clone().all(|(a, b)| (a.id, a.column, a.crc) == (b.id, b.column, b.crc)));
                assert_eq!(replay.items().len(), whole.items().len());
            } else {
                assert_eq!((replay.rot[0].first, replay.rot[0].last), (4, 4));
            }
            assert!(driver.blocks <= u64::from(2 * 2 * b.blocks), "a failed piece is read at most once more");
        }
    }
    // A copy that gives nothing at all.
    let mut driver = Driver { unreadable: (0..60).map(|n| (0, n)).collect(), ..Driver::default() };
    let replay = driver.run(&b.copies, b.blocks).expect("an anchor on the other copy");
    assert_eq!(replay.summary.records, 8);
    assert!(replay.items().iter().all(|i| i.payload.is_some_and(|p| p.copy == 1)));
}

#[test]
fn answers_that_nobody_asked_for_change_nothing() {
    let b = Bench::new(2, 20);
    let mut scan = Scan::new(Shape { identity: IDENTITY, copies: 2, blocks: 20, piece: 8, data_columns: 3 });
    let bytes = vec![0; 2 * BLOCK];
    let read = scan.next_read().expect("the anchors of a copy");
    scan.complete(Read { copy: 1, ..read }, Ok(&bytes));
    scan.complete(Read { copy: 9, ..read }, Ok(&bytes));
    scan.complete(Read { block: 5, ..read }, Ok(&bytes));
    scan.complete(Read { count: 1, ..read }, Ok(&bytes));
    assert_eq!(scan.next_read(), Some(Read { copy: 1, block: 0, count: 2 }));
    assert_eq!(scan.next_read(), None);
    // Too few bytes are a failed read: block by block from here on.
    scan.complete(read, Ok(&bytes[1..]));
    assert_eq!(scan.next_read(), Some(Read { count: 1, ..read }));
    scan.complete(Read { count: 1, ..read }, Ok(&b.copies[0][..BLOCK]));
    assert_eq!(scan.next_read(), Some(Read { block: 1, count: 1, ..read }));
}

/// 100,000 records, with rot of both kinds all over: each block is read once, and nothing is looked at twice.
#[test]
fn a_long_ring_is_linear() {
    const RECORDS: u32 = 100_000;
    let blocks = 2 + 2 * RECORDS + 1000;
    let (mut ring, anchor) = Ring::new(IDENTITY, EPOCH, blocks);
    ring.anchored();
    let places: Vec<Place> = (1..=RECORDS)
        .map(|seq| {
            let place = ring.append(1).expect("room");
            ring.durable(u64::from(seq));
            place
        })
        .collect();
    // Made when it is read: the ring has 800 MB.
    let mut give = |block: u32| -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        if block == anchor.block() {
            anchor.encode(&mut bytes);
        } else if let Some(place) = block.checked_sub(2).and_then(|n| places.get(n as usize / 2)) {
            let write = payload(place.sequence as u32 % 1000, 0, 0, place.sequence);
            if block == place.block {
                ring.compose(place, [write.entry], &mut bytes);
                seal(&mut bytes, [crc_of(write.tag)]);
                bytes[200] ^= u8::from(place.sequence % 700 == 3);
            } else {
                bytes = content(write.tag);
                bytes[200] ^= u8::from(place.sequence % 500 == 5);
            }
        }
        bytes
    };
    let shape = Shape { identity: IDENTITY, copies: 1, blocks, piece: 256, data_columns: 3 };
    let mut driver = Driver::default();
    let replay = driver
        .drive(shape, |r| (r.block..r.block + r.count).flat_map(&mut give).collect())
        .expect("a ring with an anchor");
    assert_eq!(driver.blocks, u64::from(blocks), "each block is read once");
    assert!(driver.reads <= u64::from(blocks / 256) + 2);
    let rot = (1..=u64::from(RECORDS)).filter(|s| s % 700 == 3 || s % 500 == 5).count();
    assert_eq!(replay.rot.len(), rot);
    assert_eq!(replay.summary.records, u64::from(RECORDS) - rot as u64);
    assert_eq!(replay.summary.end, u64::from(RECORDS) + 1);
    assert_eq!(replay.items().len(), 1000, "the newest of each block");
    assert!(replay.items().iter().all(|i| i.sequence > u64::from(RECORDS) - 3000));
}

/// A long scan throws away on the way what is out of date. It must not matter when.
#[test]
fn what_is_in_force_does_not_depend_on_when_the_rest_is_thrown_away() {
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let mut sequence = 1;
        let items: Vec<Item> = (0..1 + dice.below(60))
            .map(|n| {
                sequence += dice.below(2) as u64;
                let intent = dice.one_in(8);
                Item {
                    id: row(0, dice.below(3) as u16),
                    column: dice.below(4) as u16,
                    kind: if intent { Kind::Intent } else { Kind::Payload },
                    later: false,
                    sequence,
                    crc: n as u32,
                    payload: None,
                }
            })
            .collect();
        let mut at_once = items.clone();
        resolve(&mut at_once, 3);
        let mut by_parts = Vec::new();
        for item in items {
            by_parts.push(item);
            if dice.one_in(4) {
                resolve(&mut by_parts, 3);
            }
        }
        resolve(&mut by_parts, 3);
        assert_eq!(by_parts, at_once, "seed {seed}");
    }
}

/// What replay may not write to the members without a journal goes into the next epoch, behind the old records, and the
/// first anchor of that epoch passes from one to the other at once.
#[test]
fn the_next_epoch_begins_behind_the_old_records() {
    let mut b = Bench::new(2, 30);
    for seq in 1..8 {
        b.record(&[payload(seq, 0, 0, seq.into()), payload(seq, 0, 1, 10 + u64::from(seq))]);
    }
    b.release(1);
    b.release(2);
    // Rot, of which nobody knows but a record that is torn itself: its header must stay.
    let rot = b.places[6];
    let torn = b.put(&[payload(9, 0, 0, 9), payload(9, 0, 1, 9)], &[0, 1]);
    b.spoil(rot.block + 1, &[0, 1]);
    b.spoil(torn.block + 2, &[0, 1]);
    let before = b.replay();
    assert_eq!((before.summary.end, before.summary.torn, before.rot.len()), (8, 1, 1));
    assert_eq!((before.anchor.tail, before.anchor.tail_block), (3, 8));
    let epoch = Epoch { number: EPOCH.number + 1, nonce: 77 };
    let (ring, anchor) = Ring::after(&before, epoch);
    assert_eq!((anchor.tail, anchor.tail_block), (1, torn.block + 3));
    b.ring = ring;
    assert_eq!(b.ring.usage(), Usage { capacity: 28, used: 18, released: 0, written: 0, records: 0 });
    let places = [
        b.put(&[payload(50, 0, 0, 20), payload(50, 0, 1, 21), payload(50, 0, 2, 22)], &[0, 1]),
        b.put(&[payload(51, 0, 0, 23), payload(51, 0, 1, 24)], &[0, 1]),
    ];
    assert_eq!(b.ring.append(3), None, "only ten blocks are free until the anchor is durable");
    let last = b.put(&[payload(52, 0, 0, 25), payload(52, 0, 1, 26)], &[0, 1]);
    assert_eq!(places[0].parts(), [(26, 4), (2, 0)]);
    assert_eq!(last.parts(), [(5, 3), (2, 0)]);
    for place in [last, places[0], places[1]] {
        assert!(b.ring.durable(place.sequence).is_empty(), "nothing counts before the first anchor");
    }
    // The power goes: all is as it was.
    assert_eq!(b.replay(), before);
    // It goes when one copy has the anchor, and when both have.
    for copy in 0..2 {
        anchor.encode(b.block_mut(copy, anchor.block()));
        let now = b.replay();
        assert_eq!(short(&now, &b.copies, 20..27).0.len(), 7);
        assert_eq!((now.anchor, now.summary.end, now.rot.len()), (anchor, 4, 0));
    }
    assert_eq!(b.ring.anchored(), (1..4, None));
    assert_eq!(b.ring.usage().used, 10);
    let refused = std::panic::catch_unwind(|| Ring::after(&before, EPOCH).1);
    assert!(refused.is_err(), "the same epoch again");
}
