//! Identify data.

use std::sync::Arc;

use nvme_wire::command::{NSID_ALL, Sqe, Status};
use nvme_wire::identify::{
    CSI_NVM, CommandSets, ControllerList, IDENTIFY_LEN, IdentifyController, IdentifyControllerNvm, IdentifyNamespace,
    IdentifyNamespaceIndependent, NamespaceIds, NamespaceList, cmic, cns, cntrltype, ctratt, lpa, nsfeat, oncs,
};
use nvme_wire::nqn;
use nvme_wire::zerocopy::{FromZeros, IntoBytes};

use super::admin::Reply;
use super::connection::IN_CAPSULE;
use super::controller::{Controller, KAS, MAX_ENTRIES, MAX_EVENTS};
use super::fabrics::VERSION;
use super::io::MAX_TRANSFER;
use super::subsystem::{NamespaceInfo, Subsystem};
use nvme_wire::features::aec;

/// NMIC bit 0: the namespace may be attached to several controllers.
const NMIC_SHARED: u8 = 1;
/// NSTAT bit 0: the namespace is ready.
const NSTAT_READY: u8 = 1;
/// DLFEAT: deallocated blocks read as zeros, and Write Zeroes may deallocate.
const DLFEAT_ZEROS: u8 = 0b1001;
/// FRMW: one firmware slot, read-only.
const FRMW_FIXED: u8 = 0b11;
/// WZSL: Write Zeroes of up to 8 MiB, as a power of two of pages of 4096 bytes; they carry no data, so MDTS is no bound.
const WZSL: u8 = 11;
/// DMRSL: blocks of one range to deallocate. A host that sends more is served, and may wait for longer than it likes.
const DMRSL: u32 = 1 << 16;
/// VWC bits 2:1: a flush of all namespaces at once is not supported.
const VWC_ONE_NAMESPACE: u8 = 0b100;

/// The firmware revision: the program's version.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// The events that a controller may be asked to tell: OAES.
pub fn events(controller: &Controller) -> u32 {
    if controller.discovery { aec::DISCOVERY } else { aec::NAMESPACE }
}

fn reply<T: IntoBytes + nvme_wire::zerocopy::Immutable>(structure: &T) -> Reply {
    Reply::data(structure.as_bytes().to_vec())
}

fn zeros() -> Reply {
    Reply::data(vec![0; IDENTIFY_LEN])
}

/// Answers an Identify command. A discovery controller has no subsystem.
pub fn identify(sqe: &Sqe, controller: &Arc<Controller>, subsystem: Option<&Subsystem>) -> Reply {
    let nsid = sqe.nsid.get();
    let Some(subsystem) = subsystem else {
        return match sqe.cns() {
            cns::CONTROLLER => reply(&identify_controller(controller, None)),
            _ => Status::INVALID_FIELD.dnr().into(),
        };
    };
    let namespace = subsystem.namespaces.get(&nsid).map(|n| &n.info);
    // Of an NSID that could be and is not, all is zero; one that could not be is an error.
    let of_namespace = |found: &dyn Fn(&NamespaceInfo) -> Reply| match namespace {
        Some(info) => found(info),
        None if (1..=super::MAX_NAMESPACES).contains(&nsid) => zeros(),
        None => Status::INVALID_NAMESPACE.dnr().into(),
    };
    match sqe.cns() {
        cns::NAMESPACE | cns::ALLOCATED_NAMESPACE => of_namespace(&|info| reply(&identify_namespace(info))),
        cns::CONTROLLER => reply(&identify_controller(controller, Some(subsystem))),
        cns::NAMESPACE_CSI | cns::CONTROLLER_CSI | cns::ACTIVE_NAMESPACES_CSI if sqe.identify_csi() != CSI_NVM => {
            Status::INVALID_FIELD.dnr().into()
        }
        // NSIDs from FFFFFFFEh on are no place in a list.
        cns::ACTIVE_NAMESPACES | cns::ACTIVE_NAMESPACES_CSI | cns::ALLOCATED_NAMESPACES if nsid >= NSID_ALL - 1 => {
            Status::INVALID_NAMESPACE.dnr().into()
        }
        cns::ACTIVE_NAMESPACES | cns::ACTIVE_NAMESPACES_CSI | cns::ALLOCATED_NAMESPACES => {
            reply(&NamespaceList::new(subsystem.namespaces.keys().copied(), nsid))
        }
        cns::NAMESPACE_DESCRIPTORS => match namespace {
            Some(info) => {
                let (nguid, uuid, csi) = (Some(info.nguid), Some(info.uuid), Some(CSI_NVM));
                reply(&NamespaceIds { eui64: None, nguid, uuid, csi }.to_bytes())
            }
            None => Status::INVALID_NAMESPACE.dnr().into(),
        },
        // No protection information.
        cns::NAMESPACE_CSI => of_namespace(&|_| zeros()),
        cns::CONTROLLER_CSI => {
            let mut id = IdentifyControllerNvm::new_zeroed();
            (id.wzsl, id.dmrsl) = (WZSL, DMRSL.into());
            reply(&id)
        }
        cns::NAMESPACE_INDEPENDENT => of_namespace(&|_| {
            let mut id = IdentifyNamespaceIndependent::new_zeroed();
            (id.nmic, id.nstat) = (NMIC_SHARED, NSTAT_READY);
            reply(&id)
        }),
        cns::ATTACHED_CONTROLLERS if namespace.is_none() => of_namespace(&|_| zeros()),
        cns::ATTACHED_CONTROLLERS | cns::CONTROLLERS => {
            let ids = subsystem.shared.controllers().into_iter().map(|c| c.cntlid);
            reply(&ControllerList::new(ids, sqe.cntid()))
        }
        cns::COMMAND_SETS => reply(&CommandSets::nvm()),
        _ => Status::INVALID_FIELD.dnr().into(),
    }
}

fn identify_controller(controller: &Controller, subsystem: Option<&Subsystem>) -> IdentifyController {
    let mut id = IdentifyController::new();
    let (serial, model) = subsystem.map_or(("raidd", "raidd discovery"), |s| (s.serial.as_str(), s.model.as_str()));
    id.sn = nvme_wire::ascii(serial);
    id.mn = nvme_wire::ascii(model);
    id.fr = nvme_wire::ascii(FIRMWARE);
    // Without these Linux refuses a second controller, and a second path, to the subsystem.
    id.cmic = cmic::MULTI_PORT | cmic::MULTI_CONTROLLER;
    id.mdts = (MAX_TRANSFER / 4096).ilog2() as u8;
    id.cntlid = controller.cntlid.into();
    id.ver = VERSION.into();
    id.oaes = events(controller).into();
    id.ctratt = (ctratt::HOST_ID_128 | ctratt::TBKAS).into();
    id.acl = 3;
    id.aerl = MAX_EVENTS as u8 - 1;
    id.frmw = FRMW_FIXED;
    id.lpa = lpa::EXTENDED | lpa::SUPPORTED_PAGES;
    id.kas = KAS.into();
    id.maxcmd = (MAX_ENTRIES as u16).into();
    id.subnqn = nqn::to_field(&controller.nqn);
    id.set_max_in_capsule(IN_CAPSULE);
    id.cntrltype = cntrltype::DISCOVERY;
    if let Some(subsystem) = subsystem {
        id.cntrltype = cntrltype::IO;
        id.lpa |= lpa::EFFECTS;
        id.nn = super::MAX_NAMESPACES.into();
        id.mnan = super::MAX_NAMESPACES.into();
        id.oncs = (oncs::COMPARE | oncs::DSM | oncs::WRITE_ZEROES | oncs::SAVE_SELECT).into();
        id.vwc = VWC_ONE_NAMESPACE | u8::from(subsystem.volatile_cache());
    }
    id
}

fn identify_namespace(info: &NamespaceInfo) -> IdentifyNamespace {
    let shift = info.block_size.trailing_zeros() as u8;
    let mut id = IdentifyNamespace::new(info.size >> shift, shift);
    let in_blocks = |bytes: u32| (bytes / info.block_size).clamp(1, 0xFFFF) as u16;
    let zero_based = |bytes: u32| in_blocks(bytes) - 1;
    if info.preferred_write > 0 || info.optimal_io > 0 {
        id.nsfeat |= nsfeat::OPTPERF;
        let write = zero_based(info.preferred_write.max(info.block_size));
        (id.npwg, id.npwa, id.npdg, id.npda) = (write.into(), write.into(), write.into(), write.into());
        id.nows = zero_based(info.optimal_io.max(info.preferred_write).max(info.block_size)).into();
    }
    if info.optimal_io > 0 {
        id.noiob = in_blocks(info.optimal_io).into();
    }
    if info.atomic_write > info.block_size {
        // With boundaries at its multiples: a write across one is as atomic as its parts.
        id.nsfeat |= nsfeat::NSABP;
        let atomic = zero_based(info.atomic_write);
        (id.nawun, id.nawupf, id.nabsn, id.nabspf) = (atomic.into(), atomic.into(), atomic.into(), atomic.into());
    }
    id.nmic = NMIC_SHARED;
    if info.deallocate {
        id.dlfeat = DLFEAT_ZEROS;
    }
    id.nguid = info.nguid;
    id
}
