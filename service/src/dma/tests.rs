use proptest::prelude::*;

use super::*;

const REGION: u64 = 8 << 20;

fn pool() -> Pool {
    Pool::new(Memory::new(1, REGION).unwrap(), 0)
}

proptest! {
    #[test]
    fn slots_never_overlap_and_all_come_back(sizes in prop::collection::vec((1u32..=1 << 20, any::<bool>()), 1..400)) {
        let mut pool = pool();
        let scratch = pool.reserve(1 << 20).unwrap();
        let mut held: Vec<Slot> = Vec::new();
        for (len, give_back) in sizes {
            if give_back && !held.is_empty() {
                let slot = held.swap_remove(len as usize % held.len());
                pool.free(slot);
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
        // Whatever came before, the region can be used for large slots again.
        let large: Vec<Slot> = std::iter::from_fn(|| pool.alloc(1 << 20)).collect();
        prop_assert!(large.len() >= 2, "only {} large slots", large.len());
    }
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

#[test]
fn a_reservation_that_is_too_large_is_refused() {
    let mut pool = pool();
    assert!(pool.reserve(REGION + 4096).is_none());
    assert!(pool.reserve(REGION).is_some());
    assert!(pool.alloc(4096).is_none());
}
