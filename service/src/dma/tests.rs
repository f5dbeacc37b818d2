use proptest::prelude::*;

use super::*;

const REGION: u64 = 8 << 20;

fn pool() -> Pool {
    Pool::new(Memory::new(1, REGION).unwrap(), 0)
}

/// Any size, and mostly those of the smaller classes, of which a span holds several.
fn size() -> impl Strategy<Value = u32> {
    prop_oneof![1 => 1u32..=1 << 20, 3 => (64u32 << 10) + 1..=256 << 10, 3 => (16u32 << 10) + 1..=64 << 10]
}

proptest! {
    #[test]
    fn slots_never_overlap_and_all_come_back(
        sizes in prop::collection::vec((size(), prop::option::of(any::<prop::sample::Index>())), 1..400)
    ) {
        let mut pool = pool();
        let scratch = pool.reserve(1 << 20).unwrap();
        let mut held: Vec<Slot> = Vec::new();
        for (len, give_back) in sizes {
            if let Some(index) = give_back.filter(|_| !held.is_empty()) {
                // Many at a time, from anywhere, so that spans become free in any order.
                for _ in 0..1 + held.len() / 3 {
                    let at = index.index(held.len());
                    pool.free(held.swap_remove(at));
                }
            }
            if let Some(slot) = pool.alloc(len) {
                prop_assert!(slot.len() >= len);
                let (begin, end) = (slot.addr().offset(), slot.addr().offset() + u64::from(slot.len()));
                prop_assert_eq!(begin % 512, 0);
                prop_assert!(end <= scratch.offset(), "a slot reaches into the reserved part");
                for other in &held {
                    let (b, e) = (other.addr().offset(), other.addr().offset() + u64::from(other.len()));
                    prop_assert!(end <= b || e <= begin, "{:?} overlaps {:?}", slot, other);
                }
                held.push(slot);
            }
        }
        for slot in held {
            pool.free(slot);
        }
        prop_assert_eq!(pool.stats().used, 0);
        // Whatever came before, the whole region can be used for large slots again.
        let large: Vec<Slot> = std::iter::from_fn(|| pool.alloc(1 << 20)).collect();
        let mut fresh = self::pool();
        fresh.reserve(1 << 20).unwrap();
        prop_assert_eq!(large.len(), std::iter::from_fn(|| fresh.alloc(1 << 20)).count());
    }
}

/// A burst of small requests must not leave the region to their class.
#[test]
fn a_region_full_of_small_slots_serves_large_ones_afterwards() {
    let mut pool = Pool::new(Memory::new(1, 64 << 20).unwrap(), 0);
    let count = |pool: &mut Pool, len| std::iter::from_fn(|| pool.alloc(len)).collect::<Vec<Slot>>();
    let most = count(&mut pool, 1 << 20);
    let spans = most.len();
    most.into_iter().for_each(|s| pool.free(s));
    for len in [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10] {
        let small = count(&mut pool, len);
        assert_eq!(small.len(), spans * ((1 << 20) / len as usize));
        small.into_iter().for_each(|s| pool.free(s));
    }
    let failures = pool.stats().failures;
    assert_eq!(count(&mut pool, 1 << 20).len(), spans);
    assert_eq!(pool.stats().failures, failures + 1);
}

/// One slot that is held for long must keep its own span from the others, and no more.
#[test]
fn a_slot_that_is_held_keeps_one_span_only() {
    let mut pool = pool();
    let mut slots: Vec<Slot> = std::iter::from_fn(|| pool.alloc(256 << 10)).collect();
    let spans = slots.len() / 4;
    // One of each span first, so that all are known to have room; the last of them keeps what it has.
    for i in 0..spans {
        pool.free(slots.remove(i * 3));
    }
    for slot in slots.drain(..(spans - 1) * 3) {
        pool.free(slot);
    }
    assert_eq!(std::iter::from_fn(|| pool.alloc(1 << 20)).count(), spans - 1);
}

#[test]
#[should_panic(expected = "another region")]
fn a_slot_of_another_pool_is_not_taken() {
    let memory = Memory::new(2, REGION).unwrap();
    let (mut a, mut b) = (Pool::new(memory.clone(), 0), Pool::new(memory, 1));
    let slot = a.alloc(4096).unwrap();
    b.alloc(4096).unwrap();
    b.free(slot);
}

#[test]
fn a_slot_larger_than_the_largest_class_is_refused() {
    assert!(pool().alloc((1 << 20) + 1).is_none());
}

#[test]
fn large_slots_are_staggered_across_cache_sets() {
    let mut pool = pool();
    let starts: std::collections::BTreeSet<u64> =
        (0..16).map(|_| pool.alloc(64 << 10).unwrap().addr().offset() % 4096).collect();
    assert!(starts.len() >= 8, "{starts:?}");
}

#[test]
#[should_panic(expected = "outside of region")]
fn an_address_outside_of_its_region_is_never_memory() {
    let memory = Memory::new(1, REGION).unwrap();
    memory.ptr(raid_core::action::BufAddr::new(0, REGION - 10), 11);
}

/// A second array is created while the first one is busy.
#[test]
fn scratch_can_be_reserved_while_slots_are_in_use() {
    let mut pool = Pool::new(Memory::new(1, 32 << 20).unwrap(), 0);
    let mut held: Vec<Slot> = std::iter::from_fn(|| pool.alloc(64 << 10)).collect();
    assert!(pool.reserve(4 << 20).is_none());
    // Free all but a few, so that small runs are left between those in use.
    let kept: Vec<Slot> = held.extract_if(.., |s| s.addr().offset() < 12 << 20).collect();
    held.into_iter().for_each(|s| pool.free(s));
    let usable = pool.usable();
    let begin = pool.reserve(4 << 20).expect("20 MiB are free").offset();
    assert!(pool.usable() <= usable - (4 << 20));
    let mut held = kept;
    held.extend(std::iter::from_fn(|| pool.alloc(128 << 10)));
    for slot in &held {
        let end = slot.addr().offset() + u64::from(slot.len());
        assert!(end <= begin || begin + (4 << 20) <= slot.addr().offset(), "{slot:?} lies in the reserved part");
    }
    held.into_iter().for_each(|s| pool.free(s));
    assert_eq!(pool.stats().used, 0);
}

#[test]
fn a_reservation_that_is_too_large_is_refused() {
    let mut pool = pool();
    assert!(pool.reserve(REGION + 4096).is_none());
    assert!(pool.reserve(REGION).is_some());
    assert!(pool.alloc(4096).is_none());
}

/// What the engine may order, with sources of zeros.
#[test]
fn steps_are_carried_out_with_zeros_for_sources() {
    use raid_core::action::{BufAddr, Slice, Step, Term};
    const LEN: usize = 512;
    let mut pool = pool();
    let memory = pool.memory().clone();
    let mut slots: Vec<Slot> = (0..4).map(|_| pool.alloc(4096).unwrap()).collect();
    for (i, slot) in slots.iter_mut().enumerate() {
        pool.bytes_mut(slot).iter_mut().enumerate().for_each(|(j, b)| *b = (i * 91 + j * 7 + 1) as u8);
    }
    let addr: Vec<BufAddr> = slots.iter().map(Slot::addr).collect();
    let bytes = |pool: &Pool, i: usize| pool.bytes(&slots[i])[..LEN].to_vec();
    let (a, b) = (bytes(&pool, 0), bytes(&pool, 1));
    let product = |x: u8, y: u8| raid_core::gf::mul(x, y);

    let terms = [
        Term { src: addr[0], coef: [1, 2] },
        Term { src: BufAddr::ZERO, coef: [1, 77] },
        Term { src: addr[1], coef: [1, 4] },
    ];
    let combine = |accumulate| Step::Combine {
        len: LEN as u32,
        dst: [addr[2], addr[3]],
        outputs: 2,
        accumulate,
        terms: Slice::default(),
    };
    assert!(memory.execute(&combine(false), &terms));
    let p: Vec<u8> = a.iter().zip(&b).map(|(x, y)| x ^ y).collect();
    let q: Vec<u8> = a.iter().zip(&b).map(|(x, y)| product(2, *x) ^ product(4, *y)).collect();
    assert_eq!((bytes(&pool, 2), bytes(&pool, 3)), (p.clone(), q));
    assert!(memory.execute(&combine(true), &terms));
    assert_eq!((bytes(&pool, 2), bytes(&pool, 3)), (vec![0; LEN], vec![0; LEN]), "twice is nothing");
    assert!(memory.execute(&combine(false), &terms[..1]));
    assert_eq!(bytes(&pool, 2), a);
    assert!(memory.execute(&combine(false), &terms[1..2]));
    assert_eq!(bytes(&pool, 2), vec![0; LEN], "nothing but zeros must replace what was there");

    let compare = |a, b| memory.execute(&Step::Compare { a, b, len: LEN as u32 }, &[]);
    assert!(compare(addr[2], BufAddr::ZERO) && compare(BufAddr::ZERO, addr[2]) && compare(addr[0], addr[0]));
    assert!(!compare(addr[0], BufAddr::ZERO) && !compare(addr[0], addr[1]));
    let copy = |dst, src| memory.execute(&Step::Copy { dst, src, len: LEN as u32 }, &[]);
    assert!(copy(addr[2], addr[1]) && compare(addr[1], addr[2]));
    assert!(copy(addr[2], BufAddr::ZERO) && compare(addr[2], BufAddr::ZERO));
    assert_eq!(bytes(&pool, 1), b, "a source was changed");
}

/// Untouched parts of a region must cost nothing: an idle daemon is small.
#[test]
fn an_untouched_region_is_not_resident() {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = resident();
    let mut pool = Pool::new(Memory::new(1, 8 << 30).unwrap(), 0);
    let mut slot = pool.alloc(64 << 10).unwrap();
    pool.bytes_mut(&mut slot).fill(1);
    // Other tests of this process use memory too, but not gigabytes.
    assert!(resident().saturating_sub(before) < 1 << 30);
}
