//! Users that no ServiceAccount can be.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// A token for the gateway of the user of exactly that name. Only the test cluster knows such users: see its README.md.
pub fn token_of_user(name: &str) -> String {
    format!("test-user.{}", URL_SAFE_NO_PAD.encode(name))
}
