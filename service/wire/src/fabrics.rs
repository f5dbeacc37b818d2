//! Fabrics commands (Base 6), controller properties (Base 3.1.4) and the discovery log page (Base 5.1.12.3.1).

use crate::command::{Sgl, Sqe, admin, fctype};
use crate::layout;
use crate::nqn::{self, NqnError};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// CNTLID of a Connect that asks for a dynamic controller.
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// CNTLID of a Connect that asks for any static controller.
pub const CNTLID_STATIC: u16 = 0xfffe;
/// Bytes of [`ConnectData`].
pub const CONNECT_DATA_LEN: usize = 1024;

/// Connect command (Base 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectCmd {
    /// OPC 7Fh.
    pub opcode: u8,
    /// PSDT in bits 7:6.
    pub flags: u8,
    /// CID.
    pub cid: U16,
    /// FCTYPE 01h.
    pub fctype: u8,
    /// Reserved.
    pub reserved5: [u8; 19],
    /// SGL1: 1024 bytes of [`ConnectData`].
    pub sgl: Sgl,
    /// RECFMT: format of this command, 0.
    pub recfmt: U16,
    /// QID: 0 for the admin queue.
    pub qid: U16,
    /// SQSIZE: entries of the queue, zero-based.
    pub sqsize: U16,
    /// CATTR: see [`cattr`].
    pub cattr: u8,
    /// Reserved.
    pub reserved47: u8,
    /// KATO: keep alive timeout in milliseconds; 0 for none.
    pub kato: U32,
    /// Reserved.
    pub reserved52: [u8; 12],
}
layout!(
    ConnectCmd, 64, cid @ 2, fctype @ 4, sgl @ 24, recfmt @ 40, qid @ 42, sqsize @ 44, cattr @ 46, kato @ 48
);

/// Bits of [`ConnectCmd::cattr`].
pub mod cattr {
    /// Priority class of an I/O queue, bits 1:0.
    pub const PRIORITY: u8 = 3;
    /// DISSQFC: the host wants SQ flow control disabled (then SQHD of completions is FFFFh).
    pub const DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;
    /// IOQDEL: the host supports deletion of single I/O queues by Disconnect.
    pub const INDIVIDUAL_QUEUE_DELETION: u8 = 1 << 3;
}

impl ConnectCmd {
    /// A Connect with its data in the capsule. `entries` is the queue's size, 2 to 65536.
    pub fn new(cid: u16, qid: u16, entries: u32, kato_ms: u32) -> ConnectCmd {
        ConnectCmd {
            opcode: admin::FABRICS,
            flags: crate::command::PSDT_SGL,
            cid: U16::new(cid),
            fctype: fctype::CONNECT,
            reserved5: [0; 19],
            sgl: Sgl::in_capsule(CONNECT_DATA_LEN as u32),
            recfmt: U16::ZERO,
            qid: U16::new(qid),
            sqsize: U16::new(entries.saturating_sub(1).min(0xffff) as u16),
            cattr: 0,
            reserved47: 0,
            kato: U32::new(kato_ms),
            reserved52: [0; 12],
        }
    }
}

/// Data of Connect (Base figure 546).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// HOSTID: the host's identifier, 128 bits.
    pub hostid: [u8; 16],
    /// CNTLID: FFFFh for a dynamic controller; for an I/O queue the admin queue's.
    pub cntlid: U16,
    /// Reserved.
    pub reserved18: [u8; 238],
    /// SUBNQN: the subsystem's name, NUL-terminated.
    pub subnqn: [u8; 256],
    /// HOSTNQN: the host's name, NUL-terminated.
    pub hostnqn: [u8; 256],
    /// Reserved.
    pub reserved768: [u8; 256],
}
layout!(ConnectData, 1024, hostid @ 0, cntlid @ 16, subnqn @ 256, hostnqn @ 512, reserved768 @ 768);

impl ConnectData {
    /// The data for these names.
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: &str, hostnqn: &str) -> ConnectData {
        ConnectData {
            hostid,
            cntlid: U16::new(cntlid),
            reserved18: [0; 238],
            subnqn: nqn::to_field(subnqn),
            hostnqn: nqn::to_field(hostnqn),
            reserved768: [0; 256],
        }
    }

    /// Reads the data from exactly 1024 bytes or more. `None` if there are fewer.
    pub fn parse(bytes: &[u8]) -> Option<&ConnectData> {
        ConnectData::ref_from_prefix(bytes).ok().map(|(data, _)| data)
    }

    /// The subsystem's name, checked.
    pub fn subnqn(&self) -> Result<&str, (NqnError, InvalidParameter)> {
        nqn::from_field(&self.subnqn).map_err(|e| (e, InvalidParameter::SUBNQN))
    }

    /// The host's name, checked.
    pub fn hostnqn(&self) -> Result<&str, (NqnError, InvalidParameter)> {
        nqn::from_field(&self.hostnqn).map_err(|e| (e, InvalidParameter::HOSTNQN))
    }
}

/// DW0 of a Connect that failed with Connect Invalid Parameters: which field is wrong (Base figure 547).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidParameter {
    /// IPO: offset of the field, in bytes.
    pub ipo: u16,
    /// IATTR bit 0: the offset is in the data; otherwise in the command.
    pub in_data: bool,
}

impl InvalidParameter {
    /// QID of the command.
    pub const QID: InvalidParameter = InvalidParameter { ipo: 42, in_data: false };
    /// SQSIZE of the command.
    pub const SQSIZE: InvalidParameter = InvalidParameter { ipo: 44, in_data: false };
    /// CATTR of the command.
    pub const CATTR: InvalidParameter = InvalidParameter { ipo: 46, in_data: false };
    /// KATO of the command.
    pub const KATO: InvalidParameter = InvalidParameter { ipo: 48, in_data: false };
    /// HOSTID of the data.
    pub const HOSTID: InvalidParameter = InvalidParameter { ipo: 0, in_data: true };
    /// CNTLID of the data.
    pub const CNTLID: InvalidParameter = InvalidParameter { ipo: 16, in_data: true };
    /// SUBNQN of the data.
    pub const SUBNQN: InvalidParameter = InvalidParameter { ipo: 256, in_data: true };
    /// HOSTNQN of the data.
    pub const HOSTNQN: InvalidParameter = InvalidParameter { ipo: 512, in_data: true };

    /// The completion's DW0.
    pub const fn to_dw0(self) -> u32 {
        self.ipo as u32 | if self.in_data { 1 << 16 } else { 0 }
    }

    /// From the completion's DW0.
    pub const fn from_dw0(dw0: u32) -> InvalidParameter {
        InvalidParameter { ipo: dw0 as u16, in_data: dw0 & 1 << 16 != 0 }
    }
}

/// Property Set and Property Get commands (Base 6.6, 6.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PropertyCmd {
    /// OPC 7Fh.
    pub opcode: u8,
    /// Reserved.
    pub flags: u8,
    /// CID.
    pub cid: U16,
    /// FCTYPE 00h (set) or 04h (get).
    pub fctype: u8,
    /// Reserved.
    pub reserved5: [u8; 35],
    /// ATTRIB: bits 2:0 give the size: 0 for 4 bytes, 1 for 8.
    pub attrib: u8,
    /// Reserved.
    pub reserved41: [u8; 3],
    /// OFST: the property's offset, see [`property`].
    pub ofst: U32,
    /// VALUE of Property Set.
    pub value: U64,
    /// Reserved.
    pub reserved56: [u8; 8],
}
layout!(PropertyCmd, 64, cid @ 2, fctype @ 4, attrib @ 40, ofst @ 44, value @ 48);

impl PropertyCmd {
    fn new(cid: u16, fctype: u8, ofst: u32, value: u64) -> PropertyCmd {
        PropertyCmd {
            opcode: admin::FABRICS,
            flags: crate::command::PSDT_SGL,
            cid: U16::new(cid),
            fctype,
            reserved5: [0; 35],
            attrib: u8::from(property::size(ofst) == 8),
            reserved41: [0; 3],
            ofst: U32::new(ofst),
            value: U64::new(value),
            reserved56: [0; 8],
        }
    }

    /// Property Get.
    pub fn get(cid: u16, ofst: u32) -> PropertyCmd {
        PropertyCmd::new(cid, fctype::PROPERTY_GET, ofst, 0)
    }

    /// Property Set.
    pub fn set(cid: u16, ofst: u32, value: u64) -> PropertyCmd {
        PropertyCmd::new(cid, fctype::PROPERTY_SET, ofst, value)
    }

    /// Bytes of the property that the host names in ATTRIB: 4 or 8, `None` for reserved values.
    pub const fn size(&self) -> Option<usize> {
        match self.attrib & 7 {
            0 => Some(4),
            1 => Some(8),
            _ => None,
        }
    }
}

/// Disconnect command (Base 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DisconnectCmd {
    /// OPC 7Fh.
    pub opcode: u8,
    /// Reserved.
    pub flags: u8,
    /// CID.
    pub cid: U16,
    /// FCTYPE 08h.
    pub fctype: u8,
    /// Reserved.
    pub reserved5: [u8; 35],
    /// RECFMT: format of this command, 0.
    pub recfmt: U16,
    /// Reserved.
    pub reserved42: [u8; 22],
}
layout!(DisconnectCmd, 64, cid @ 2, fctype @ 4, recfmt @ 40);

impl Sqe {
    /// This command as a Connect. The caller has looked at the opcode and FCTYPE.
    pub fn as_connect(&self) -> &ConnectCmd {
        zerocopy::transmute_ref!(self)
    }

    /// This command as a Property Get or Set. The caller has looked at the opcode and FCTYPE.
    pub fn as_property(&self) -> &PropertyCmd {
        zerocopy::transmute_ref!(self)
    }

    /// This command as a Disconnect. The caller has looked at the opcode and FCTYPE.
    pub fn as_disconnect(&self) -> &DisconnectCmd {
        zerocopy::transmute_ref!(self)
    }
}

impl From<ConnectCmd> for Sqe {
    fn from(cmd: ConnectCmd) -> Sqe {
        zerocopy::transmute!(cmd)
    }
}

impl From<PropertyCmd> for Sqe {
    fn from(cmd: PropertyCmd) -> Sqe {
        zerocopy::transmute!(cmd)
    }
}

impl From<DisconnectCmd> for Sqe {
    fn from(cmd: DisconnectCmd) -> Sqe {
        zerocopy::transmute!(cmd)
    }
}

/// Offsets of the controller's properties (Base 3.1.4).
pub mod property {
    /// CAP: controller capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// VS: version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// CC: controller configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// CSTS: controller status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// NSSR: subsystem reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// CRTO: controller ready timeouts, 4 bytes.
    pub const CRTO: u32 = 0x68;

    /// Bytes of the property at this offset.
    pub const fn size(ofst: u32) -> usize {
        if ofst == CAP { 8 } else { 4 }
    }
}

/// Value of VS for specification 1.4: major in bits 31:16, minor in 15:8, tertiary in 7:0.
pub const VERSION_1_4: u32 = 0x0001_0400;
/// Value of VS for specification 2.0.
pub const VERSION_2_0: u32 = 0x0002_0000;
/// Value of VS for specification 2.1.
pub const VERSION_2_1: u32 = 0x0002_0100;

/// CAP, controller capabilities (Base figure 36), by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cap {
    /// MQES: entries of a queue at most, zero-based.
    pub mqes: u16,
    /// CQR: queues are contiguous. 1 on fabrics.
    pub cqr: bool,
    /// TO: longest time for CSTS.RDY to change, in units of 500 ms.
    pub to: u8,
    /// NSSRS: subsystem reset supported.
    pub nssrs: bool,
    /// CSS: command sets: bit 0 NVM, bit 6 I/O command sets by Identify (CC.CSS 110b), bit 7 none.
    pub css: u8,
    /// MPSMIN: smallest memory page is 2^(12+MPSMIN).
    pub mpsmin: u8,
    /// MPSMAX: largest memory page is 2^(12+MPSMAX).
    pub mpsmax: u8,
}

impl Cap {
    /// CSS bit 0: the NVM command set.
    pub const CSS_NVM: u8 = 1 << 0;
    /// CSS bit 6: one or more I/O command sets, selected by CC.CSS 110b.
    pub const CSS_IO: u8 = 1 << 6;

    /// The property's value.
    pub const fn to_u64(self) -> u64 {
        self.mqes as u64
            | (self.cqr as u64) << 16
            | (self.to as u64) << 24
            | (self.nssrs as u64) << 36
            | (self.css as u64) << 37
            | (self.mpsmin as u64 & 0xf) << 48
            | (self.mpsmax as u64 & 0xf) << 52
    }

    /// From the property's value.
    pub const fn from_u64(value: u64) -> Cap {
        Cap {
            mqes: value as u16,
            cqr: value & 1 << 16 != 0,
            to: (value >> 24) as u8,
            nssrs: value & 1 << 36 != 0,
            css: (value >> 37) as u8,
            mpsmin: (value >> 48 & 0xf) as u8,
            mpsmax: (value >> 52 & 0xf) as u8,
        }
    }
}

/// CC, controller configuration (Base figure 41), by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cc {
    /// EN: enable.
    pub en: bool,
    /// CSS: selected command set: 000b NVM, 110b all that are supported, 111b admin only.
    pub css: u8,
    /// MPS: memory page size, 2^(12+MPS).
    pub mps: u8,
    /// AMS: arbitration.
    pub ams: u8,
    /// SHN: shutdown notification: 01b normal, 10b abrupt.
    pub shn: u8,
    /// IOSQES: size of a submission queue entry as a power of two: 6.
    pub iosqes: u8,
    /// IOCQES: size of a completion queue entry as a power of two: 4.
    pub iocqes: u8,
}

impl Cc {
    /// The property's value.
    pub const fn to_u32(self) -> u32 {
        self.en as u32
            | (self.css as u32 & 7) << 4
            | (self.mps as u32 & 0xf) << 7
            | (self.ams as u32 & 7) << 11
            | (self.shn as u32 & 3) << 14
            | (self.iosqes as u32 & 0xf) << 16
            | (self.iocqes as u32 & 0xf) << 20
    }

    /// From the property's value.
    pub const fn from_u32(value: u32) -> Cc {
        Cc {
            en: value & 1 != 0,
            css: (value >> 4 & 7) as u8,
            mps: (value >> 7 & 0xf) as u8,
            ams: (value >> 11 & 7) as u8,
            shn: (value >> 14 & 3) as u8,
            iosqes: (value >> 16 & 0xf) as u8,
            iocqes: (value >> 20 & 0xf) as u8,
        }
    }
}

/// CSTS, controller status (Base figure 42), by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Csts {
    /// RDY: ready.
    pub rdy: bool,
    /// CFS: controller fatal status.
    pub cfs: bool,
    /// SHST: shutdown status: 00b none, 01b in progress, 10b complete.
    pub shst: u8,
}

impl Csts {
    /// SHST: shutdown in progress.
    pub const SHST_OCCURRING: u8 = 1;
    /// SHST: shutdown complete.
    pub const SHST_COMPLETE: u8 = 2;

    /// The property's value.
    pub const fn to_u32(self) -> u32 {
        self.rdy as u32 | (self.cfs as u32) << 1 | (self.shst as u32 & 3) << 2
    }

    /// From the property's value.
    pub const fn from_u32(value: u32) -> Csts {
        Csts { rdy: value & 1 != 0, cfs: value & 2 != 0, shst: (value >> 2 & 3) as u8 }
    }
}

/// Header of the discovery log page, 70h (Base figure 294). The entries follow at byte 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryLogHeader {
    /// GENCTR: changes with every change of the entries.
    pub genctr: U64,
    /// NUMREC: entries.
    pub numrec: U64,
    /// RECFMT: format of the entries, 0.
    pub recfmt: U16,
    /// Reserved.
    pub reserved18: [u8; 1006],
}
layout!(DiscoveryLogHeader, 1024, genctr @ 0, numrec @ 8, recfmt @ 16);

impl DiscoveryLogHeader {
    /// A header of format 0.
    pub const fn new(genctr: u64, numrec: u64) -> DiscoveryLogHeader {
        DiscoveryLogHeader {
            genctr: U64::new(genctr),
            numrec: U64::new(numrec),
            recfmt: U16::ZERO,
            reserved18: [0; 1006],
        }
    }
}

/// Entry of the discovery log page (Base figure 295).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryLogEntry {
    /// TRTYPE: transport; 3 is TCP.
    pub trtype: u8,
    /// ADRFAM: address family; 1 is IPv4, 2 is IPv6.
    pub adrfam: u8,
    /// SUBTYPE: 1 referral, 2 NVM subsystem, 3 this discovery subsystem.
    pub subtype: u8,
    /// TREQ: transport requirements: secure channel in bits 1:0.
    pub treq: u8,
    /// PORTID: the port within the subsystem.
    pub portid: U16,
    /// CNTLID: FFFFh where controllers are dynamic.
    pub cntlid: U16,
    /// ASQSZ: entries of the admin queue at most.
    pub asqsz: U16,
    /// EFLAGS.
    pub eflags: U16,
    /// Reserved.
    pub reserved12: [u8; 20],
    /// TRSVCID: the TCP port in decimal, padded with spaces.
    pub trsvcid: [u8; 32],
    /// Reserved.
    pub reserved64: [u8; 192],
    /// SUBNQN, NUL-terminated.
    pub subnqn: [u8; 256],
    /// TRADDR: the IP address, padded with spaces.
    pub traddr: [u8; 256],
    /// TSAS: for TCP the first byte is SECTYPE: 0 none, 1 TLS 1.2, 2 TLS 1.3.
    pub tsas: [u8; 256],
}
layout!(
    DiscoveryLogEntry, 1024, trtype @ 0, adrfam @ 1, subtype @ 2, treq @ 3, portid @ 4, cntlid @ 6, asqsz @ 8,
    eflags @ 10, trsvcid @ 32, subnqn @ 256, traddr @ 512, tsas @ 768
);

impl DiscoveryLogEntry {
    /// TRTYPE of TCP.
    pub const TRTYPE_TCP: u8 = 3;
    /// ADRFAM of IPv4.
    pub const ADRFAM_IPV4: u8 = 1;
    /// ADRFAM of IPv6.
    pub const ADRFAM_IPV6: u8 = 2;
    /// SUBTYPE of a subsystem with namespaces.
    pub const SUBTYPE_NVM: u8 = 2;
    /// SUBTYPE of the discovery subsystem itself.
    pub const SUBTYPE_CURRENT_DISCOVERY: u8 = 3;
    /// TREQ: a secure channel is not required.
    pub const TREQ_NOT_REQUIRED: u8 = 2;
    /// EFLAGS bit 1: explicit persistent connection is supported by this discovery subsystem.
    pub const EFLAGS_EPCSD: u16 = 1 << 1;
    /// EFLAGS bit 0: this port returns the same information as the others.
    pub const EFLAGS_DUPRETINFO: u16 = 1 << 0;

    /// An entry for a subsystem at an address, over TCP without a secure channel.
    pub fn tcp(subtype: u8, portid: u16, subnqn: &str, addr: std::net::SocketAddr) -> DiscoveryLogEntry {
        let mut entry = DiscoveryLogEntry::new_zeroed();
        entry.trtype = DiscoveryLogEntry::TRTYPE_TCP;
        entry.adrfam = if addr.is_ipv4() { Self::ADRFAM_IPV4 } else { Self::ADRFAM_IPV6 };
        entry.subtype = subtype;
        entry.treq = DiscoveryLogEntry::TREQ_NOT_REQUIRED;
        entry.portid = U16::new(portid);
        entry.cntlid = U16::new(CNTLID_DYNAMIC);
        entry.asqsz = U16::new(128);
        entry.trsvcid = crate::ascii(&addr.port().to_string());
        entry.traddr = crate::ascii(&addr.ip().to_string());
        entry.subnqn = nqn::to_field(subnqn);
        entry
    }
}
