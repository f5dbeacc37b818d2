//! The status field of a completion (Base 4.2.3).

use std::fmt;

/// A command's status: status code type, status code, DNR and More.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status {
    /// SCT: status code type: 0 generic, 1 command specific, 2 media and data integrity, 3 path.
    pub sct: u8,
    /// SC: status code.
    pub sc: u8,
    /// DNR: do not retry.
    pub dnr: bool,
    /// M: more information is in the error log.
    pub more: bool,
}

impl std::error::Error for Status {}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = ($sct:literal, $sc:literal, $text:literal);)*) => {
        impl Status {
            $($(#[$doc])* #[doc = concat!("(SCT ", stringify!($sct), "h, SC ", stringify!($sc), ")")]
            pub const $name: Status = Status { sct: $sct, sc: $sc, dnr: false, more: false };)*

            /// The specification's name, if this is one of the codes named here.
            pub const fn name(self) -> Option<&'static str> {
                match (self.sct, self.sc) {
                    $(($sct, $sc) => Some($text),)*
                    _ => None,
                }
            }

            /// Every status that has a name.
            pub const NAMED: &'static [Status] = &[$(Status::$name),*];
        }
    };
}

statuses! {
    /// Successful Completion.
    SUCCESS = (0, 0x00, "Successful Completion");
    /// Invalid Command Opcode.
    INVALID_OPCODE = (0, 0x01, "Invalid Command Opcode");
    /// Invalid Field in Command.
    INVALID_FIELD = (0, 0x02, "Invalid Field in Command");
    /// Command ID Conflict.
    COMMAND_ID_CONFLICT = (0, 0x03, "Command ID Conflict");
    /// Data Transfer Error.
    DATA_TRANSFER_ERROR = (0, 0x04, "Data Transfer Error");
    /// Commands Aborted due to Power Loss Notification.
    ABORTED_POWER_LOSS = (0, 0x05, "Commands Aborted due to Power Loss Notification");
    /// Internal Error.
    INTERNAL_ERROR = (0, 0x06, "Internal Error");
    /// Command Abort Requested.
    ABORT_REQUESTED = (0, 0x07, "Command Abort Requested");
    /// Command Aborted due to SQ Deletion.
    ABORTED_SQ_DELETION = (0, 0x08, "Command Aborted due to SQ Deletion");
    /// Command Aborted due to Failed Fused Command.
    ABORTED_FAILED_FUSED = (0, 0x09, "Command Aborted due to Failed Fused Command");
    /// Command Aborted due to Missing Fused Command.
    ABORTED_MISSING_FUSED = (0, 0x0a, "Command Aborted due to Missing Fused Command");
    /// Invalid Namespace or Format.
    INVALID_NAMESPACE = (0, 0x0b, "Invalid Namespace or Format");
    /// Command Sequence Error.
    COMMAND_SEQUENCE_ERROR = (0, 0x0c, "Command Sequence Error");
    /// Invalid SGL Segment Descriptor.
    INVALID_SGL_SEGMENT = (0, 0x0d, "Invalid SGL Segment Descriptor");
    /// Invalid Number of SGL Descriptors.
    INVALID_SGL_COUNT = (0, 0x0e, "Invalid Number of SGL Descriptors");
    /// Data SGL Length Invalid.
    DATA_SGL_LENGTH_INVALID = (0, 0x0f, "Data SGL Length Invalid");
    /// SGL Descriptor Type Invalid.
    SGL_TYPE_INVALID = (0, 0x11, "SGL Descriptor Type Invalid");
    /// SGL Offset Invalid.
    SGL_OFFSET_INVALID = (0, 0x16, "SGL Offset Invalid");
    /// Host Identifier Inconsistent Format.
    HOST_ID_INCONSISTENT = (0, 0x18, "Host Identifier Inconsistent Format");
    /// Keep Alive Timer Expired.
    KEEP_ALIVE_EXPIRED = (0, 0x19, "Keep Alive Timer Expired");
    /// Keep Alive Timeout Invalid.
    KEEP_ALIVE_INVALID = (0, 0x1a, "Keep Alive Timeout Invalid");
    /// Command Aborted due to Preempt and Abort.
    ABORTED_PREEMPT = (0, 0x1b, "Command Aborted due to Preempt and Abort");
    /// Namespace is Write Protected.
    WRITE_PROTECTED = (0, 0x20, "Namespace is Write Protected");
    /// Command Interrupted.
    COMMAND_INTERRUPTED = (0, 0x21, "Command Interrupted");
    /// Transient Transport Error.
    TRANSIENT_TRANSPORT_ERROR = (0, 0x22, "Transient Transport Error");
    /// LBA Out of Range.
    LBA_OUT_OF_RANGE = (0, 0x80, "LBA Out of Range");
    /// Capacity Exceeded.
    CAPACITY_EXCEEDED = (0, 0x81, "Capacity Exceeded");
    /// Namespace Not Ready.
    NAMESPACE_NOT_READY = (0, 0x82, "Namespace Not Ready");
    /// Reservation Conflict.
    RESERVATION_CONFLICT = (0, 0x83, "Reservation Conflict");
    /// Format In Progress.
    FORMAT_IN_PROGRESS = (0, 0x84, "Format In Progress");
    /// Completion Queue Invalid.
    COMPLETION_QUEUE_INVALID = (1, 0x00, "Completion Queue Invalid");
    /// Invalid Queue Identifier.
    INVALID_QUEUE_ID = (1, 0x01, "Invalid Queue Identifier");
    /// Invalid Queue Size.
    INVALID_QUEUE_SIZE = (1, 0x02, "Invalid Queue Size");
    /// Abort Command Limit Exceeded.
    ABORT_LIMIT_EXCEEDED = (1, 0x03, "Abort Command Limit Exceeded");
    /// Asynchronous Event Request Limit Exceeded.
    AER_LIMIT_EXCEEDED = (1, 0x05, "Asynchronous Event Request Limit Exceeded");
    /// Invalid Log Page.
    INVALID_LOG_PAGE = (1, 0x09, "Invalid Log Page");
    /// Invalid Format.
    INVALID_FORMAT = (1, 0x0a, "Invalid Format");
    /// Feature Identifier Not Saveable.
    FEATURE_NOT_SAVEABLE = (1, 0x0d, "Feature Identifier Not Saveable");
    /// Feature Not Changeable.
    FEATURE_NOT_CHANGEABLE = (1, 0x0e, "Feature Not Changeable");
    /// Feature Not Namespace Specific.
    FEATURE_NOT_NAMESPACE_SPECIFIC = (1, 0x0f, "Feature Not Namespace Specific");
    /// Invalid Controller Identifier.
    INVALID_CONTROLLER_ID = (1, 0x1f, "Invalid Controller Identifier");
    /// Conflicting Attributes, of I/O commands.
    CONFLICTING_ATTRIBUTES = (1, 0x80, "Conflicting Attributes, or Incompatible Format of a fabrics command");
    /// Invalid Protection Information, of I/O commands.
    INVALID_PROTECTION_INFO = (1, 0x81, "Invalid Protection Information, or Controller Busy of Connect");
    /// Attempted Write to Read Only Range, of I/O commands.
    READ_ONLY_RANGE = (1, 0x82, "Attempted Write to Read Only Range, or Connect Invalid Parameters");
    /// Command Size Limit Exceeded, of I/O commands.
    COMMAND_SIZE_LIMIT = (1, 0x83, "Command Size Limit Exceeded, or Connect Restart Discovery");
    /// Connect Invalid Host.
    CONNECT_INVALID_HOST = (1, 0x84, "Connect Invalid Host");
    /// Invalid Queue Type, of Disconnect.
    INVALID_QUEUE_TYPE = (1, 0x85, "Invalid Queue Type");
    /// Discover Restart.
    DISCOVER_RESTART = (1, 0x90, "Discover Restart");
    /// Authentication Required.
    AUTHENTICATION_REQUIRED = (1, 0x91, "Authentication Required");
    /// Write Fault.
    WRITE_FAULT = (2, 0x80, "Write Fault");
    /// Unrecovered Read Error.
    UNRECOVERED_READ_ERROR = (2, 0x81, "Unrecovered Read Error");
    /// End-to-end Guard Check Error.
    GUARD_CHECK_ERROR = (2, 0x82, "End-to-end Guard Check Error");
    /// Compare Failure.
    COMPARE_FAILURE = (2, 0x85, "Compare Failure");
    /// Access Denied.
    ACCESS_DENIED = (2, 0x86, "Access Denied");
    /// Deallocated or Unwritten Logical Block.
    DEALLOCATED_BLOCK = (2, 0x87, "Deallocated or Unwritten Logical Block");
    /// Internal Path Error.
    INTERNAL_PATH_ERROR = (3, 0x00, "Internal Path Error");
    /// Asymmetric Access Persistent Loss.
    ANA_PERSISTENT_LOSS = (3, 0x01, "Asymmetric Access Persistent Loss");
    /// Asymmetric Access Inaccessible.
    ANA_INACCESSIBLE = (3, 0x02, "Asymmetric Access Inaccessible");
    /// Asymmetric Access Transition.
    ANA_TRANSITION = (3, 0x03, "Asymmetric Access Transition");
    /// Controller Pathing Error.
    CONTROLLER_PATHING_ERROR = (3, 0x60, "Controller Pathing Error");
    /// Host Pathing Error.
    HOST_PATHING_ERROR = (3, 0x70, "Host Pathing Error");
    /// Command Aborted By Host.
    ABORTED_BY_HOST = (3, 0x71, "Command Aborted By Host");
}

impl Status {
    /// Incompatible Format, of fabrics commands.
    pub const INCOMPATIBLE_FORMAT: Status = Status { sct: 1, sc: 0x80, dnr: false, more: false };
    /// Controller Busy, of Connect.
    pub const CONTROLLER_BUSY: Status = Status { sct: 1, sc: 0x81, dnr: false, more: false };
    /// Connect Invalid Parameters: DW0 has IPO and IATTR, see [`crate::fabrics::InvalidParameter`].
    pub const CONNECT_INVALID_PARAMETERS: Status = Status { sct: 1, sc: 0x82, dnr: false, more: false };
    /// Connect Restart Discovery.
    pub const CONNECT_RESTART_DISCOVERY: Status = Status { sct: 1, sc: 0x83, dnr: false, more: false };

    /// The same with DNR set: the host is told not to retry.
    pub const fn dnr(self) -> Status {
        Status { dnr: true, ..self }
    }

    /// True for Successful Completion.
    pub const fn is_success(self) -> bool {
        self.sct == 0 && self.sc == 0
    }

    /// The same code, DNR and More aside.
    pub const fn is(self, other: Status) -> bool {
        self.sct == other.sct && self.sc == other.sc
    }

    /// The last two bytes of a completion with phase tag 0: SC in bits 8:1, SCT in 11:9, More 14, DNR 15.
    pub const fn to_field(self) -> u16 {
        (self.sc as u16) << 1
            | (self.sct as u16 & 7) << 9
            | if self.more { 1 << 14 } else { 0 }
            | if self.dnr { 1 << 15 } else { 0 }
    }

    /// From the last two bytes of a completion; phase tag and CRD are ignored.
    pub const fn from_field(field: u16) -> Status {
        Status {
            sct: (field >> 9 & 7) as u8,
            sc: (field >> 1) as u8,
            dnr: field & 1 << 15 != 0,
            more: field & 1 << 14 != 0,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None => f.write_str("Unknown Status")?,
        }
        write!(f, " ({:x}h/{:02x}h{})", self.sct, self.sc, if self.dnr { ", do not retry" } else { "" })
    }
}
