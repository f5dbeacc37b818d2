//! What goes wrong, and the exit code that says so.

use raid_proto::details::error_info;
use serde::Serialize;
use tonic::{Code, Status};

/// Exit codes, as `raidctl --help` documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Something else.
    Other = 1,
    /// The command line or an argument is wrong.
    Usage = 2,
    /// It is not there.
    NotFound = 3,
    /// Refused: not now, not in this state, no space, there already, or not confirmed.
    Refused = 4,
    /// raidd does not answer.
    Unavailable = 5,
    /// An operation ended without success.
    OperationFailed = 6,
    /// The time that was given is over.
    TimedOut = 7,
    /// `array show --check`: redundancy is missing.
    Degraded = 10,
    /// `array show --check`: a rebuild or resync is under way.
    Rebuilding = 11,
    /// `array show --check`: a volume is not served, or the array is not assembled.
    Failed = 12,
}

/// For `raidctl --help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   another failure
  2   the command line or an argument is wrong
  3   it is not there
  4   refused: not in this state, no space, there already, not confirmed
  5   raidd does not answer
  6   an operation ended without success
  7   the time that was given is over
  10  array show --check: degraded
  11  array show --check: rebuilding or resyncing
  12  array show --check: failed, stopped or waiting for members

Sizes are in bytes or with K, M, G, T, P (KiB, MiB, ...) for powers of 1024: 512, 4K, 64KiB, 1.5GiB.
Decimal units such as GB are refused, and so is a fraction that is no whole number of bytes.";

/// A failure, for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The server's reason, in capitals, if it gave one.
    pub reason: Option<String>,
    /// What happened, and what to do.
    pub message: String,
}

/// What commands return.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure found on this side.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, reason: None, message: message.into() }
    }

    /// As one JSON object, for `--output json`.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Body<'a> {
            exit_code: u8,
            reason: Option<&'a str>,
            message: &'a str,
        }
        #[derive(Serialize)]
        struct Wrapped<'a> {
            error: Body<'a>,
        }
        let body = Body { exit_code: self.exit as u8, reason: self.reason.as_deref(), message: &self.message };
        serde_json::to_string(&Wrapped { error: body }).unwrap_or_else(|_| self.message.clone())
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        let exit = match status.code() {
            Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
            Code::NotFound => Exit::NotFound,
            Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::PermissionDenied
            | Code::Aborted => Exit::Refused,
            Code::Unavailable => Exit::Unavailable,
            Code::DeadlineExceeded => Exit::TimedOut,
            _ => Exit::Other,
        };
        let info = error_info(&status);
        // Without details the server's services did not write it: the connection broke, or the service is not there.
        let message = match (status.code(), info.is_some()) {
            (_, true) => status.message().to_owned(),
            (Code::Unimplemented, _) => {
                "what answers there does not know the command: it is a raidd of another version (use its own raidctl), or no \
                 control socket at all (the page's address is not one)"
                    .to_owned()
            }
            (code, false) => format!(
                "the connection to raidd failed ({}: {}); whether the command was done is not known, 'raidctl status' shows",
                code.description(),
                status.message()
            ),
        };
        let exit = if info.is_none() && matches!(status.code(), Code::Unknown | Code::Cancelled) {
            Exit::Unavailable
        } else {
            exit
        };
        Failure { exit, reason: info.map(|i| i.reason), message }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::new(Exit::Other, format!("the output could not be written: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_exit_codes() {
        let failure = |code| Failure::from(raid_proto::details::status(code, "WHY", "what to do", [("array", "pool")]));
        for (code, exit) in [
            (Code::InvalidArgument, 2),
            (Code::NotFound, 3),
            (Code::FailedPrecondition, 4),
            (Code::AlreadyExists, 4),
            (Code::PermissionDenied, 4),
            (Code::Unavailable, 5),
            (Code::Internal, 1),
        ] {
            let failure = failure(code);
            assert_eq!(failure.exit as u8, exit, "{code:?}");
            assert_eq!(failure.message, "what to do");
        }
        assert_eq!(
            failure(Code::NotFound).json(),
            r#"{"error":{"exit_code":3,"reason":"WHY","message":"what to do"}}"#
        );
        assert_eq!(Failure::from(Status::unknown("transport error")).exit, Exit::Unavailable);
    }
}
