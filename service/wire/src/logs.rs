//! Log pages (Base 5.1.12). The discovery log page is in [`crate::fabrics`].

use crate::command::{Sqe, admin};
use crate::layout;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Changed Namespace List (04h) has the form of an Identify list: after more than 1024 changes it holds one NSID FFFFFFFFh.
pub use crate::identify::NamespaceList as ChangedNamespaces;

/// Log page identifiers (Base figure 202).
pub mod lid {
    /// Supported Log Pages.
    pub const SUPPORTED_PAGES: u8 = 0x00;
    /// Error Information.
    pub const ERROR: u8 = 0x01;
    /// SMART / Health Information.
    pub const SMART: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// Changed Namespace List.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric Namespace Access.
    pub const ANA: u8 = 0x0c;
    /// Persistent Event Log.
    pub const PERSISTENT_EVENT: u8 = 0x0d;
    /// Feature Identifiers Supported and Effects.
    pub const FEATURES: u8 = 0x12;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
    /// Reservation Notification.
    pub const RESERVATION: u8 = 0x80;
}

/// Fields of Get Log Page, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GetLogPage {
    /// LID: the page, see [`lid`].
    pub lid: u8,
    /// LSP: specific to the page.
    pub lsp: u8,
    /// RAE: keep the asynchronous event that announced the page.
    pub rae: bool,
    /// Bytes that are asked for: (NUMD + 1) * 4. Up to 16 GiB, so bound it before it is used.
    pub len: u64,
    /// LPO: where to begin, in bytes. Low two bits must be 0.
    pub offset: u64,
    /// LSI: specific to the page.
    pub lsi: u16,
    /// OT: the offset is an index. Bit 23 of CDW14.
    pub index_offset: bool,
    /// CSI.
    pub csi: u8,
}

impl GetLogPage {
    /// From the command.
    pub fn parse(sqe: &Sqe) -> GetLogPage {
        let (dw10, dw11, dw14) = (sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw14.get());
        GetLogPage {
            lid: dw10 as u8,
            lsp: (dw10 >> 8 & 0x7f) as u8,
            rae: dw10 & 1 << 15 != 0,
            len: (u64::from(dw10 >> 16 | dw11 << 16) + 1) * 4,
            offset: u64::from(sqe.cdw12.get()) | u64::from(sqe.cdw13.get()) << 32,
            lsi: (dw11 >> 16) as u16,
            index_offset: dw14 & 1 << 23 != 0,
            csi: (dw14 >> 24) as u8,
        }
    }

    /// The command. `len` must be a multiple of 4, from 4 to 16 GiB.
    pub fn to_sqe(&self, cid: u16, nsid: u32) -> Sqe {
        let numd = (self.len / 4).saturating_sub(1) as u32;
        let mut sqe = Sqe::new(admin::GET_LOG_PAGE, cid, nsid);
        sqe.cdw10 = U32::new(
            u32::from(self.lid) | u32::from(self.lsp & 0x7f) << 8 | u32::from(self.rae) << 15 | (numd & 0xffff) << 16,
        );
        sqe.cdw11 = U32::new(numd >> 16 | u32::from(self.lsi) << 16);
        sqe.cdw12 = U32::new(self.offset as u32);
        sqe.cdw13 = U32::new((self.offset >> 32) as u32);
        sqe.cdw14 = U32::new(u32::from(self.index_offset) << 23 | u32::from(self.csi) << 24);
        sqe
    }
}

/// The part of a page that a Get Log Page asks for: `len` bytes from `offset`. Bytes behind the page's end are not in it;
/// the controller sends zeros for them. `None` if the offset is behind the page.
pub fn part(page: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let page = page.get(usize::try_from(offset).ok()?..)?;
    Some(&page[..page.len().min(usize::try_from(len).unwrap_or(usize::MAX))])
}

/// SMART / Health Information, 02h (Base figure 206).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmartLog {
    /// CW: critical warning: bit 0 spare, 1 temperature, 2 reliability degraded, 3 read-only, 4 backup failed.
    pub critical_warning: u8,
    /// CTEMP: temperature, kelvin.
    pub temperature: U16,
    /// AVSP: available spare, percent.
    pub available_spare: u8,
    /// AVSPT: its threshold, percent.
    pub available_spare_threshold: u8,
    /// PUSED: percent of life used.
    pub percentage_used: u8,
    /// EGCWS: endurance group warnings.
    pub endurance_group_warning: u8,
    /// Reserved.
    pub reserved7: [u8; 25],
    /// DUR: data units read, in 1000 units of 512 bytes, rounded up.
    pub data_units_read: U128,
    /// DUW: data units written, likewise.
    pub data_units_written: U128,
    /// HRC: read commands.
    pub host_reads: U128,
    /// HWC: write commands.
    pub host_writes: U128,
    /// CBT: controller busy, minutes.
    pub controller_busy: U128,
    /// PWRC: power cycles.
    pub power_cycles: U128,
    /// POH: power-on hours.
    pub power_on_hours: U128,
    /// UPL: unexpected power losses.
    pub unsafe_shutdowns: U128,
    /// MDIE: media and data integrity errors.
    pub media_errors: U128,
    /// NEILE: error log entries over the controller's life.
    pub error_log_entries: U128,
    /// WCTT: minutes over the warning temperature.
    pub warning_temp_time: U32,
    /// CCTT: minutes over the critical temperature.
    pub critical_temp_time: U32,
    /// TSEN: temperature sensors, kelvin; 0 is absent.
    pub temperature_sensors: [U16; 8],
    /// Thermal management counters and reserved.
    pub reserved216: [u8; 296],
}
layout!(
    SmartLog, 512, temperature @ 1, available_spare @ 3, percentage_used @ 5, data_units_read @ 32, host_reads @ 64,
    power_cycles @ 112, media_errors @ 160, error_log_entries @ 176, warning_temp_time @ 192, temperature_sensors @ 200
);

impl SmartLog {
    /// DUR and DUW of this many bytes: thousands of 512-byte units, rounded up.
    pub const fn data_units(bytes: u128) -> u128 {
        bytes.div_ceil(512_000)
    }
}

/// Entry of Error Information, 01h (Base figure 205).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// ECNT: number of this error, from 1; 0 is an unused entry.
    pub error_count: U64,
    /// SQID: queue of the command, FFFFh for none.
    pub sqid: U16,
    /// CID: the command, FFFFh for none.
    pub cid: U16,
    /// STS: status field and phase tag.
    pub status: U16,
    /// PEL: byte in bits 7:0 and bit in 10:8 of the bad field; FFFFh for none.
    pub parameter_location: U16,
    /// LBA.
    pub lba: U64,
    /// NSID.
    pub nsid: U32,
    /// VSIA: vendor specific information.
    pub vendor_page: u8,
    /// TRTYPE: transport; 3 is TCP.
    pub trtype: u8,
    /// CSI.
    pub csi: u8,
    /// OPC: the command's opcode.
    pub opcode: u8,
    /// CSINFO: command specific information.
    pub command_info: U64,
    /// TTSI: transport specific information.
    pub transport_info: U16,
    /// Reserved.
    pub reserved42: [u8; 21],
    /// LPVER: format, 1.
    pub version: u8,
}
layout!(
    ErrorLogEntry, 64, sqid @ 8, cid @ 10, status @ 12, parameter_location @ 14, lba @ 16, nsid @ 24, trtype @ 29,
    opcode @ 31, command_info @ 32, transport_info @ 40, version @ 63
);

/// Firmware Slot Information, 03h (Base figure 207).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// AFI: active slot in bits 2:0, next one in 6:4.
    pub afi: u8,
    /// Reserved.
    pub reserved1: [u8; 7],
    /// FRS: revisions in slots 1 to 7.
    pub frs: [[u8; 8]; 7],
    /// Reserved.
    pub reserved64: [u8; 448],
}
layout!(FirmwareSlotLog, 512, frs @ 8, reserved64 @ 64);

impl FirmwareSlotLog {
    /// One slot, active.
    pub fn new(revision: &str) -> FirmwareSlotLog {
        let mut log = FirmwareSlotLog::new_zeroed();
        log.afi = 1;
        log.frs[0] = crate::ascii(revision);
        log
    }
}

/// Commands Supported and Effects, 05h (Base figure 210).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EffectsLog {
    /// ACS: admin commands by opcode, see [`effects`].
    pub acs: [U32; 256],
    /// IOCS: I/O commands by opcode.
    pub iocs: [U32; 256],
    /// Reserved.
    pub reserved2048: [u8; 2048],
}
layout!(EffectsLog, 4096, iocs @ 1024, reserved2048 @ 2048);

impl EffectsLog {
    /// Commands with their effects: (opcode, bits of [`effects`]). CSUPP is added.
    pub fn new(admin: &[(u8, u32)], io: &[(u8, u32)]) -> EffectsLog {
        let mut log = EffectsLog::new_zeroed();
        for &(opcode, bits) in admin {
            log.acs[usize::from(opcode)].set(effects::CSUPP | bits);
        }
        for &(opcode, bits) in io {
            log.iocs[usize::from(opcode)].set(effects::CSUPP | bits);
        }
        log
    }
}

/// Bits of the entries of [`EffectsLog`].
pub mod effects {
    /// CSUPP: supported.
    pub const CSUPP: u32 = 1 << 0;
    /// LBCC: may change the content of logical blocks.
    pub const LBCC: u32 = 1 << 1;
    /// NCC: may change a namespace's capabilities.
    pub const NCC: u32 = 1 << 2;
    /// NIC: may change the inventory of namespaces.
    pub const NIC: u32 = 1 << 3;
    /// CCC: may change the controller's capabilities.
    pub const CCC: u32 = 1 << 4;
}

/// Supported Log Pages, 00h (Base figure 203).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SupportedPages {
    /// LIDS by LID: bit 0 LSUPP supported.
    pub lids: [U32; 256],
}
layout!(SupportedPages, 1024);

impl SupportedPages {
    /// These pages.
    pub fn new(lids: &[u8]) -> SupportedPages {
        let mut log = SupportedPages::new_zeroed();
        for &lid in lids {
            log.lids[usize::from(lid)].set(1);
        }
        log
    }
}

/// State of an ANA group (Base figure 220).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AnaState {
    /// Optimized.
    Optimized = 0x01,
    /// Non-optimized.
    NonOptimized = 0x02,
    /// Inaccessible.
    Inaccessible = 0x03,
    /// Persistent loss.
    PersistentLoss = 0x04,
    /// In transition.
    Change = 0x0f,
}

/// Header of Asymmetric Namespace Access, 0Ch (Base figure 218). Group descriptors follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaHeader {
    /// CHGCNT: changes with the page.
    pub chgcnt: U64,
    /// NAGD: group descriptors.
    pub ngrps: U16,
    /// Reserved.
    pub reserved10: [u8; 6],
}
layout!(AnaHeader, 16, ngrps @ 8);

/// Group descriptor of Asymmetric Namespace Access (Base figure 219). `nnsids` NSIDs of 4 bytes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaGroup {
    /// AGID: the group.
    pub grpid: U32,
    /// NNV: NSIDs that follow; 0 with LSP.RGO.
    pub nnsids: U32,
    /// CHGCNT: changes with this descriptor.
    pub chgcnt: U64,
    /// ANAS: an [`AnaState`].
    pub state: u8,
    /// Reserved.
    pub reserved17: [u8; 15],
}
layout!(AnaGroup, 32, nnsids @ 4, chgcnt @ 8, state @ 16);

impl AnaHeader {
    /// A header.
    pub const fn new(chgcnt: u64, ngrps: u16) -> AnaHeader {
        AnaHeader { chgcnt: U64::new(chgcnt), ngrps: U16::new(ngrps), reserved10: [0; 6] }
    }
}

impl AnaGroup {
    /// A descriptor.
    pub const fn new(grpid: u32, nnsids: u32, chgcnt: u64, state: AnaState) -> AnaGroup {
        AnaGroup {
            grpid: U32::new(grpid),
            nnsids: U32::new(nnsids),
            chgcnt: U64::new(chgcnt),
            state: state as u8,
            reserved17: [0; 15],
        }
    }
}
