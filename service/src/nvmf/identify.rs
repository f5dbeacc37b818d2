//! Identify data.

use std::sync::Arc;

use nvme_wire::command::{NSID_ALL, Sqe, Status};
use nvme_wire::nqn;

use super::admin::{DISCOVERY_NOTICES, NAMESPACE_NOTICES, Reply};
use super::connection::IN_CAPSULE;
use super::controller::{Controller, KAS, MAX_ENTRIES, MAX_EVENTS};
use super::fabrics::VERSION;
use super::io::MAX_TRANSFER;
use super::subsystem::{NamespaceInfo, Subsystem};

/// Bytes of all identify data.
pub const LENGTH: u32 = 4096;

/// CNS: what is asked for.
mod cns {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const NAMESPACES: u8 = 0x02;
    pub const DESCRIPTORS: u8 = 0x03;
    pub const NVM_NAMESPACE: u8 = 0x05;
    pub const NVM_CONTROLLER: u8 = 0x06;
    pub const NVM_NAMESPACES: u8 = 0x07;
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    pub const NAMESPACE_CONTROLLERS: u8 = 0x12;
    pub const CONTROLLERS: u8 = 0x13;
    pub const COMMAND_SETS: u8 = 0x1C;
}

/// A page that is filled by offsets.
pub struct Page(pub Vec<u8>);

impl Page {
    /// A page of zeros.
    pub fn new(len: usize) -> Page {
        Page(vec![0; len])
    }

    /// Bytes at an offset.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Two bytes.
    pub fn u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_le_bytes());
    }
}

/// The firmware revision: the program's version.
pub fn firmware() -> [u8; 8] {
    nvme_wire::ascii(env!("CARGO_PKG_VERSION"))
}

/// The events that a controller may be asked to tell: OAES.
pub fn events(controller: &Controller) -> u32 {
    if controller.discovery { DISCOVERY_NOTICES } else { NAMESPACE_NOTICES }
}

/// Answers an Identify command. A discovery controller has no subsystem.
pub fn identify(sqe: &Sqe, controller: &Arc<Controller>, subsystem: Option<&Subsystem>) -> Reply {
    let (cns, first) = (sqe.cdw10.get() as u8, (sqe.cdw10.get() >> 16) as u16);
    let csi = (sqe.cdw11.get() >> 24) as u8;
    let nsid = sqe.nsid.get();
    let Some(subsystem) = subsystem else {
        return match cns {
            cns::CONTROLLER => Reply::data(identify_controller(controller, None)),
            _ => Status::INVALID_FIELD.dnr().into(),
        };
    };
    let namespace = subsystem.namespaces.get(&nsid).map(|n| &n.info);
    // Of an NSID that could be and is not, all is zero; one that could not be is an error.
    let of_namespace = |f: &dyn Fn(&NamespaceInfo) -> Vec<u8>| match namespace {
        Some(info) => Reply::data(f(info)),
        None if (1..=super::MAX_NAMESPACES).contains(&nsid) => Reply::data(vec![0; LENGTH as usize]),
        None => Status::INVALID_NAMESPACE.dnr().into(),
    };
    match cns {
        cns::NAMESPACE | cns::ALLOCATED_NAMESPACE => of_namespace(&identify_namespace),
        cns::CONTROLLER => Reply::data(identify_controller(controller, Some(subsystem))),
        cns::NVM_NAMESPACES if csi != 0 => Status::INVALID_FIELD.dnr().into(),
        cns::NAMESPACES | cns::NVM_NAMESPACES | cns::ALLOCATED_NAMESPACES => {
            if nsid >= 0xFFFF_FFFE {
                return Status::INVALID_NAMESPACE.dnr().into();
            }
            let mut page = Page::new(LENGTH as usize);
            let above = subsystem.namespaces.keys().filter(|n| **n > nsid).take(1024);
            above.enumerate().for_each(|(n, nsid)| page.u32(n * 4, *nsid));
            Reply::data(page.0)
        }
        cns::DESCRIPTORS => match namespace {
            Some(info) => Reply::data(descriptors(info)),
            None => Status::INVALID_NAMESPACE.dnr().into(),
        },
        cns::NVM_NAMESPACE if csi == 0 => of_namespace(&|_| vec![0; LENGTH as usize]),
        // No limits apart from MDTS: all zero.
        cns::NVM_CONTROLLER if csi == 0 => Reply::data(vec![0; LENGTH as usize]),
        cns::INDEPENDENT_NAMESPACE => of_namespace(&|_| {
            let mut page = Page::new(LENGTH as usize);
            // NMIC: shared among controllers. NSTAT: ready.
            page.put(1, &[1]);
            page.put(14, &[1]);
            page.0
        }),
        cns::NAMESPACE_CONTROLLERS if namespace.is_none() => {
            if nsid == NSID_ALL || nsid == 0 || nsid > super::MAX_NAMESPACES {
                Status::INVALID_NAMESPACE.dnr().into()
            } else {
                Reply::data(vec![0; LENGTH as usize])
            }
        }
        cns::NAMESPACE_CONTROLLERS | cns::CONTROLLERS => {
            let mut page = Page::new(LENGTH as usize);
            let ids = subsystem.shared.controllers().into_iter().map(|c| c.cntlid).filter(|id| *id >= first);
            let mut count = 0;
            for id in ids.take(2047) {
                count += 1;
                page.u16(count * 2, id);
            }
            page.u16(0, count as u16);
            Reply::data(page.0)
        }
        cns::COMMAND_SETS => {
            let mut page = Page::new(LENGTH as usize);
            // The one combination: the NVM command set.
            page.u64(0, 1);
            Reply::data(page.0)
        }
        _ => Status::INVALID_FIELD.dnr().into(),
    }
}

/// Identify Controller (Base figure 312).
fn identify_controller(controller: &Controller, subsystem: Option<&Subsystem>) -> Vec<u8> {
    let mut page = Page::new(LENGTH as usize);
    let (serial, model) = subsystem.map_or(("raidd", "raidd discovery"), |s| (s.serial.as_str(), s.model.as_str()));
    page.put(4, &nvme_wire::ascii::<20>(serial));
    page.put(24, &nvme_wire::ascii::<40>(model));
    page.put(64, &firmware());
    // CMIC: the subsystem may have several ports and several controllers.
    page.put(76, &[0b11]);
    page.put(77, &[(MAX_TRANSFER / 4096).ilog2() as u8]);
    page.u16(78, controller.cntlid);
    page.u32(80, VERSION);
    page.u32(92, events(controller));
    // CTRATT: 128-bit host identifiers, traffic counts as keep-alive.
    page.u32(96, 1 | 1 << 6);
    page.put(111, &[if controller.discovery { 2 } else { 1 }]);
    // ACL, AERL, FRMW (one slot, read-only), LPA (effects log, extended data).
    page.put(258, &[3, MAX_EVENTS as u8 - 1, 0b11, if controller.discovery { 0b100 } else { 0b110 }]);
    page.u16(320, KAS);
    page.u16(514, MAX_ENTRIES as u16);
    // SGLS: supported; offsets in capsules; transport data blocks.
    page.u32(536, 1 | 1 << 20 | 1 << 21);
    let name = nqn::to_field(&controller.nqn);
    page.put(768, &name);
    page.u32(1792, (64 + IN_CAPSULE) / 16);
    page.u32(1796, 1);
    page.put(1803, &[1]);
    if let Some(subsystem) = subsystem {
        // SQES and CQES: 64 and 16 bytes.
        page.put(512, &[0x66, 0x44]);
        page.u32(516, super::MAX_NAMESPACES);
        // ONCS: Compare, Dataset Management, Write Zeroes.
        page.u16(520, 1 | 1 << 2 | 1 << 3);
        // VWC: present if it is; a flush of all namespaces at once is not supported.
        page.put(525, &[0b100 | u8::from(subsystem.volatile_cache())]);
        page.u32(540, super::MAX_NAMESPACES);
        // Power state 0 has a power that is not reported.
    }
    page.0
}

/// Identify Namespace (NVM figure 114).
fn identify_namespace(info: &NamespaceInfo) -> Vec<u8> {
    let mut page = Page::new(LENGTH as usize);
    let blocks = info.size / u64::from(info.block_size);
    let in_blocks = |bytes: u32| (bytes / info.block_size).clamp(1, 1 << 16) as u16;
    let zero_based = |bytes: u32| (bytes / info.block_size).clamp(1, 1 << 16).wrapping_sub(1) as u16;
    for at in [0, 8, 16] {
        page.u64(at, blocks);
    }
    let mut features = 0;
    if info.preferred_write > 0 || info.optimal_io > 0 {
        // OPTPERF: NPWG to NOWS are valid.
        features |= 1 << 4;
        let write = if info.preferred_write > 0 { info.preferred_write } else { info.block_size };
        let optimal = if info.optimal_io > 0 { info.optimal_io } else { write };
        page.u16(64, zero_based(write));
        page.u16(66, zero_based(write));
        page.u16(68, zero_based(write));
        page.u16(70, zero_based(write));
        page.u16(72, zero_based(optimal));
    }
    if info.atomic_write > info.block_size {
        // NSABP: the namespace has atomic sizes of its own, with boundaries at their multiples.
        features |= 1 << 1;
        let atomic = zero_based(info.atomic_write);
        page.u16(34, atomic);
        page.u16(36, atomic);
        page.u16(40, atomic);
        page.u16(44, atomic);
    }
    page.put(24, &[features]);
    // NMIC: shared among controllers.
    page.put(30, &[1]);
    if info.deallocate {
        // DLFEAT: deallocated blocks read as zeros, and Write Zeroes may deallocate.
        page.put(33, &[0b1001]);
    }
    if info.optimal_io > 0 {
        page.u16(46, in_blocks(info.optimal_io));
    }
    page.put(48, &u128::from(info.size).to_le_bytes());
    page.put(104, &info.nguid);
    // LBAF 0: no metadata, the block size as a power of two.
    page.put(130, &[info.block_size.trailing_zeros() as u8]);
    page.0
}

/// Namespace Identification Descriptor list (Base figure 315): NGUID, UUID, command set.
fn descriptors(info: &NamespaceInfo) -> Vec<u8> {
    let mut page = Page::new(LENGTH as usize);
    page.put(0, &[2, 16]);
    page.put(4, &info.nguid);
    page.put(20, &[3, 16]);
    page.put(24, &info.uuid);
    page.put(40, &[4, 1]);
    page.0
}
