//! The probe through real sockets.

#[cfg(test)]
mod accept;
#[cfg(test)]
mod answers;
#[cfg(test)]
mod asks;
#[cfg(test)]
mod books;
#[cfg(test)]
mod client;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod lists;
#[cfg(test)]
mod lost;
#[cfg(test)]
mod notices;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod raw;
#[cfg(test)]
mod statuses;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod tools;
