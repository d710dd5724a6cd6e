//! The charts as people use them: upgrade, roll back, test, uninstall and install again, with sessions that live. Runs last and with
//! one thread: it takes the installed Berth away, and brings it back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod helm;
mod kinds;
mod network;
mod uninstall;
mod upgrade;
