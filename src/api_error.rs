//! Errors of the API server in one line: kube's own text carries the whole answer.

use kube::Error;

/// What the API server or the client said, in one line.
pub fn text(error: &Error) -> String {
    match error {
        Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// The HTTP status of the answer, if there was one.
pub fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Whether the object that was written is gone, or is not what this process last saw: somebody else was faster, and the next
/// look sets it right.
pub fn is_outdated(error: &Error) -> bool {
    matches!(code(error), Some(404 | 409 | 422))
}

/// Whether something was refused because its namespace is being deleted: nothing is made there any more.
pub fn is_terminating_namespace(error: &Error) -> bool {
    let Error::Api(status) = error else { return false };
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}
