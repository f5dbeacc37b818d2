//! Log pages.

use std::net::SocketAddr;

use nvme_wire::command::{Status, admin, io};
use nvme_wire::fabrics::{DiscoveryLogEntry, DiscoveryLogHeader};
use nvme_wire::zerocopy::IntoBytes;

use super::admin::MAX_CHANGED;
use super::controller::Controller;
use super::counters::Totals;
use super::identify::{Page, firmware};
use super::subsystem::{Registry, Subsystem};

/// Supported Log Pages.
const SUPPORTED: u8 = 0x00;
/// Error Information.
const ERRORS: u8 = 0x01;
/// SMART / Health Information.
const SMART: u8 = 0x02;
/// Firmware Slot Information.
const FIRMWARE: u8 = 0x03;
/// Changed Namespace List.
pub const CHANGED_NAMESPACES: u8 = 0x04;
/// Commands Supported and Effects.
const EFFECTS: u8 = 0x05;
/// Discovery.
pub const DISCOVERY: u8 = 0x70;

/// CSUPP.
const SUPPORTED_COMMAND: u32 = 1;
/// LBCC: the command may change data.
const CHANGES_DATA: u32 = 1 << 1;
/// TREQ bit 2: the host may disable the flow control of submission queues.
const TREQ_FLOW_CONTROL: u8 = 1 << 2;

/// A log page of an I/O controller.
pub fn page(lid: u8, subsystem: &Subsystem, changed: &[u32]) -> Result<Vec<u8>, Status> {
    match lid {
        SUPPORTED => Ok(supported(&[SUPPORTED, ERRORS, SMART, FIRMWARE, CHANGED_NAMESPACES, EFFECTS])),
        ERRORS => Ok(vec![0; 64]),
        SMART => Ok(smart(subsystem)),
        FIRMWARE => {
            let mut page = Page::new(512);
            page.put(0, &[1]);
            page.put(8, &firmware());
            Ok(page.0)
        }
        CHANGED_NAMESPACES => {
            let mut page = Page::new(4096);
            if changed.len() > MAX_CHANGED {
                page.u32(0, u32::MAX);
            } else {
                let mut sorted = changed.to_vec();
                sorted.sort_unstable();
                sorted.iter().enumerate().for_each(|(n, nsid)| page.u32(n * 4, *nsid));
            }
            Ok(page.0)
        }
        EFFECTS => {
            let mut page = Page::new(4096);
            let admin_commands = [
                admin::GET_LOG_PAGE,
                admin::IDENTIFY,
                admin::ABORT,
                admin::SET_FEATURES,
                admin::GET_FEATURES,
                admin::ASYNC_EVENT_REQUEST,
                admin::KEEP_ALIVE,
            ];
            admin_commands.iter().for_each(|c| page.u32(usize::from(*c) * 4, SUPPORTED_COMMAND));
            let io_commands = [
                (io::FLUSH, 0),
                (io::WRITE, CHANGES_DATA),
                (io::READ, 0),
                (io::COMPARE, 0),
                (io::WRITE_ZEROES, CHANGES_DATA),
                (io::DATASET_MANAGEMENT, CHANGES_DATA),
            ];
            io_commands.iter().for_each(|(c, e)| page.u32(1024 + usize::from(*c) * 4, SUPPORTED_COMMAND | e));
            Ok(page.0)
        }
        _ => Err(Status::INVALID_LOG_PAGE.dnr()),
    }
}

/// A log page of a discovery controller.
pub fn discovery_controller(
    lid: u8,
    registry: &Registry,
    controller: &Controller,
    local: SocketAddr,
) -> Result<Vec<u8>, Status> {
    match lid {
        SUPPORTED => Ok(supported(&[SUPPORTED, ERRORS, DISCOVERY])),
        ERRORS => Ok(vec![0; 64]),
        DISCOVERY => Ok(discovery(registry, &controller.host_nqn, local)),
        _ => Err(Status::INVALID_LOG_PAGE.dnr()),
    }
}

fn supported(pages: &[u8]) -> Vec<u8> {
    let mut page = Page::new(1024);
    pages.iter().for_each(|lid| page.u32(usize::from(*lid) * 4, 1));
    page.0
}

/// What this host may connect to. Header and entries come from one snapshot, and the generation counter is the
/// snapshot's, so a host that reads in parts sees when they do not belong together.
fn discovery(registry: &Registry, host: &str, local: SocketAddr) -> Vec<u8> {
    let mut entries = Vec::new();
    for subsystem in registry.subsystems.values().filter(|s| s.hosts.allow(host)) {
        for (port, listener) in registry.listeners.iter().enumerate() {
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

fn smart(subsystem: &Subsystem) -> Vec<u8> {
    let mut sum = Totals::default();
    subsystem.shared.hosts().into_values().for_each(|t| sum += t);
    let mut page = Page::new(512);
    // Spare capacity in percent; its threshold.
    page.put(3, &[100, 10]);
    // Data units are thousands of 512 bytes, rounded up.
    page.u64(32, sum.read_bytes.div_ceil(512_000));
    page.u64(48, sum.write_bytes.div_ceil(512_000));
    page.u64(64, sum.reads);
    page.u64(80, sum.writes);
    page.0
}
