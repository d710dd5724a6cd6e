//! Whether a browser's page may call, and whether this host may be asked for.
//!
//! A page whose name was rebound to our address sends that name as Host and as Origin: that the two agree proves nothing,
//! and MCP wants such requests refused. Requests without an Origin come from programs and pass.

use crate::gateway::Settings;
use crate::respond::Refusal;
use http::uri::{Authority, Uri};
use http::{HeaderMap, header};

/// Checks that there is no more than one `Host`, then the host that is asked for against the allowed hosts, then `Origin` against
/// localhost, the allowed origins and the host itself where that is an allowed one.
pub fn check(uri: &Uri, headers: &HeaderMap, settings: &Settings) -> Result<(), Refusal> {
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(Refusal::ManyHosts);
    }
    let host = asked_for(uri, headers);
    let host = host.as_ref().map(Authority::host);
    if !settings.allowed_hosts.is_empty() && !host.is_some_and(|host| contains(&settings.allowed_hosts, host))
    {
        return Err(Refusal::ForbiddenHost);
    }
    let mut origins = headers.get_all(header::ORIGIN).iter();
    match (origins.next(), origins.next()) {
        (None, _) => Ok(()),
        (Some(origin), None) if origin.to_str().is_ok_and(|origin| may_call(origin, host, settings)) => {
            Ok(())
        }
        _ => Err(Refusal::ForbiddenOrigin),
    }
}

/// The host of an absolute request target, else of `Host`: the target is what counts where both are there.
fn asked_for(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    match uri.authority() {
        Some(target) => Some(target.clone()),
        None => headers.get(header::HOST)?.to_str().ok()?.parse().ok(),
    }
}

fn may_call(origin: &str, host: Option<&str>, settings: &Settings) -> bool {
    if contains(&settings.allowed_origins, origin) {
        return true;
    }
    let Ok(uri) = origin.parse::<Uri>() else { return false };
    let (Some(_), Some(name)) = (uri.scheme(), uri.host()) else { return false };
    is_local(name)
        || (contains(&settings.allowed_hosts, name)
            && host.is_some_and(|host| host.eq_ignore_ascii_case(name)))
}

fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || matches!(host, "127.0.0.1" | "[::1]")
}

fn contains(list: &[String], text: &str) -> bool {
    list.iter().any(|known| known.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(host: &str, origins: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        for origin in origins {
            headers.append(header::ORIGIN, origin.parse().unwrap());
        }
        headers
    }

    fn path() -> Uri {
        Uri::from_static("/demo/s/github/mcp")
    }

    fn settings(origins: &[&str], hosts: &[&str]) -> Settings {
        let own = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        Settings { allowed_origins: own(origins), allowed_hosts: own(hosts), ..Settings::default() }
    }

    #[test]
    fn an_origin_passes_when_it_is_local_our_own_or_allowed() {
        let allowed = settings(&["https://app.example"], &["mcp.corp.example", "other.corp.example"]);
        let table: [(&[&str], bool); 13] = [
            (&[], true),
            (&["http://localhost:6274"], true),
            (&["http://127.0.0.1:80"], true),
            (&["http://[::1]:80"], true),
            (&["https://mcp.corp.example"], true),
            (&["https://other.corp.example"], false),
            (&["https://APP.example"], true),
            (&["https://app.example:8443"], false),
            (&["https://evil.example"], false),
            (&["http://localhost.evil.example"], false),
            (&["null"], false),
            (&[""], false),
            (&["http://localhost", "http://localhost"], false),
        ];
        for (origins, passes) in table {
            assert_eq!(
                check(&path(), &head("mcp.corp.example:443", origins), &allowed).is_ok(),
                passes,
                "{origins:?}"
            );
        }
    }

    #[test]
    fn a_host_that_nobody_allowed_is_no_reason_to_trust_the_same_origin() {
        let none = settings(&[], &[]);
        let rebound = head("evil.example.com", &["http://evil.example.com"]);
        assert_eq!(check(&path(), &rebound, &none), Err(Refusal::ForbiddenOrigin));
        for local in ["localhost", "127.0.0.1", "[::1]"] {
            let own = head(&format!("{local}:8080"), &[&format!("http://{local}:8080")]);
            assert_eq!(check(&path(), &own, &none), Ok(()), "{local}");
        }
    }

    #[test]
    fn any_host_may_be_asked_for_unless_hosts_are_given() {
        assert!(check(&path(), &head("whatever:1", &[]), &settings(&[], &[])).is_ok());
        let given = settings(&[], &["mcp.corp.example"]);
        assert!(check(&path(), &head("MCP.corp.example:443", &[]), &given).is_ok());
        assert_eq!(check(&path(), &head("10.0.0.7:8080", &[]), &given), Err(Refusal::ForbiddenHost));
        assert_eq!(check(&path(), &HeaderMap::new(), &given), Err(Refusal::ForbiddenHost));
    }

    #[test]
    fn the_target_of_a_request_counts_before_its_host() {
        let given = settings(&[], &["mcp.corp.example"]);
        let target = |host: &str| format!("http://{host}:8080/demo/s/github/mcp").parse().unwrap();
        assert!(check(&target("mcp.corp.example"), &head("evil.example", &[]), &given).is_ok());
        let refused = check(&target("evil.example"), &head("mcp.corp.example", &[]), &given);
        assert_eq!(refused, Err(Refusal::ForbiddenHost));
    }

    #[test]
    fn two_hosts_are_refused_whatever_may_be_asked_for() {
        let target = "http://mcp.corp.example/demo/s/github/mcp".parse().unwrap();
        let mut two = head("mcp.corp.example", &[]);
        two.append(header::HOST, "mcp.corp.example".parse().unwrap());
        for allowed in [settings(&[], &[]), settings(&[], &["mcp.corp.example"])] {
            assert_eq!(check(&path(), &two, &allowed), Err(Refusal::ManyHosts));
            assert_eq!(check(&target, &two, &allowed), Err(Refusal::ManyHosts));
        }
    }
}
