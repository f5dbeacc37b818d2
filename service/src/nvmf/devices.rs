//! The namespaces' devices, as one reactor has them open.

use std::collections::VecDeque;

use raid_core::action::Seg;
use raid_core::units::Tick;

use super::subsystem::{NamespaceInfo, Registry};
use crate::block::{BlockDevice, Completions, Io};
use crate::reactor::Context;

/// I/Os for which the line before a device has room at once.
const LINE: usize = 1024;

/// A namespace's device on this reactor.
pub struct Device {
    /// Which addition of the namespace it belongs to.
    pub key: u64,
    /// What initiators were told.
    pub info: NamespaceInfo,
    device: Box<dyn BlockDevice>,
    /// I/O that the device had no room for, first come first served.
    waiting: VecDeque<(Io, Option<Seg>)>,
    /// The namespace is removed; the device stays until its last I/O is done.
    retired: bool,
    /// Something was submitted since the last doorbell.
    rung: bool,
}

/// All of them, by a number that does not change while the device is there.
#[derive(Default)]
pub struct Devices {
    list: Vec<Option<Device>>,
}

impl Devices {
    /// The number of a namespace's device.
    pub fn find(&self, key: u64) -> Option<u16> {
        self.list.iter().position(|d| d.as_ref().is_some_and(|d| d.key == key && !d.retired)).map(|n| n as u16)
    }

    /// The device of this number, if it still belongs to the namespace.
    pub fn get(&self, number: u16, key: u64) -> Option<&Device> {
        self.list.get(number as usize)?.as_ref().filter(|d| d.key == key && !d.retired)
    }

    /// Opens and retires devices, so that they are what the registry says.
    pub fn follow(&mut self, registry: &Registry, cx: &mut Context) -> Result<(), String> {
        let namespaces = || registry.subsystems.values().flat_map(|s| s.namespaces.values());
        for device in self.list.iter_mut().flatten() {
            device.retired |= namespaces().all(|n| n.key != device.key);
        }
        for namespace in namespaces() {
            if self.find(namespace.key).is_some() {
                continue;
            }
            let device = Device {
                key: namespace.key,
                info: namespace.info.clone(),
                device: (namespace.factory)(cx)?,
                waiting: VecDeque::with_capacity(LINE),
                retired: false,
                rung: true,
            };
            match self.list.iter_mut().find(|d| d.is_none()) {
                Some(place) => *place = Some(device),
                None => self.list.push(Some(device)),
            }
        }
        Ok(())
    }

    /// Gives an I/O to a device, or puts it in the line in front of it. It will be completed in any case.
    pub fn submit(&mut self, number: u16, io: Io, seg: Option<Seg>) {
        let device = self.list[number as usize].as_mut().expect("a device stays while it has I/O");
        if !device.waiting.is_empty() || device.device.submit(io, seg.as_slice()).is_err() {
            device.waiting.push_back((io, seg));
        }
        device.rung = false;
    }

    /// Takes a connection's I/Os out of the lines. `over` gets the tags.
    pub fn cancel(&mut self, is_his: impl Fn(u64) -> bool, over: &mut Vec<u64>) {
        for device in self.list.iter_mut().flatten() {
            device.waiting.retain(|(io, _)| {
                let keep = !is_his(io.tag);
                if !keep {
                    over.push(io.tag);
                }
                keep
            });
        }
    }

    /// Moves the lines on, rings doorbells, collects completions. True if anything completed.
    pub fn turn(&mut self, done: &mut Completions) -> bool {
        for device in self.list.iter_mut().flatten() {
            while let Some((io, seg)) = device.waiting.front() {
                if device.device.submit(*io, seg.as_slice()).is_err() {
                    break;
                }
                device.waiting.pop_front();
                device.rung = false;
            }
            if !device.rung {
                device.device.ring();
                device.rung = true;
            }
            if device.device.in_flight() > 0 {
                device.device.poll(done);
            }
        }
        !done.is_empty()
    }

    /// Closes retired devices that have nothing left to do. True if none is left.
    pub fn reap(&mut self) -> bool {
        let mut left = false;
        for place in &mut self.list {
            if let Some(device) = place
                && device.retired
            {
                if device.waiting.is_empty() && device.device.in_flight() == 0 {
                    *place = None;
                } else {
                    left = true;
                }
            }
        }
        !left
    }

    /// When a device wants to be polled.
    pub fn next_deadline(&self) -> Option<Tick> {
        self.list.iter().flatten().filter_map(|d| d.device.next_deadline()).min()
    }
}
