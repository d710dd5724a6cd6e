//! The path of a request: which session and which of its servers are meant.

/// Last segment of every MCP path.
const ENDPOINT: &str = "mcp";
/// Longest name that Kubernetes gives to an object.
const NAME_MAX: usize = 253;
/// Longest DNS label: namespaces and servers.
const LABEL_MAX: usize = 63;

/// One server of one session, as `/{namespace}/{session}/{server}/mcp` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPath<'a> {
    /// Namespace of the `AgentSession`.
    pub namespace: &'a str,
    /// Name of the `AgentSession`.
    pub session: &'a str,
    /// Name of the `McpServer`.
    pub server: &'a str,
}

/// What a path may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// It has another form than the one of sessions.
    Elsewhere,
    /// It has the form, but no object can have such names, so there is nothing to look for.
    Impossible,
    /// It names a server of a session.
    Session(SessionPath<'a>),
}

impl SessionPath<'_> {
    /// The session's key in the index.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.session)
    }
}

/// Reads a path, without its query.
pub fn parse(path: &str) -> Parsed<'_> {
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/');
    let named = (segments.next(), segments.next(), segments.next(), segments.next(), segments.next());
    let (Some(namespace), Some(session), Some(server), Some(ENDPOINT), None) = named else {
        return Parsed::Elsewhere;
    };
    if is_name(namespace, LABEL_MAX) && is_name(session, NAME_MAX) && is_name(server, LABEL_MAX) {
        Parsed::Session(SessionPath { namespace, session, server })
    } else {
        Parsed::Impossible
    }
}

/// Whether an object could have this name. Also bounds what caches and logs have to hold.
fn is_name(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_path_names_namespace_session_and_server() {
        let expected = SessionPath { namespace: "demo", session: "alice.1", server: "github" };
        assert_eq!(parse("/demo/alice.1/github/mcp"), Parsed::Session(expected.clone()));
        assert_eq!(expected.key(), "demo/alice.1");
    }

    #[test]
    fn other_forms_are_elsewhere() {
        for path in [
            "/",
            "",
            "/mcp",
            "/a/b/mcp",
            "/a/b/c/d/mcp",
            "/a/b/c/mcp/",
            "/a/b/c/sse",
            "//a/b/c/mcp",
            "/a/b/c/mcp/x",
        ] {
            assert_eq!(parse(path), Parsed::Elsewhere, "{path}");
        }
    }

    #[test]
    fn names_that_no_object_can_have_are_impossible() {
        let long = "a".repeat(254);
        for path in [
            "/a//c/mcp",
            "/A/b/c/mcp",
            "/a/b%2Fc/d/mcp",
            "/a/b/ü/mcp",
            "/a/b c/d/mcp",
            &format!("/a/{long}/c/mcp"),
        ] {
            assert_eq!(parse(path), Parsed::Impossible, "{path}");
        }
    }
}
