use proptest::prelude::*;

use super::*;

#[test]
fn records_count_in_order_and_only_then() {
    let mut b = Bench::new(1, 100);
    let seqs: Vec<u64> = (0..4).map(|_| b.ring.append(3).expect("room").sequence).collect();
    assert_eq!(seqs, [1, 2, 3, 4]);
    assert!(b.ring.durable(2).is_empty());
    assert!(b.ring.durable(4).is_empty());
    assert_eq!(b.ring.counted(), 0);
    assert_eq!(b.ring.append(0).expect("room").durable, 0);
    assert_eq!(b.ring.durable(1), 1..3);
    assert_eq!(b.ring.append(0).expect("room").durable, 2);
    assert_eq!(b.ring.durable(3), 3..5);
    b.ring.written(2);
    assert_eq!(b.ring.flush_point(), 0, "record 1 has not reached the members");
    b.ring.written(1);
    assert_eq!(b.ring.flush_point(), 2);
    assert_eq!(b.ring.usage(), Usage { capacity: 98, used: 18, released: 0, written: 8, records: 6 });
    assert_eq!(b.ring.epoch(), EPOCH);
}

#[test]
fn space_is_free_only_when_the_anchor_is_durable() {
    let mut b = Bench::new(1, 12);
    b.record(&[payload(0, 0, 0, 1), payload(0, 0, 1, 2), payload(0, 0, 2, 3), payload(0, 0, 3, 4)]);
    b.record(&[payload(0, 1, 0, 5), payload(0, 1, 1, 6), payload(0, 1, 2, 7), payload(0, 1, 3, 8)]);
    assert_eq!(b.ring.append(0), None, "full");
    b.ring.written(1);
    assert_eq!(b.ring.append(0), None, "written, perhaps to a cache");
    let anchor = b.ring.advance(b.ring.flush_point()).expect("an anchor");
    assert_eq!((anchor.generation, anchor.tail, anchor.tail_block, anchor.block()), (2, 2, 7, 0));
    assert_eq!(b.ring.append(0), None, "flushed, but the durable anchor still leads into it");
    b.ring.written(2);
    assert_eq!(b.ring.advance(b.ring.flush_point()), None, "one anchor at a time");
    let anchor = b.ring.anchored().1.expect("the tail has moved on");
    assert_eq!((anchor.generation, anchor.tail, anchor.tail_block, anchor.block()), (3, 3, 2, 1));
    assert_eq!(b.ring.append(5), None, "what record 2 had is free with the next anchor only");
    assert_eq!(b.ring.append(4).map(|p| p.block), Some(2));
    assert_eq!(b.ring.anchored(), (3..3, None));
    assert_eq!(b.ring.advance(b.ring.flush_point()), None, "nothing to say");
    assert_eq!(b.ring.append(4).map(|p| p.block), Some(7));
}

#[test]
fn a_record_that_wraps_is_two_runs() {
    let mut b = Bench::new(1, 12);
    b.record(&[intent(0, 0, 0, 1)]);
    b.release(1);
    b.record(&(0..6).map(|n| payload(0, 0, n, 1)).collect::<Vec<_>>());
    let place = b.ring.append(2).expect("room");
    assert_eq!(place.parts(), [(10, 2), (2, 1)]);
    assert_eq!(blocks_of(&place).collect::<Vec<_>>(), [10, 11, 2]);
    assert_eq!(b.ring.append(0), None);
    assert_eq!(b.ring.usage().used, 10, "a ring can be filled to its last block");
}

#[test]
fn a_stripe_is_not_bypassed_while_its_records_may_be_in_a_cache() {
    let mut b = Bench::new(1, 100);
    assert!(b.ring.may_bypass(0, 4));
    b.record(&[payload(4, 0, 0, 1)]);
    b.record(&[intent(5, 0, 0, 1)]);
    assert!(!b.ring.may_bypass(0, 4));
    assert!(b.ring.may_bypass(0, 5), "an intent revokes another one of its row");
    b.ring.written(1);
    assert!(!b.ring.may_bypass(0, 4), "written, perhaps to a cache");
    b.ring.advance(b.ring.flush_point());
    assert!(b.ring.may_bypass(0, 4));
    // A stripe's place may be shared, but most are free.
    let free = (0..1000).filter(|s| b.ring.may_bypass(1, *s)).count();
    b.record(&[payload(4, 0, 0, 1)]);
    let shared = free - (0..1000).filter(|s| b.ring.may_bypass(1, *s)).count();
    assert!(free == 1000 && shared < 40, "{shared}");
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Append(u16),
    Durable(usize),
    Written(usize),
    FlushBegins,
    FlushEnds,
    Anchored,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u16..6).prop_map(Op::Append),
        4 => any::<usize>().prop_map(Op::Durable),
        4 => any::<usize>().prop_map(Op::Written),
        1 => Just(Op::FlushBegins),
        1 => Just(Op::FlushEnds),
        2 => Just(Op::Anchored),
    ]
}

/// A record as the naive model sees it.
#[derive(Clone, Debug, Default)]
struct Model {
    blocks: Vec<u32>,
    durable: bool,
    written: bool,
    flushed: bool,
}

/// Record `seq` and all before it are durable, by looking at each of them.
fn counts(model: &[Model], seq: usize) -> bool {
    model[..seq].iter().all(|r| r.durable)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a model that keeps each record and each block, and looks at all of them each time.
    #[test]
    fn the_ring_does_what_a_naive_model_does(blocks in 4u32..24, ops in prop::collection::vec(op(), 1..300)) {
        let (mut ring, first) = Ring::new(IDENTITY, EPOCH, blocks);
        prop_assert_eq!((first.generation, first.tail, first.tail_block), (1, 1, 2));
        prop_assert_eq!(ring.append(0), None);
        prop_assert_eq!(ring.anchored(), (1..1, None));
        let capacity = blocks - 2;
        let mut model: Vec<Model> = Vec::new();
        // The tails of the durable anchor and of the one in flight, and the writes that a flush under way covers.
        let (mut anchored, mut in_flight): (u64, Option<Anchor>) = (1, None);
        let mut flush: Option<(u64, Vec<usize>)> = None;
        let mut next_block = 2;
        for op in ops {
            match op {
                Op::Append(payload) => {
                    let held: BTreeSet<u32> =
                        model[anchored as usize - 1..].iter().flat_map(|r| r.blocks.iter().copied()).collect();
                    let room = capacity as usize - held.len();
                    let place = ring.append(payload);
                    prop_assert_eq!(place.is_some(), usize::from(payload) < room);
                    if let Some(place) = place {
                        prop_assert_eq!(place.sequence, model.len() as u64 + 1);
                        prop_assert_eq!(place.durable, (1..=model.len()).rfind(|s| counts(&model, *s)).unwrap_or(0) as u64);
                        let mut record = Model::default();
                        for block in blocks_of(&place) {
                            prop_assert_eq!(block, next_block);
                            prop_assert!(!held.contains(&block), "block {} is named by a durable anchor", block);
                            next_block = if block + 1 == blocks { 2 } else { block + 1 };
                            record.blocks.push(block);
                        }
                        prop_assert_eq!(record.blocks.len(), usize::from(payload) + 1);
                        model.push(record);
                    }
                }
                Op::Durable(n) => {
                    let open: Vec<usize> = (1..=model.len()).filter(|s| !model[s - 1].durable).collect();
                    if let Some(&seq) = open.get(n % open.len().max(1)) {
                        let before: Vec<usize> = (1..=model.len()).filter(|s| counts(&model, *s)).collect();
                        model[seq - 1].durable = true;
                        let now = (1..=model.len()).filter(|s| counts(&model, *s) && !before.contains(s));
                        let told: Vec<usize> = ring.durable(seq as u64).map(|s| s as usize).collect();
                        prop_assert_eq!(told, now.collect::<Vec<_>>());
                    }
                }
                Op::Written(n) => {
                    let open: Vec<usize> =
                        (1..=model.len()).filter(|s| counts(&model, *s) && !model[s - 1].written).collect();
                    if let Some(&seq) = open.get(n % open.len().max(1)) {
                        model[seq - 1].written = true;
                        ring.written(seq as u64);
                    }
                }
                Op::FlushBegins if flush.is_none() => {
                    let covers = (1..=model.len()).filter(|s| model[s - 1].written).collect();
                    flush = Some((ring.flush_point(), covers));
                }
                Op::FlushEnds => {
                    if let Some((point, covers)) = flush.take() {
                        covers.into_iter().for_each(|s| model[s - 1].flushed = true);
                        let tail = model.iter().take_while(|r| r.flushed).count() as u64 + 1;
                        prop_assert!(point < tail);
                        let anchor = ring.advance(point);
                        prop_assert!(in_flight.is_none() || anchor.is_none(), "two anchors in flight");
                        in_flight = in_flight.or(anchor);
                    }
                }
                Op::Anchored => {
                    if let Some(anchor) = in_flight.take() {
                        let named = model[..anchor.tail as usize - 1].iter().all(|r| r.flushed);
                        prop_assert!(named, "the tail passed a record that is not durable on the members");
                        let block = model.get(anchor.tail as usize - 1).map_or(next_block, |r| r.blocks[0]);
                        prop_assert_eq!(anchor.tail_block, block);
                        prop_assert!(anchor.tail > anchored);
                        anchored = anchor.tail;
                        in_flight = ring.anchored().1;
                    }
                }
                Op::FlushBegins => {}
            }
            let used: usize = model[anchored as usize - 1..].iter().map(|r| r.blocks.len()).sum();
            prop_assert_eq!(ring.usage().used as usize, used);
            prop_assert_eq!(ring.flush_point() as usize, model.iter().take_while(|r| r.written && r.durable).count());
        }
    }
}
