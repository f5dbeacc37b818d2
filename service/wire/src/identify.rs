//! Identify data (Base 5.1.13, NVM 4.1.5). Every structure is 4096 bytes; a zeroed one is a legal start.

use crate::command::{Sqe, admin};
use crate::layout;
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of every Identify data structure.
pub const IDENTIFY_LEN: usize = 4096;
/// CSI of the NVM command set.
pub const CSI_NVM: u8 = 0;

/// CNS values: which structure is asked for (Base figure 310).
pub mod cns {
    /// Identify Namespace, NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active Namespace ID list.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace Identification Descriptor list.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// I/O command set specific Identify Namespace.
    pub const NAMESPACE_CSI: u8 = 0x05;
    /// I/O command set specific Identify Controller.
    pub const CONTROLLER_CSI: u8 = 0x06;
    /// Active Namespace ID list of a command set.
    pub const ACTIVE_NAMESPACES_CSI: u8 = 0x07;
    /// I/O command set independent Identify Namespace.
    pub const NAMESPACE_INDEPENDENT: u8 = 0x08;
    /// Allocated Namespace ID list.
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Identify Namespace of an allocated namespace.
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    /// Controllers attached to a namespace.
    pub const ATTACHED_CONTROLLERS: u8 = 0x12;
    /// Controllers of the subsystem.
    pub const CONTROLLERS: u8 = 0x13;
    /// I/O command sets.
    pub const COMMAND_SETS: u8 = 0x1c;
}

impl Sqe {
    /// Identify. `nsid` is the namespace, or for lists the NSID to begin behind.
    pub fn identify(cid: u16, cns: u8, nsid: u32) -> Sqe {
        let mut sqe = Sqe::new(admin::IDENTIFY, cid, nsid);
        sqe.cdw10 = U32::new(u32::from(cns));
        sqe
    }

    /// CNS of Identify.
    pub fn cns(&self) -> u8 {
        self.cdw10.get() as u8
    }

    /// CNTID of Identify: the controller, or for controller lists the lowest CNTLID to report.
    pub fn cntid(&self) -> u16 {
        (self.cdw10.get() >> 16) as u16
    }

    /// CSI of Identify.
    pub fn identify_csi(&self) -> u8 {
        (self.cdw11.get() >> 24) as u8
    }
}

/// Identify Controller, CNS 01h (Base figure 312).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// VID: PCI vendor; 0 on fabrics.
    pub vid: U16,
    /// SSVID: PCI subsystem vendor.
    pub ssvid: U16,
    /// SN: serial number, padded with spaces.
    pub sn: [u8; 20],
    /// MN: model number, padded with spaces.
    pub mn: [u8; 40],
    /// FR: firmware revision, padded with spaces.
    pub fr: [u8; 8],
    /// RAB: recommended arbitration burst.
    pub rab: u8,
    /// IEEE: OUI, least significant byte first.
    pub ieee: [u8; 3],
    /// CMIC: bit 0 several ports, 1 several controllers, 2 SR-IOV, 3 ANA reporting.
    pub cmic: u8,
    /// MDTS: the largest transfer is 2^(MDTS+12) bytes (with CAP.MPSMIN 0); 0 is no limit.
    pub mdts: u8,
    /// CNTLID.
    pub cntlid: U16,
    /// VER: as property VS.
    pub ver: U32,
    /// RTD3R: RTD3 resume latency, microseconds.
    pub rtd3r: U32,
    /// RTD3E: RTD3 entry latency, microseconds.
    pub rtd3e: U32,
    /// OAES: asynchronous events, see [`crate::features::aec`].
    pub oaes: U32,
    /// CTRATT: attributes, see [`ctratt`].
    pub ctratt: U32,
    /// RRLS: read recovery levels.
    pub rrls: U16,
    /// Reserved.
    pub reserved102: [u8; 9],
    /// CNTRLTYPE: 1 I/O, 2 discovery, 3 administrative.
    pub cntrltype: u8,
    /// FGUID: field replaceable unit.
    pub fguid: [u8; 16],
    /// CRDT1: command retry delay, in 100 ms.
    pub crdt1: U16,
    /// CRDT2.
    pub crdt2: U16,
    /// CRDT3.
    pub crdt3: U16,
    /// Reserved.
    pub reserved134: [u8; 119],
    /// NVMSR: is it a storage device, an enclosure.
    pub nvmsr: u8,
    /// VWCI: VPD write cycles.
    pub vwci: u8,
    /// MEC: management endpoint.
    pub mec: u8,
    /// OACS: optional admin commands.
    pub oacs: U16,
    /// ACL: concurrent Aborts, zero-based.
    pub acl: u8,
    /// AERL: concurrent Asynchronous Event Requests, zero-based.
    pub aerl: u8,
    /// FRMW: firmware slots: bit 0 slot 1 read-only, bits 3:1 slots.
    pub frmw: u8,
    /// LPA: log pages, see [`lpa`].
    pub lpa: u8,
    /// ELPE: entries of the error log, zero-based.
    pub elpe: u8,
    /// NPSS: power states, zero-based.
    pub npss: u8,
    /// AVSCC: vendor specific admin commands.
    pub avscc: u8,
    /// APSTA: autonomous power state transitions.
    pub apsta: u8,
    /// WCTEMP: warning temperature, kelvin.
    pub wctemp: U16,
    /// CCTEMP: critical temperature, kelvin.
    pub cctemp: U16,
    /// MTFA: longest firmware activation, in 100 ms.
    pub mtfa: U16,
    /// HMPRE: preferred host memory buffer.
    pub hmpre: U32,
    /// HMMIN: smallest host memory buffer.
    pub hmmin: U32,
    /// TNVMCAP: capacity, bytes.
    pub tnvmcap: U128,
    /// UNVMCAP: capacity that is not allocated, bytes.
    pub unvmcap: U128,
    /// RPMBS: replay protected memory.
    pub rpmbs: U32,
    /// EDSTT: extended self-test, minutes.
    pub edstt: U16,
    /// DSTO: self-test options.
    pub dsto: u8,
    /// FWUG: firmware update granularity.
    pub fwug: u8,
    /// KAS: granularity of the keep alive timer, in 100 ms. Not 0 on fabrics.
    pub kas: U16,
    /// HCTMA: host controlled thermal management.
    pub hctma: U16,
    /// MNTMT.
    pub mntmt: U16,
    /// MXTMT.
    pub mxtmt: U16,
    /// SANICAP: sanitize.
    pub sanicap: U32,
    /// HMMINDS.
    pub hmminds: U32,
    /// HMMAXD.
    pub hmmaxd: U16,
    /// NSETIDMAX.
    pub nsetidmax: U16,
    /// ENDGIDMAX.
    pub endgidmax: U16,
    /// ANATT: longest ANA transition, seconds.
    pub anatt: u8,
    /// ANACAP: ANA states that are reported.
    pub anacap: u8,
    /// ANAGRPMAX: largest ANA group identifier.
    pub anagrpmax: U32,
    /// NANAGRPID: ANA groups.
    pub nanagrpid: U32,
    /// PELS: persistent event log size.
    pub pels: U32,
    /// DID: domain.
    pub did: U16,
    /// Reserved.
    pub reserved358: [u8; 10],
    /// MEGCAP: largest endurance group.
    pub megcap: U128,
    /// Reserved.
    pub reserved384: [u8; 128],
    /// SQES: submission queue entry size: required in bits 3:0, maximum in 7:4, powers of two. 66h.
    pub sqes: u8,
    /// CQES: completion queue entry size, likewise. 44h.
    pub cqes: u8,
    /// MAXCMD: commands outstanding per I/O queue. Not 0 on fabrics.
    pub maxcmd: U16,
    /// NN: the largest NSID.
    pub nn: U32,
    /// ONCS: optional I/O commands, see [`oncs`].
    pub oncs: U16,
    /// FUSES: bit 0 fused Compare and Write.
    pub fuses: U16,
    /// FNA: format attributes.
    pub fna: u8,
    /// VWC: bit 0 a volatile write cache is present; bits 2:1: 11b Flush with NSID FFFFFFFFh is supported.
    pub vwc: u8,
    /// AWUN: atomic write unit, logical blocks, zero-based.
    pub awun: U16,
    /// AWUPF: atomic write unit at power fail, logical blocks, zero-based.
    pub awupf: U16,
    /// ICSVSCC: vendor specific I/O commands.
    pub icsvscc: u8,
    /// NWPC: namespace write protection.
    pub nwpc: u8,
    /// ACWU: atomic compare and write unit, logical blocks, zero-based.
    pub acwu: U16,
    /// CDFS: copy descriptor formats.
    pub cdfs: U16,
    /// SGLS: SGL support, see [`sgls`].
    pub sgls: U32,
    /// MNAN: namespaces allowed at most; with ANA not 0 and at most NN.
    pub mnan: U32,
    /// MAXDNA.
    pub maxdna: U128,
    /// MAXCNA.
    pub maxcna: U32,
    /// Reserved.
    pub reserved564: [u8; 204],
    /// SUBNQN, NUL-terminated.
    pub subnqn: [u8; 256],
    /// Reserved.
    pub reserved1024: [u8; 768],
    /// IOCCSZ: I/O command capsule size, in 16 bytes: 4 for the command, the rest is in-capsule data.
    pub ioccsz: U32,
    /// IORCSZ: I/O response capsule size, in 16 bytes: 1.
    pub iorcsz: U32,
    /// ICDOFF: in-capsule data offset, in 16 bytes. 0 on TCP.
    pub icdoff: U16,
    /// FCATT: bit 0 static controllers.
    pub fcatt: u8,
    /// MSDBD: SGL data blocks per command at most; 0 no limit. 1 on TCP.
    pub msdbd: u8,
    /// OFCS: bit 0 Disconnect is supported.
    pub ofcs: U16,
    /// DCTYPE: kind of discovery controller.
    pub dctype: u8,
    /// Reserved.
    pub reserved1807: [u8; 241],
    /// PSD: power state descriptors.
    pub psd: [[u8; 32]; 32],
    /// Vendor specific.
    pub vendor: [u8; 1024],
}
layout!(
    IdentifyController, 4096, vid @ 0, sn @ 4, mn @ 24, fr @ 64, rab @ 72, cmic @ 76, mdts @ 77, cntlid @ 78, ver @ 80,
    oaes @ 92, ctratt @ 96, cntrltype @ 111, fguid @ 112, crdt1 @ 128, nvmsr @ 253, oacs @ 256, acl @ 258, aerl @ 259,
    frmw @ 260, lpa @ 261, elpe @ 262, npss @ 263, wctemp @ 266, mtfa @ 270, tnvmcap @ 280, unvmcap @ 296, rpmbs @ 312,
    edstt @ 316, kas @ 320, hctma @ 322, sanicap @ 328, hmminds @ 332, nsetidmax @ 338, anatt @ 342, anacap @ 343,
    anagrpmax @ 344, nanagrpid @ 348, pels @ 352, did @ 356, megcap @ 368, sqes @ 512, cqes @ 513, maxcmd @ 514,
    nn @ 516, oncs @ 520, fuses @ 522, fna @ 524, vwc @ 525, awun @ 526, awupf @ 528, nwpc @ 531, acwu @ 532,
    cdfs @ 534, sgls @ 536, mnan @ 540, maxdna @ 544, maxcna @ 560, subnqn @ 768, ioccsz @ 1792, iorcsz @ 1796,
    icdoff @ 1800, fcatt @ 1802, msdbd @ 1803, ofcs @ 1804, dctype @ 1806, psd @ 2048, vendor @ 3072
);

impl IdentifyController {
    /// All fields zero, but those that have one legal value: SQES, CQES, IORCSZ, MSDBD, and the SGL support that the TCP
    /// transport requires.
    pub fn new() -> IdentifyController {
        let mut id = IdentifyController::new_zeroed();
        id.sqes = 0x66;
        id.cqes = 0x44;
        id.iorcsz = U32::new(1);
        id.msdbd = 1;
        id.sgls = U32::new(sgls::SUPPORTED | sgls::OFFSET | sgls::TRANSPORT);
        id
    }

    /// Reads the structure from 4096 bytes. `None` if there are fewer.
    pub fn parse(bytes: &[u8]) -> Option<&IdentifyController> {
        IdentifyController::ref_from_prefix(bytes).ok().map(|(id, _)| id)
    }

    /// The largest transfer in bytes by MDTS, with pages of 4096 bytes. `None` is no limit.
    pub fn max_transfer(&self) -> Option<u64> {
        (self.mdts != 0).then(|| 1u64.checked_shl(u32::from(self.mdts) + 12).unwrap_or(u64::MAX))
    }

    /// Bytes of I/O data that fit in a capsule by IOCCSZ.
    pub fn max_in_capsule(&self) -> u32 {
        self.ioccsz.get().saturating_mul(16).saturating_sub(64)
    }

    /// Sets IOCCSZ for this many bytes of in-capsule I/O data, rounded down to 16.
    pub fn set_max_in_capsule(&mut self, bytes: u32) {
        self.ioccsz = U32::new(4 + bytes / 16);
    }
}

impl Default for IdentifyController {
    fn default() -> Self {
        IdentifyController::new()
    }
}

/// Bits of [`IdentifyController::cmic`].
pub mod cmic {
    /// Several ports.
    pub const MULTI_PORT: u8 = 1 << 0;
    /// Several controllers.
    pub const MULTI_CONTROLLER: u8 = 1 << 1;
    /// ANA reporting.
    pub const ANA: u8 = 1 << 3;
}

/// Values of [`IdentifyController::cntrltype`].
pub mod cntrltype {
    /// An I/O controller.
    pub const IO: u8 = 1;
    /// A discovery controller.
    pub const DISCOVERY: u8 = 2;
}

/// Bits of [`IdentifyController::ctratt`].
pub mod ctratt {
    /// HIDS: 128-bit host identifiers.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// TBKAS: any traffic restarts the keep alive timer.
    pub const TBKAS: u32 = 1 << 6;
}

/// Bits of [`IdentifyController::lpa`].
pub mod lpa {
    /// SMART per namespace.
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 1 << 1;
    /// Extended data: 32-bit lengths and offsets.
    pub const EXTENDED: u8 = 1 << 2;
    /// Supported Log Pages and the like.
    pub const SUPPORTED_PAGES: u8 = 1 << 5;
}

/// Bits of [`IdentifyController::oncs`].
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DSM: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Save and Select fields of features.
    pub const SAVE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
    /// Copy.
    pub const COPY: u16 = 1 << 8;
}

/// Bits of [`IdentifyController::sgls`].
pub mod sgls {
    /// SGLs are supported, without alignment requirement (bits 1:0 are 01b).
    pub const SUPPORTED: u32 = 1;
    /// Keyed SGL data block descriptors.
    pub const KEYED: u32 = 1 << 2;
    /// SGL data longer than the data to be transferred.
    pub const LONGER: u32 = 1 << 18;
    /// The address field may be an offset: in-capsule data.
    pub const OFFSET: u32 = 1 << 20;
    /// Transport SGL data block descriptors.
    pub const TRANSPORT: u32 = 1 << 21;
}

/// LBA format (NVM figure 116).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: metadata bytes per logical block.
    pub ms: U16,
    /// LBADS: a logical block has 2^LBADS bytes.
    pub lbads: u8,
    /// RP: relative performance, 0 is best.
    pub rp: u8,
}
layout!(LbaFormat, 4, ms @ 0, lbads @ 2, rp @ 3);

/// Identify Namespace, CNS 00h and 11h (NVM figure 114).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: size, logical blocks.
    pub nsze: U64,
    /// NCAP: capacity, logical blocks.
    pub ncap: U64,
    /// NUSE: in use, logical blocks.
    pub nuse: U64,
    /// NSFEAT: see [`nsfeat`].
    pub nsfeat: u8,
    /// NLBAF: LBA formats, zero-based.
    pub nlbaf: u8,
    /// FLBAS: the format in use, bits 3:0 and 6:5.
    pub flbas: u8,
    /// MC: metadata capabilities.
    pub mc: u8,
    /// DPC: protection capabilities.
    pub dpc: u8,
    /// DPS: protection settings.
    pub dps: u8,
    /// NMIC: bit 0 shared by several controllers.
    pub nmic: u8,
    /// RESCAP: reservation capabilities.
    pub rescap: u8,
    /// FPI: format progress.
    pub fpi: u8,
    /// DLFEAT: deallocated blocks: bits 2:0: 001b read as zeros; bit 3 Write Zeroes may deallocate.
    pub dlfeat: u8,
    /// NAWUN: atomic write unit, logical blocks, zero-based.
    pub nawun: U16,
    /// NAWUPF: atomic write unit at power fail, logical blocks, zero-based.
    pub nawupf: U16,
    /// NACWU: atomic compare and write unit, logical blocks, zero-based.
    pub nacwu: U16,
    /// NABSN: atomic boundary size, logical blocks, zero-based.
    pub nabsn: U16,
    /// NABO: atomic boundary offset, logical blocks.
    pub nabo: U16,
    /// NABSPF: atomic boundary size at power fail, logical blocks, zero-based.
    pub nabspf: U16,
    /// NOIOB: optimal I/O boundary, logical blocks.
    pub noiob: U16,
    /// NVMCAP: capacity, bytes.
    pub nvmcap: U128,
    /// NPWG: preferred write granularity, logical blocks, zero-based.
    pub npwg: U16,
    /// NPWA: preferred write alignment, logical blocks, zero-based.
    pub npwa: U16,
    /// NPDG: preferred deallocate granularity, logical blocks, zero-based.
    pub npdg: U16,
    /// NPDA: preferred deallocate alignment, logical blocks, zero-based.
    pub npda: U16,
    /// NOWS: optimal write size, logical blocks, zero-based.
    pub nows: U16,
    /// MSSRL: longest source range of Copy, logical blocks.
    pub mssrl: U16,
    /// MCL: longest Copy, logical blocks.
    pub mcl: U32,
    /// MSRC: source ranges of Copy, zero-based.
    pub msrc: u8,
    /// Reserved.
    pub reserved81: [u8; 11],
    /// ANAGRPID: ANA group.
    pub anagrpid: U32,
    /// Reserved.
    pub reserved96: [u8; 3],
    /// NSATTR: bit 0 write protected.
    pub nsattr: u8,
    /// NVMSETID.
    pub nvmsetid: U16,
    /// ENDGID.
    pub endgid: U16,
    /// NGUID: most significant byte first.
    pub nguid: [u8; 16],
    /// EUI64: most significant byte first.
    pub eui64: [u8; 8],
    /// LBAF: LBA formats.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor: [u8; 3712],
}
layout!(
    IdentifyNamespace, 4096, nsze @ 0, ncap @ 8, nuse @ 16, nsfeat @ 24, nlbaf @ 25, flbas @ 26, mc @ 27, dpc @ 28,
    dps @ 29, nmic @ 30, rescap @ 31, fpi @ 32, dlfeat @ 33, nawun @ 34, nawupf @ 36, nacwu @ 38, nabsn @ 40, nabo @ 42,
    nabspf @ 44, noiob @ 46, nvmcap @ 48, npwg @ 64, npwa @ 66, npdg @ 68, npda @ 70, nows @ 72, mssrl @ 74, mcl @ 76,
    msrc @ 80, anagrpid @ 92, nsattr @ 99, nvmsetid @ 100, endgid @ 102, nguid @ 104, eui64 @ 120, lbaf @ 128,
    vendor @ 384
);

impl IdentifyNamespace {
    /// A fully provisioned namespace of `blocks` logical blocks of 2^`lbads` bytes, with one LBA format.
    pub fn new(blocks: u64, lbads: u8) -> IdentifyNamespace {
        let mut id = IdentifyNamespace::new_zeroed();
        id.nsze = U64::new(blocks);
        id.ncap = U64::new(blocks);
        id.nuse = U64::new(blocks);
        id.lbaf[0].lbads = lbads;
        id.nvmcap = U128::new(u128::from(blocks) << lbads.min(31));
        id
    }

    /// Reads the structure from 4096 bytes. `None` if there are fewer.
    pub fn parse(bytes: &[u8]) -> Option<&IdentifyNamespace> {
        IdentifyNamespace::ref_from_prefix(bytes).ok().map(|(id, _)| id)
    }

    /// The LBA format in use, by FLBAS.
    pub fn format(&self) -> LbaFormat {
        self.lbaf[usize::from(self.flbas & 0xf | (self.flbas >> 5 & 3) << 4)]
    }

    /// Bytes of a logical block; `None` if LBADS makes no sense (under 512 bytes or over 1 GiB).
    pub fn block_size(&self) -> Option<u32> {
        let lbads = self.format().lbads;
        (9..=30).contains(&lbads).then(|| 1 << lbads)
    }
}

/// Bits of [`IdentifyNamespace::nsfeat`].
pub mod nsfeat {
    /// THINP: thin provisioning.
    pub const THINP: u8 = 1 << 0;
    /// NSABP: NAWUN, NAWUPF and NACWU are valid for this namespace.
    pub const NSABP: u8 = 1 << 1;
    /// DAE: reading deallocated blocks may be an error.
    pub const DAE: u8 = 1 << 2;
    /// UIDREUSE: NGUID and EUI64 are never used again.
    pub const UIDREUSE: u8 = 1 << 3;
    /// OPTPERF (bits 5:4, 01b): NPWG, NPWA, NPDG, NPDA and NOWS are valid.
    pub const OPTPERF: u8 = 1 << 4;
}

/// Identify Namespace of the NVM command set, CNS 05h with CSI 0 (NVM figure 118).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespaceNvm {
    /// LBSTM: logical block storage tag mask.
    pub lbstm: U64,
    /// PIC: protection information capabilities.
    pub pic: u8,
    /// Reserved.
    pub reserved9: [u8; 3],
    /// ELBAF: extended LBA formats.
    pub elbaf: [U32; 64],
    /// Reserved.
    pub reserved268: [u8; 3828],
}
layout!(IdentifyNamespaceNvm, 4096, lbstm @ 0, pic @ 8, elbaf @ 12, reserved268 @ 268);

/// Identify Controller of the NVM command set, CNS 06h with CSI 0 (NVM figure 119).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyControllerNvm {
    /// VSL: Verify size limit, 2^VSL pages; 0 no limit.
    pub vsl: u8,
    /// WZSL: Write Zeroes size limit, 2^WZSL pages; 0 no limit.
    pub wzsl: u8,
    /// WUSL: Write Uncorrectable size limit.
    pub wusl: u8,
    /// DMRL: Dataset Management ranges; 0 no limit.
    pub dmrl: u8,
    /// DMRSL: logical blocks of one range; 0 no limit.
    pub dmrsl: U32,
    /// DMSL: logical blocks of all ranges; 0 no limit.
    pub dmsl: U64,
    /// Reserved.
    pub reserved16: [u8; 4080],
}
layout!(IdentifyControllerNvm, 4096, vsl @ 0, wzsl @ 1, wusl @ 2, dmrl @ 3, dmrsl @ 4, dmsl @ 8);

/// I/O command set independent Identify Namespace, CNS 08h (Base figure 319).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespaceIndependent {
    /// NSFEAT: bit 3 UIDREUSE, bit 4 rotational, bit 5 no volatile write cache for this namespace.
    pub nsfeat: u8,
    /// NMIC: bit 0 shared by several controllers.
    pub nmic: u8,
    /// RESCAP: reservation capabilities.
    pub rescap: u8,
    /// FPI: format progress.
    pub fpi: u8,
    /// ANAGRPID: ANA group.
    pub anagrpid: U32,
    /// NSATTR: bit 0 write protected.
    pub nsattr: u8,
    /// Reserved.
    pub reserved9: u8,
    /// NVMSETID.
    pub nvmsetid: U16,
    /// ENDGID.
    pub endgid: U16,
    /// NSTAT: bit 0 ready.
    pub nstat: u8,
    /// Reserved.
    pub reserved15: [u8; 4081],
}
layout!(
    IdentifyNamespaceIndependent, 4096, nsfeat @ 0, nmic @ 1, rescap @ 2, fpi @ 3, anagrpid @ 4, nsattr @ 8,
    nvmsetid @ 10, endgid @ 12, nstat @ 14
);

/// List of NSIDs, CNS 02h, 07h and 10h, and the Changed Namespace List log page. Ends at the first 0.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NamespaceList {
    /// The NSIDs, ascending.
    pub nsid: [U32; 1024],
}
layout!(NamespaceList, 4096);

impl NamespaceList {
    /// The list of those of `nsids` (ascending) that are greater than `after`; 1024 at most.
    pub fn new(nsids: impl IntoIterator<Item = u32>, after: u32) -> NamespaceList {
        let mut list = NamespaceList::new_zeroed();
        for (to, from) in list.nsid.iter_mut().zip(nsids.into_iter().filter(|&n| n > after)) {
            to.set(from);
        }
        list
    }

    /// The NSIDs up to the end of the list.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.nsid.iter().map(|n| n.get()).take_while(|&n| n != 0)
    }
}

/// List of controllers, CNS 12h and 13h (Base figure 137).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ControllerList {
    /// NUMID: how many.
    pub numid: U16,
    /// The CNTLIDs, ascending.
    pub cntlid: [U16; 2047],
}
layout!(ControllerList, 4096, cntlid @ 2);

impl ControllerList {
    /// The list of those of `ids` (ascending) that are at least `from`; 2047 at most.
    pub fn new(ids: impl IntoIterator<Item = u16>, from: u16) -> ControllerList {
        let mut list = ControllerList::new_zeroed();
        let mut count = 0;
        for (to, id) in list.cntlid.iter_mut().zip(ids.into_iter().filter(|&id| id >= from)) {
            to.set(id);
            count += 1;
        }
        list.numid = U16::new(count);
        list
    }
}

/// I/O command sets, CNS 1Ch (Base figure 327): one vector of bits per combination that a controller offers.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandSets {
    /// Vectors; bit 0 is the NVM command set.
    pub vector: [U64; 512],
}
layout!(CommandSets, 4096);

impl CommandSets {
    /// The NVM command set alone.
    pub fn nvm() -> CommandSets {
        let mut sets = CommandSets::new_zeroed();
        sets.vector[0] = U64::new(1 << CSI_NVM);
        sets
    }
}

/// What identifies a namespace, CNS 03h (Base figure 316).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceIds {
    /// NIDT 1: EUI64.
    pub eui64: Option<[u8; 8]>,
    /// NIDT 2: NGUID.
    pub nguid: Option<[u8; 16]>,
    /// NIDT 3: UUID.
    pub uuid: Option<[u8; 16]>,
    /// NIDT 4: the command set.
    pub csi: Option<u8>,
}

impl NamespaceIds {
    /// The descriptor list: NIDT, NIDL, two reserved bytes, the identifier; ends with a zero NIDL.
    pub fn to_bytes(&self) -> [u8; IDENTIFY_LEN] {
        let mut out = [0; IDENTIFY_LEN];
        let mut at = 0;
        let mut put = |kind: u8, id: &[u8]| {
            out[at] = kind;
            out[at + 1] = id.len() as u8;
            out[at + 4..at + 4 + id.len()].copy_from_slice(id);
            at += 4 + id.len();
        };
        if let Some(id) = &self.eui64 {
            put(1, id);
        }
        if let Some(id) = &self.nguid {
            put(2, id);
        }
        if let Some(id) = &self.uuid {
            put(3, id);
        }
        if let Some(csi) = self.csi {
            put(4, &[csi]);
        }
        out
    }

    /// Reads a descriptor list. Unknown descriptors, and known ones of a wrong length, are skipped.
    pub fn parse(mut bytes: &[u8]) -> NamespaceIds {
        let mut ids = NamespaceIds::default();
        while let [kind, len, _, _, rest @ ..] = bytes {
            if *len == 0 {
                break;
            }
            let Some((id, rest)) = rest.split_at_checked(usize::from(*len)) else { break };
            match kind {
                1 => ids.eui64 = id.try_into().ok(),
                2 => ids.nguid = id.try_into().ok(),
                3 => ids.uuid = id.try_into().ok(),
                4 => ids.csi = id.first().copied(),
                _ => {}
            }
            bytes = rest;
        }
        ids
    }
}

impl fmt::Debug for IdentifyController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyController")
            .field("sn", &crate::text(&self.sn))
            .field("mn", &crate::text(&self.mn))
            .field("cntlid", &self.cntlid.get())
            .field("subnqn", &crate::text(&self.subnqn))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for IdentifyNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyNamespace")
            .field("nsze", &self.nsze.get())
            .field("format", &self.format())
            .field("nguid", &self.nguid)
            .finish_non_exhaustive()
    }
}
