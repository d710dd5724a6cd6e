//! The ports that a probe may listen on besides its own one.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What a port is for. All lead to the same server; only [`Port::Main`] is never struck by a fault at accept, so that a test
/// can always reach the books.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Port {
    /// Plain HTTP, for whoever asks for books and sets faults.
    Main,
    /// Plain HTTP.
    Plain,
    /// TLS with a certificate that is in order.
    Good,
    /// TLS with a certificate whose time is over.
    Expired,
    /// TLS with a certificate for another name.
    WrongName,
    /// TLS with a certificate whose issuer is neither known nor sent along.
    NoIntermediate,
    /// Accepts, reads what comes and never says a word: a TLS handshake goes unanswered.
    Silent,
}

impl Port {
    /// All that can be asked for.
    pub const EXTRA: [Self; 6] =
        [Self::Plain, Self::Good, Self::Expired, Self::WrongName, Self::NoIntermediate, Self::Silent];

    /// Its name in settings, faults and books.
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Plain => "plain",
            Self::Good => "good",
            Self::Expired => "expired",
            Self::WrongName => "wrong-name",
            Self::NoIntermediate => "no-intermediate",
            Self::Silent => "silent",
        }
    }

    /// Whether it speaks TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Good | Self::Expired | Self::WrongName | Self::NoIntermediate)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A port to listen on, as `good=8443`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// What it is for.
    pub port: Port,
    /// Its number.
    pub number: u16,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text.split_once('=').ok_or_else(|| format!("{text} is not KIND=NUMBER"))?;
        let port = Port::EXTRA
            .into_iter()
            .find(|port| port.name() == name.trim())
            .ok_or_else(|| format!("{name} is none of {}", Port::EXTRA.map(Port::name).join(", ")))?;
        let number = number.trim().parse().map_err(|_| format!("{number} is not the number of a port"))?;
        Ok(Self { port, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named() {
        assert_eq!("wrong-name=8445".parse(), Ok(Listen { port: Port::WrongName, number: 8445 }));
        for bad in ["8443", "main=1", "good=x", "good=70000", ""] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
        for port in Port::EXTRA {
            assert_eq!(serde_json::to_value(port).unwrap(), port.name());
        }
    }
}
