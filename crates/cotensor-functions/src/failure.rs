//! Errors of calls: a function's failure, or a call that did not reach the function.

use cotensor_client::protocol::provider::{CauseInfo, FAILED_CODE, FailureInfo};
use cotensor_core::{Error, ErrorKind};
use cotensor_rpc as rpc;
use jsonrpsee_types::ErrorObjectOwned;
use serde_json::Value as Json;
use std::fmt;

/// The longest message and the longest trace that are sent, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// The most causes that are sent.
const CAUSES_MAX: usize = 8;

/// The failure of a function. The caller receives all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind, such as the name of an exception.
    pub kind: String,
    /// The message.
    pub message: String,
    /// The stack trace; may be empty.
    pub trace: String,
    /// The arguments of an exception, in the JSON of the protocol. `None` if some have no such form.
    pub args: Option<Vec<Json>>,
    /// The causes, nearest first.
    pub causes: Vec<Cause>,
}

/// A cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The kind, such as the name of an exception.
    pub kind: String,
    /// The message.
    pub message: String,
    /// The stack trace; may be empty.
    pub trace: String,
    /// As [`Failure::args`].
    pub args: Option<Vec<Json>>,
}

impl Failure {
    /// A failure without a trace.
    pub fn new(kind: &str, message: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), message: message.into(), trace: String::new(), args: None, causes: Vec::new() }
    }

    /// A failure from an error, with the error's sources as the trace.
    pub fn from_error(kind: &str, error: &dyn std::error::Error) -> Self {
        let mut failure = Self::new(kind, error.to_string());
        let mut source = error.source();
        while let Some(cause) = source {
            failure.trace.insert_str(0, &format!("caused by: {cause}\n"));
            source = cause.source();
        }
        failure
    }

    /// The failure of a call of an unknown method.
    pub fn no_method(method: &str) -> Self {
        Self::new("no_method", format!("this object has no method {method:?}"))
    }

    /// The function was cancelled.
    pub(crate) fn cancelled() -> Self {
        Self::new(CANCELLED, "cancelled")
    }

    /// The function timed out.
    pub(crate) fn timed_out(limit: std::time::Duration) -> Self {
        Self::new(TIMED_OUT, format!("timed out after {} s", limit.as_secs_f64()))
    }

    /// A function called another one after its own time was over.
    pub(crate) fn out_of_time() -> Self {
        Self::new(TIMED_OUT, "the time of the calling function is over")
    }

    /// The function panicked.
    pub(crate) fn panicked(function: &str, payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        Self { trace: format!("panicked in {function}"), ..Self::new("panic", text) }
    }

    pub(crate) fn is_timeout(&self) -> bool {
        self.kind == TIMED_OUT
    }

    pub(crate) fn is_cancellation(&self) -> bool {
        self.kind == CANCELLED
    }

    pub(crate) fn to_object(&self) -> ErrorObjectOwned {
        let cause = |Cause { kind, message, trace, args }: &Cause| {
            let (r#type, message, trace) = (short(kind), short(message), short(trace));
            CauseInfo { r#type, message, trace, args: if_short(args) }
        };
        let causes = self.causes.iter().take(CAUSES_MAX).map(cause).collect();
        let (r#type, trace, args) = (short(&self.kind), short(&self.trace), if_short(&self.args));
        let info = FailureInfo { r#type, trace, args, causes };
        ErrorObjectOwned::owned(FAILED_CODE, short(&self.message), Some(info))
    }
}

const CANCELLED: &str = "cancelled";
const TIMED_OUT: &str = "timed_out";

fn short(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

fn if_short(args: &Option<Vec<Json>>) -> Option<Vec<Json>> {
    args.clone().filter(|args| serde_json::to_vec(args).is_ok_and(|text| text.len() <= TEXT_BYTES_MAX))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(rpc::kind_name(error.kind()), error.to_string())
    }
}

/// The error of a call.
#[derive(Clone, Debug)]
pub enum CallError {
    /// The function failed, or was cancelled before it ran.
    Failed(Failure),
    /// The call did not reach the function, or its result was lost: an unknown function, an invalid argument, a
    /// provider that has ended.
    NotCalled(Error),
}

impl CallError {
    /// The function's failure.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            CallError::Failed(failure) => Some(failure),
            CallError::NotCalled(_) => None,
        }
    }

    /// The kind of error: [`ErrorKind::TimedOut`] for a timeout, [`ErrorKind::Engine`] for any other failure of the
    /// function.
    pub fn kind(&self) -> ErrorKind {
        match self {
            CallError::Failed(failure) if failure.kind == TIMED_OUT => ErrorKind::TimedOut,
            CallError::Failed(_) => ErrorKind::Engine,
            CallError::NotCalled(error) => error.kind(),
        }
    }

    pub(crate) fn from_object(object: &ErrorObjectOwned) -> Self {
        if object.code() != FAILED_CODE {
            return CallError::NotCalled(rpc::from_object(object));
        }
        let info = object.data().and_then(|data| serde_json::from_str::<FailureInfo>(data.get()).ok());
        let (kind, trace, args, causes) =
            info.map(|info| (info.r#type, info.trace, info.args, info.causes)).unwrap_or_default();
        let cause = |CauseInfo { r#type, message, trace, args }| Cause { kind: r#type, message, trace, args };
        let causes = causes.into_iter().take(CAUSES_MAX).map(cause).collect();
        CallError::Failed(Failure { kind, message: object.message().to_owned(), trace, args, causes })
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Failed(failure) => failure.fmt(f),
            CallError::NotCalled(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CallError {}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        CallError::NotCalled(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_sent_with_type_message_trace_and_causes() {
        let cause = Error::not_found("no such thing");
        #[derive(Debug)]
        struct Outer(Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outer")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let mut failure = Failure::from_error("Outer", &Outer(cause));
        let args = Some(vec!["x".into()]);
        failure.causes.push(Cause { kind: "KeyError".into(), message: "'x'".into(), trace: "line 1".into(), args });
        failure.args = Some(vec![2.into(), "no such file".into()]);
        assert!(failure.trace.contains("caused by: no such thing"));
        let CallError::Failed(back) = CallError::from_object(&failure.to_object()) else { panic!("a failure") };
        assert_eq!(back, failure);
        let long = Failure { message: "é".repeat(TEXT_BYTES_MAX), ..failure };
        assert!(long.to_object().message().len() <= TEXT_BYTES_MAX);
        let long = Failure { args: Some(vec!["x".repeat(TEXT_BYTES_MAX).into()]), ..long };
        let CallError::Failed(back) = CallError::from_object(&long.to_object()) else { panic!("a failure") };
        assert_eq!(back.args, None, "shortened arguments would be wrong ones");
        let error = Error::invalid("why").in_field("x");
        assert_eq!(CallError::from_object(&rpc::to_object(&error)).kind(), ErrorKind::Invalid);
    }
}
