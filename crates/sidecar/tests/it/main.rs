//! The real sidecar over real mutual TLS sockets, against a scripted upstream.

mod connect;
mod control;
mod end;
mod relay;
mod support;
