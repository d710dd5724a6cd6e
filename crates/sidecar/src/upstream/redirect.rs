//! Redirects of an upstream: followed to its own origin and nowhere else, since a request carries a credential.

use super::target::{Host, Target};
use super::{Body, DialError, REFUSAL_LIMIT, SendError, Transport};
use bytes::Bytes;
use http::header::LOCATION;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use std::sync::Arc;

/// Redirects in a row.
const MOST: usize = 3;

/// Sends a request, to where the upstream redirects it. Method and body stay, and so no redirect is followed that would change
/// them.
pub(super) async fn send(
    transport: &Arc<Transport>,
    method: &Method,
    make: impl Fn() -> Result<Request<Full<Bytes>>, SendError> + Send + Sync,
) -> Result<Response<Body>, SendError> {
    let target = transport.target();
    let mut path = None;
    for _ in 0..=MOST {
        let make = || {
            let mut request = make()?;
            if let Some(path) = &path {
                *request.uri_mut() = PathAndQuery::clone(path).into();
            }
            Ok(request)
        };
        let mut response = transport.send(make).await?;
        let Some(location) = redirect(&response) else { return Ok(response) };
        let at = path.as_ref().unwrap_or(&target.path);
        let next = follow(target, at, method, response.status(), location)
            .map_err(|text| SendError::NotSent(DialError::Redirected(text)))?;
        // So that the socket can be used again.
        response.body_mut().finish(REFUSAL_LIMIT).await;
        path = Some(next);
    }
    let text = format!("more than {MOST} times in a row; set the final URL");
    Err(SendError::NotSent(DialError::Redirected(text)))
}

/// Where an answer redirects to, as it stands there.
fn redirect(response: &Response<Body>) -> Option<&str> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    Some(response.headers().get(LOCATION)?.to_str().unwrap_or_default())
}

/// The path to go on with, or why not.
fn follow(
    target: &Target,
    at: &PathAndQuery,
    method: &Method,
    status: StatusCode,
    location: &str,
) -> Result<PathAndQuery, String> {
    let (code, own) = (status.as_u16(), origin(target));
    let Some(there) = resolve(&own, at, location) else {
        return Err(format!("({code}) to what is no http or https URL; set the final URL"));
    };
    let to = origin(&there);
    if to != own {
        return Err(format!(
            "({code}) to {to}, and only redirects within {own} are followed; set the final URL"
        ));
    }
    // Clients make a GET of anything that they send on such a redirect.
    if *method != Method::GET && !matches!(code, 307 | 308) {
        return Err(format!(
            "({code}) to {to}, and a {method} is only sent on after 307 and 308; set the final URL"
        ));
    }
    Ok(there.path)
}

/// What `location` names, read at `own` and `at`.
fn resolve(own: &str, at: &PathAndQuery, location: &str) -> Option<Target> {
    let location = location.split('#').next().unwrap_or_default();
    let (scheme, _) = own.split_once(':')?;
    let whole = if location.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?'])) {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{own}{location}")
    } else if location.starts_with('?') {
        format!("{own}{}{location}", at.path())
    } else {
        let folder = at.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{own}{folder}/{location}")
    };
    Target::parse(&whole).ok()
}

/// Scheme, host and port, in one spelling.
fn origin(target: &Target) -> String {
    let (scheme, usual) = if target.tls_name.is_some() { ("https", 443) } else { ("http", 80) };
    let host = match &target.host {
        Host::Name(name) => name.to_ascii_lowercase(),
        Host::Address(address) if address.is_ipv6() => format!("[{address}]"),
        Host::Address(address) => address.to_string(),
    };
    if target.port == usual {
        format!("{scheme}://{host}")
    } else {
        format!("{scheme}://{host}:{}", target.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(url: &str, method: &Method, status: u16, location: &str) -> Result<String, String> {
        let target = Target::parse(url).unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        follow(&target, &target.path, method, status, location).map(|path| path.to_string())
    }

    #[test]
    fn a_redirect_within_the_origin_is_followed_in_every_spelling() {
        for (location, path) in [
            ("/mcp/", "/mcp/"),
            ("/mcp/?x=1#there", "/mcp/?x=1"),
            ("http://A.test:3001/b", "/b"),
            ("//a.test:3001/b", "/b"),
            ("other", "/v1/other"),
            ("?x=1", "/v1/mcp?x=1"),
            ("/login?next=http://b.test/", "/login?next=http://b.test/"),
        ] {
            let found = followed("http://a.test:3001/v1/mcp?t=1", &Method::POST, 307, location);
            assert_eq!(found.as_deref(), Ok(path), "{location}");
        }
        assert!(followed("https://a.test/", &Method::POST, 308, "https://a.test:443/x").is_ok());
        assert!(followed("http://[::1]:80/", &Method::POST, 308, "http://[::1]/x").is_ok());
        assert!(followed("http://a.test/", &Method::GET, 302, "/x").is_ok());
    }

    #[test]
    fn a_redirect_to_another_origin_is_named_without_its_query_and_not_followed() {
        for (location, origin) in [
            ("https://a.test/mcp?token=hunter2", "https://a.test"),
            ("http://b.test/mcp?token=hunter2", "http://b.test"),
            ("http://a.test:81/", "http://a.test:81"),
            ("//b.test/x", "http://b.test"),
            ("http://127.0.0.1/", "http://127.0.0.1"),
        ] {
            let error = followed("http://a.test/mcp", &Method::POST, 307, location).unwrap_err();
            assert_eq!(
                error,
                format!(
                    "(307) to {origin}, and only redirects within http://a.test are followed; set the final URL"
                )
            );
        }
        for location in ["ftp://a.test/", "http://u:hunter2@a.test/", "http://", "javascript://a"] {
            let error = followed("http://a.test/mcp", &Method::GET, 302, location).unwrap_err();
            assert_eq!(error, "(302) to what is no http or https URL; set the final URL", "{location}");
        }
    }

    #[test]
    fn what_would_change_the_method_is_not_followed() {
        for (method, status) in
            [(Method::POST, 301), (Method::POST, 302), (Method::POST, 303), (Method::DELETE, 302)]
        {
            let error = followed("http://a.test/mcp", &method, status, "/mcp/").unwrap_err();
            let text =
                format!("({status}) to http://a.test, and a {method} is only sent on after 307 and 308");
            assert!(error.starts_with(&text), "{error}");
        }
    }
}
