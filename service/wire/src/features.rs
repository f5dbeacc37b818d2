//! Features (Base 5.1.25) and asynchronous events (Base 5.1.2).

use crate::command::{Sqe, admin};
use zerocopy::little_endian::U32;

/// Feature identifiers (Base figure 386).
pub mod fid {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Interrupt Coalescing.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x0e;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
    /// Host Controlled Thermal Management.
    pub const THERMAL_MANAGEMENT: u8 = 0x10;
    /// Host Behavior Support.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// Host Identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
    /// Reservation Notification Mask.
    pub const RESERVATION_MASK: u8 = 0x82;
    /// Reservation Persistence.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
}

/// Values of SEL of Get Features (Base figure 196).
pub mod sel {
    /// Current value.
    pub const CURRENT: u8 = 0;
    /// Default value.
    pub const DEFAULT: u8 = 1;
    /// Saved value.
    pub const SAVED: u8 = 2;
    /// Supported capabilities: DW0 bit 0 saveable, 1 per namespace, 2 changeable.
    pub const SUPPORTED: u8 = 3;
}

/// Bits of Asynchronous Event Configuration, and of OAES from bit 8 on (Base figures 391 and 312).
pub mod aec {
    /// SMART critical warnings, bits 7:0.
    pub const SMART: u32 = 0xff;
    /// NSAN: namespace attribute notices.
    pub const NAMESPACE: u32 = 1 << 8;
    /// FAN: firmware activation notices.
    pub const FIRMWARE: u32 = 1 << 9;
    /// ANACN: ANA change notices.
    pub const ANA: u32 = 1 << 11;
    /// DLPCN: discovery log page change notices.
    pub const DISCOVERY: u32 = 1 << 31;
}

/// An asynchronous event: what DW0 of an Asynchronous Event Request's completion says (Base figure 150).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// AET: 0 error, 1 SMART, 2 notice, 6 I/O command set, 7 vendor.
    pub kind: u8,
    /// AEI: what happened, by kind.
    pub info: u8,
    /// LID: the log page that tells more, and whose reading clears the event.
    pub lid: u8,
}

impl AsyncEvent {
    /// Namespace Attribute Changed.
    pub const NAMESPACE_CHANGED: AsyncEvent =
        AsyncEvent { kind: 2, info: 0x00, lid: crate::logs::lid::CHANGED_NAMESPACES };
    /// Asymmetric Namespace Access Change.
    pub const ANA_CHANGED: AsyncEvent = AsyncEvent { kind: 2, info: 0x03, lid: crate::logs::lid::ANA };
    /// Discovery Log Page Change.
    pub const DISCOVERY_CHANGED: AsyncEvent = AsyncEvent { kind: 2, info: 0xf0, lid: crate::logs::lid::DISCOVERY };
    /// SMART: reliability degraded.
    pub const RELIABILITY_DEGRADED: AsyncEvent = AsyncEvent { kind: 1, info: 0x00, lid: crate::logs::lid::SMART };

    /// The completion's DW0.
    pub const fn to_dw0(self) -> u32 {
        (self.kind & 7) as u32 | (self.info as u32) << 8 | (self.lid as u32) << 16
    }

    /// From the completion's DW0.
    pub const fn from_dw0(dw0: u32) -> AsyncEvent {
        AsyncEvent { kind: (dw0 & 7) as u8, info: (dw0 >> 8) as u8, lid: (dw0 >> 16) as u8 }
    }
}

/// Number of Queues, CDW11 of Set Features and DW0 of its completion: counts, not zero-based.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberOfQueues {
    /// I/O submission queues.
    pub submission: u32,
    /// I/O completion queues.
    pub completion: u32,
}

impl NumberOfQueues {
    /// From CDW11 or DW0, where both are zero-based.
    pub const fn from_u32(value: u32) -> NumberOfQueues {
        NumberOfQueues { submission: (value & 0xffff) + 1, completion: (value >> 16) + 1 }
    }

    /// For CDW11 or DW0. Counts are 1 to 65535.
    pub const fn to_u32(self) -> u32 {
        (self.submission.saturating_sub(1) & 0xffff) | (self.completion.saturating_sub(1) & 0xffff) << 16
    }
}

impl Sqe {
    /// FID of Get and Set Features.
    pub fn fid(&self) -> u8 {
        self.cdw10.get() as u8
    }

    /// SEL of Get Features, see [`sel`].
    pub fn sel(&self) -> u8 {
        (self.cdw10.get() >> 8 & 7) as u8
    }

    /// SV of Set Features: save the value.
    pub fn sv(&self) -> bool {
        self.cdw10.get() & 1 << 31 != 0
    }

    /// Set Features with a value in CDW11.
    pub fn set_features(cid: u16, fid: u8, value: u32) -> Sqe {
        let mut sqe = Sqe::new(admin::SET_FEATURES, cid, 0);
        sqe.cdw10 = U32::new(u32::from(fid));
        sqe.cdw11 = U32::new(value);
        sqe
    }

    /// Get Features.
    pub fn get_features(cid: u16, fid: u8, sel: u8) -> Sqe {
        let mut sqe = Sqe::new(admin::GET_FEATURES, cid, 0);
        sqe.cdw10 = U32::new(u32::from(fid) | u32::from(sel & 7) << 8);
        sqe
    }

    /// Keep Alive.
    pub fn keep_alive(cid: u16) -> Sqe {
        Sqe::new(admin::KEEP_ALIVE, cid, 0)
    }

    /// Asynchronous Event Request.
    pub fn async_event_request(cid: u16) -> Sqe {
        Sqe::new(admin::ASYNC_EVENT_REQUEST, cid, 0)
    }
}
