//! The lanes of the reactor that calls, by array: how a volume finds its lane on each reactor. And their scratch memory,
//! which is taken from the region once and used again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use raid_core::action::BufAddr;

use super::Lane;
use crate::dma::Pool;

#[derive(Default)]
struct Registry {
    lanes: BTreeMap<u32, (Rc<RefCell<Lane>>, BufAddr)>,
    scratch: Vec<BufAddr>,
}

thread_local! {
    static REGISTRY: RefCell<Registry> = RefCell::default();
}

/// Scratch memory of `len` bytes, the same for every array; `None` if the region has no room left.
pub fn take_scratch(pool: &mut Pool, len: u64) -> Option<BufAddr> {
    let used = REGISTRY.with(|r| r.borrow_mut().scratch.pop());
    used.or_else(|| pool.reserve(len))
}

/// Makes a lane known on this reactor.
pub fn add(array: u32, lane: Rc<RefCell<Lane>>, scratch: BufAddr) {
    REGISTRY.with(|r| r.borrow_mut().lanes.insert(array, (lane, scratch)));
}

/// The array's lane on this reactor.
pub fn lane(array: u32) -> Option<Rc<RefCell<Lane>>> {
    REGISTRY.with(|r| r.borrow().lanes.get(&array).map(|(lane, _)| Rc::clone(lane)))
}

/// Forgets a lane; its scratch memory serves the next array.
pub fn remove(array: u32) {
    REGISTRY.with(|r| {
        let mut r = r.borrow_mut();
        if let Some((_, scratch)) = r.lanes.remove(&array) {
            r.scratch.push(scratch);
        }
    });
}
