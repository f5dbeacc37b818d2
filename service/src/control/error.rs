//! Refusals, as the control plane carries them.

use raid_core::manager::{ErrorKind, ManageError};

/// A refusal: what happened, to what, and what to do. A refused change changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The class; it decides the gRPC code.
    pub kind: Kind,
    /// A fixed name for programs, in capitals, such as `ARRAY_NOT_FOUND`.
    pub reason: &'static str,
    /// A whole sentence or two.
    pub message: String,
    /// Names and values for programs, such as `array` and its name.
    pub metadata: Vec<(&'static str, String)>,
}

/// Classes of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The arguments can't be right, whatever the state.
    InvalidArgument,
    /// Not now, or not in this state.
    FailedPrecondition,
    /// No such resource.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// No space, slots or memory left.
    Exhausted,
    /// A device or the machine failed underneath.
    Device,
    /// Data or metadata is lost or contradicts itself.
    DataLoss,
    /// The daemon is stopping or the part is not there yet: try again.
    Unavailable,
    /// This daemon was not started with what it needs.
    PermissionDenied,
    /// A fault of raidd itself.
    Internal,
}

impl Error {
    /// A refusal with neither metadata nor a special reason.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, reason: kind.reason(), message: message.into(), metadata: Vec::new() }
    }

    /// Gives it a reason for programs.
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Error {
        self.reason = reason;
        self
    }

    /// Adds a name and a value for programs.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Error {
        self.metadata.push((name, value.to_string()));
        self
    }

    /// No array of this name.
    pub fn no_array(name: &str) -> Error {
        Error::new(
            Kind::NotFound,
            format!("there is no array '{name}'; 'raidctl array list' shows those that are assembled, 'raidctl array assemble' brings one up"),
        )
        .because("ARRAY_NOT_FOUND")
        .with("array", name)
    }

    /// No volume of this name.
    pub fn no_volume(array: &str, name: &str) -> Error {
        Error::new(
            Kind::NotFound,
            format!("array '{array}' has no volume '{name}'; 'raidctl volume list {array}' shows those that it has"),
        )
        .because("VOLUME_NOT_FOUND")
        .with("array", array)
        .with("volume", name)
    }

    /// No member of this number.
    pub fn no_member(array: &str, number: u16) -> Error {
        Error::new(
            Kind::NotFound,
            format!("array '{array}' has no member {number}; 'raidctl member list {array}' shows those that it has"),
        )
        .because("MEMBER_NOT_FOUND")
        .with("array", array)
        .with("member", number)
    }

    /// No export of this subsystem and namespace.
    pub fn no_export(nqn: &str, nsid: u32) -> Error {
        Error::new(
            Kind::NotFound,
            format!("subsystem '{nqn}' exports no namespace {nsid}; 'raidctl export list' shows what is exported"),
        )
        .because("EXPORT_NOT_FOUND")
        .with("nqn", nqn)
        .with("nsid", nsid)
    }

    /// No operation of this ID.
    pub fn no_operation(id: &str) -> Error {
        Error::new(
            Kind::NotFound,
            format!(
                "there is no operation '{id}'; 'raidctl operation list' shows those that run and the last that ended"
            ),
        )
        .because("OPERATION_NOT_FOUND")
        .with("operation", id)
    }
}

impl Kind {
    /// The reason of a refusal that has no special one.
    pub fn reason(self) -> &'static str {
        match self {
            Kind::InvalidArgument => "INVALID_ARGUMENT",
            Kind::FailedPrecondition => "FAILED_PRECONDITION",
            Kind::NotFound => "NOT_FOUND",
            Kind::AlreadyExists => "ALREADY_EXISTS",
            Kind::Exhausted => "NO_SPACE",
            Kind::Device => "DEVICE_FAILED",
            Kind::DataLoss => "DATA_LOSS",
            Kind::Unavailable => "UNAVAILABLE",
            Kind::PermissionDenied => "NOT_ENABLED",
            Kind::Internal => "INTERNAL",
        }
    }
}

impl From<ManageError> for Error {
    fn from(e: ManageError) -> Error {
        let kind = match e.kind {
            ErrorKind::InvalidArgument => Kind::InvalidArgument,
            ErrorKind::FailedPrecondition => Kind::FailedPrecondition,
            ErrorKind::NotFound => Kind::NotFound,
            ErrorKind::AlreadyExists => Kind::AlreadyExists,
            ErrorKind::NoSpace => Kind::Exhausted,
            ErrorKind::Device => Kind::Device,
            ErrorKind::Corrupt => Kind::DataLoss,
        };
        Error::new(kind, e.message)
    }
}
