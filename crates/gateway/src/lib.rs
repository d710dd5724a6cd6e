//! The gateway: client -> gateway -> sidecar over mutual TLS.
//!
//! It authenticates a caller, authorizes it for one session, finds the pod that holds the session's slot and streams
//! bytes both ways. Of an MCP message it reads nothing but the id, and that only to answer a call that it cannot relay. It
//! never sends the caller's bearer token on.
//!
//! One request, in order: [`handle`] is its table of contents; [`origin`] and [`path`] look at the head,
//! [`authenticate`] and [`authorize`] at the caller by a [`review`], [`body`] reads what is to be sent within the process's
//! [`budget`], [`place`] waits for [`route`] to decide on the entry in the [`index`], [`forward`] sends, and [`respond`]
//! holds every answer that is our own.
//!
//! The index is what [`watch`] sees of sessions, with what the [`leader`] says of their places laid over it. It and the
//! reviews are caches: nothing else is kept, so any replica serves any session.

pub mod authenticate;
pub mod authorize;
pub mod bearer;
pub mod body;
pub mod budget;
pub mod cli;
pub mod entry;
pub mod forward;
pub mod gateway;
pub mod handle;
pub mod header;
pub mod index;
pub mod kube_review;
pub mod leader;
pub mod metrics;
pub mod origin;
pub mod path;
pub mod place;
pub mod respond;
pub mod review;
pub mod route;
pub mod run;
pub mod watch;

pub use gateway::{Gateway, Settings};
