//! What becomes of clients when the upstream forgot its session.

use serde::{Deserialize, Serialize};

/// What a client sees when the upstream forgot its session: what was bound to it is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnStateLost {
    /// A new upstream session is opened behind its back; its next result is marked.
    #[default]
    Reinitialize,
    /// It is told that its session is over, and begins anew.
    Fail,
}

impl OnStateLost {
    /// Whether it is the default, which is not written.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
