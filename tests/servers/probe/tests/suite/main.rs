//! The probe through real sockets.

#[cfg(test)]
mod books;
#[cfg(test)]
mod client;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod tools;
