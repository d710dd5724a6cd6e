//! Decisions on `AgentSession`, while it lives. How it ends is in [`crate::end`].

pub mod build;
pub mod clocks;
pub mod moved;
pub mod place;
pub mod removed;
pub mod status;
pub mod validate;
