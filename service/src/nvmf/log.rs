//! Log pages.

use std::net::SocketAddr;

use nvme_wire::command::{Status, admin, io};
use nvme_wire::fabrics::{DiscoveryLogEntry, DiscoveryLogHeader};
use nvme_wire::identify::NamespaceList;
use nvme_wire::logs::{EffectsLog, ErrorLogEntry, FirmwareSlotLog, SmartLog, SupportedPages, effects, lid};
use nvme_wire::zerocopy::{FromZeros, IntoBytes};

use super::admin::MAX_CHANGED;
use super::controller::Controller;
use super::counters::Totals;
use super::identify::FIRMWARE;
use super::subsystem::{Registry, Subsystem};

/// TREQ bit 2: the host may disable the flow control of submission queues.
const TREQ_FLOW_CONTROL: u8 = 1 << 2;

/// A log page of an I/O controller.
pub fn page(page: u8, subsystem: &Subsystem, changed: &[u32]) -> Result<Vec<u8>, Status> {
    Ok(match page {
        lid::SUPPORTED_PAGES => {
            let pages = [
                lid::SUPPORTED_PAGES,
                lid::ERROR,
                lid::SMART,
                lid::FIRMWARE_SLOT,
                lid::CHANGED_NAMESPACES,
                lid::EFFECTS,
            ];
            SupportedPages::new(&pages).as_bytes().to_vec()
        }
        lid::ERROR => ErrorLogEntry::new_zeroed().as_bytes().to_vec(),
        lid::SMART => smart(subsystem).as_bytes().to_vec(),
        lid::FIRMWARE_SLOT => FirmwareSlotLog::new(FIRMWARE).as_bytes().to_vec(),
        lid::CHANGED_NAMESPACES if changed.len() > MAX_CHANGED => {
            // More than the page holds: it says "look at all of them".
            NamespaceList::new([u32::MAX], 0).as_bytes().to_vec()
        }
        lid::CHANGED_NAMESPACES => {
            let mut sorted = changed.to_vec();
            sorted.sort_unstable();
            NamespaceList::new(sorted, 0).as_bytes().to_vec()
        }
        lid::EFFECTS => {
            let admin_commands = [
                admin::GET_LOG_PAGE,
                admin::IDENTIFY,
                admin::ABORT,
                admin::SET_FEATURES,
                admin::GET_FEATURES,
                admin::ASYNC_EVENT_REQUEST,
                admin::KEEP_ALIVE,
            ];
            let io_commands = [
                (io::FLUSH, 0),
                (io::WRITE, effects::LBCC),
                (io::READ, 0),
                (io::COMPARE, 0),
                (io::WRITE_ZEROES, effects::LBCC),
                (io::DATASET_MANAGEMENT, effects::LBCC),
            ];
            EffectsLog::new(&admin_commands.map(|c| (c, 0)), &io_commands).as_bytes().to_vec()
        }
        _ => return Err(Status::INVALID_LOG_PAGE.dnr()),
    })
}

/// A log page of a discovery controller.
pub fn discovery_page(
    page: u8,
    registry: &Registry,
    controller: &Controller,
    local: SocketAddr,
) -> Result<Vec<u8>, Status> {
    Ok(match page {
        lid::SUPPORTED_PAGES => {
            SupportedPages::new(&[lid::SUPPORTED_PAGES, lid::ERROR, lid::DISCOVERY]).as_bytes().to_vec()
        }
        lid::ERROR => ErrorLogEntry::new_zeroed().as_bytes().to_vec(),
        lid::DISCOVERY => discovery(registry, &controller.host_nqn, local),
        _ => return Err(Status::INVALID_LOG_PAGE.dnr()),
    })
}

/// What this host may connect to. Header and entries come from one snapshot, and the generation counter is the
/// snapshot's, so a host that reads in parts sees when they do not belong together.
fn discovery(registry: &Registry, host: &str, local: SocketAddr) -> Vec<u8> {
    let mut entries = Vec::new();
    for subsystem in registry.subsystems.values().filter(|s| s.hosts.allow(host)) {
        for (port, listener) in registry.listeners.iter().enumerate().filter(|(_, l)| subsystem.ports.has(l)) {
            // A listener on all addresses is reached the way that the host has come.
            let ip = if listener.ip().is_unspecified() { local.ip().to_canonical() } else { listener.ip() };
            let addr = SocketAddr::new(ip, listener.port());
            let mut entry =
                DiscoveryLogEntry::tcp(DiscoveryLogEntry::SUBTYPE_NVM, port as u16 + 1, &subsystem.nqn, addr);
            entry.treq |= TREQ_FLOW_CONTROL;
            entries.push(entry);
        }
    }
    let mut page = DiscoveryLogHeader::new(registry.generation, entries.len() as u64).as_bytes().to_vec();
    page.extend_from_slice(entries.as_bytes());
    page
}

fn smart(subsystem: &Subsystem) -> SmartLog {
    let mut sum = Totals::default();
    subsystem.shared.hosts().into_values().for_each(|t| sum += t);
    let mut log = SmartLog::new_zeroed();
    (log.available_spare, log.available_spare_threshold) = (100, 10);
    log.data_units_read = SmartLog::data_units(u128::from(sum.read_bytes)).into();
    log.data_units_written = SmartLog::data_units(u128::from(sum.write_bytes)).into();
    log.host_reads = u128::from(sum.reads).into();
    log.host_writes = u128::from(sum.writes).into();
    log
}
