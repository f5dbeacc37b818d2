//! Error details as Google's API guide (AIP-193) has them: a `google.rpc.Status` with an `ErrorInfo` in the trailer
//! `grpc-status-details-bin`.

use std::collections::HashMap;

use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};

/// The domain of every [`ErrorInfo`] of raidd.
pub const DOMAIN: &str = "raidd";

const ERROR_INFO_URL: &str = "type.googleapis.com/google.rpc.ErrorInfo";

/// `google.rpc.ErrorInfo`: an error's reason for programs.
#[derive(Clone, PartialEq, Message)]
pub struct ErrorInfo {
    /// A fixed name in capitals, such as `ARRAY_NOT_FOUND`.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Whose name that is: [`DOMAIN`].
    #[prost(string, tag = "2")]
    pub domain: String,
    /// Names and values that it is about.
    #[prost(map = "string, string", tag = "3")]
    pub metadata: HashMap<String, String>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// A gRPC status that carries an [`ErrorInfo`].
pub fn status<K: Into<String>, V: Into<String>>(
    code: Code,
    reason: &str,
    message: impl Into<String>,
    metadata: impl IntoIterator<Item = (K, V)>,
) -> Status {
    let message = message.into();
    let info = ErrorInfo {
        reason: reason.to_owned(),
        domain: DOMAIN.to_owned(),
        metadata: metadata.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
    };
    let detail = Any { type_url: ERROR_INFO_URL.to_owned(), value: info.encode_to_vec() };
    let rpc = RpcStatus { code: code as i32, message: message.clone(), details: vec![detail] };
    Status::with_details(code, message, rpc.encode_to_vec().into())
}

/// The [`ErrorInfo`] of a status, if it carries one.
pub fn error_info(status: &Status) -> Option<ErrorInfo> {
    let rpc = RpcStatus::decode(status.details()).ok()?;
    let detail = rpc.details.iter().find(|d| d.type_url == ERROR_INFO_URL)?;
    ErrorInfo::decode(detail.value.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_come_back() {
        let sent = status(Code::NotFound, "ARRAY_NOT_FOUND", "no such array", [("array", "pool")]);
        let info = error_info(&sent).expect("details");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("ARRAY_NOT_FOUND", DOMAIN));
        assert_eq!(info.metadata["array"], "pool");
        assert_eq!(error_info(&Status::not_found("plain")), None);
    }

    #[test]
    fn an_error_info_has_googles_field_numbers() {
        let info = ErrorInfo { reason: "A".into(), domain: "b".into(), metadata: HashMap::new() };
        assert_eq!(info.encode_to_vec(), [0x0a, 1, b'A', 0x12, 1, b'b']);
    }
}
