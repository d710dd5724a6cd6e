//! The list of tools: the real ones, as many invented ones as a test wants, and pages in good and bad order.

use std::{collections::BTreeSet, sync::Mutex};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::{
    lock,
    rpc::{INVALID_PARAMS, RpcError},
    tools,
};

/// The tools, byte for byte as they are listed, with fields that no SDK knows.
const TOOLS: &str = include_str!("tools.json");
/// Begin of the name of an invented tool; its number follows, from 0.
const FILLER: &str = "filler-";

/// How pages follow each other.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Pages {
    /// Each leads to the next one, the last to none.
    #[default]
    Good,
    /// The same cursor again and again, with the second page.
    Repeat,
    /// Always a new cursor, and always new tools.
    Endless,
    /// After the last one comes one without tools.
    EmptyLast,
}

/// What is listed.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Catalogue {
    /// Whether the real tools are in it.
    pub real: bool,
    /// So many invented tools.
    pub filler: u64,
    /// Bytes of each one's description.
    pub filler_bytes: usize,
    /// Tools that a test added, as they are.
    pub add: Vec<Value>,
    /// Names of tools that are gone.
    pub remove: BTreeSet<String>,
    /// Tools on a page; without it, all are on one.
    pub page: Option<usize>,
    /// How pages follow each other.
    pub pages: Pages,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self {
            real: true,
            filler: 0,
            filler_bytes: 0,
            add: Vec::new(),
            remove: BTreeSet::new(),
            page: None,
            pages: Pages::Good,
        }
    }
}

/// The list as it stands.
#[derive(Debug, Default)]
pub struct Listed {
    now: Mutex<Catalogue>,
}

impl Listed {
    /// What is listed now.
    pub fn get(&self) -> Catalogue {
        lock(&self.now).clone()
    }

    /// Lists something else.
    pub fn set(&self, catalogue: Catalogue) {
        *lock(&self.now) = catalogue;
    }

    /// Whether a tool can be called.
    pub fn knows(&self, tool: &str) -> bool {
        let now = lock(&self.now);
        let added =
            |tool: &str| now.add.iter().any(|added| added.get("name").is_some_and(|name| name == tool));
        !now.remove.contains(tool) && (tools::is_real(tool) || tool.starts_with(FILLER) || added(tool))
    }
}

impl Catalogue {
    /// Result of `tools/list`.
    pub fn page(&self, cursor: Option<&str>) -> Result<String, RpcError> {
        let size = self.page.unwrap_or(usize::MAX).max(1);
        let from = match (cursor, self.pages) {
            (None, _) => 0,
            (Some("again"), Pages::Repeat) => size,
            (Some(cursor), _) => cursor
                .strip_prefix("from-")
                .and_then(|number| number.parse().ok())
                .ok_or_else(|| RpcError::new(INVALID_PARAMS, "Invalid params: unknown cursor"))?,
        };
        if self.pages == Pages::Endless {
            let until = from.saturating_add(size.min(1000));
            let tools: Vec<_> = (from..until).map(|number| self.invented(number as u64)).collect();
            return Ok(result(&tools, Some(&format!("from-{until}"))));
        }
        let all = self.tools();
        let until = from.saturating_add(size).min(all.len());
        let tools = all.get(from..until).unwrap_or_default();
        let next = match self.pages {
            Pages::Repeat => Some("again".to_owned()),
            Pages::EmptyLast if from < all.len() => Some(format!("from-{until}")),
            Pages::Good if until < all.len() => Some(format!("from-{until}")),
            _ => None,
        };
        Ok(result(tools, next.as_deref()))
    }

    fn tools(&self) -> Vec<String> {
        let real: Vec<Box<RawValue>> = serde_json::from_str(TOOLS).unwrap_or_default();
        let real = real.iter().filter(|_| self.real).map(|tool| tool.get().to_owned());
        let added = self.add.iter().map(Value::to_string);
        let invented = (0..self.filler).map(|number| self.invented(number));
        real.chain(added).chain(invented).filter(|tool| !self.is_removed(tool)).collect()
    }

    fn is_removed(&self, tool: &str) -> bool {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        !self.remove.is_empty()
            && serde_json::from_str::<Named>(tool).is_ok_and(|tool| self.remove.contains(&tool.name))
    }

    fn invented(&self, number: u64) -> String {
        json!({"name": format!("{FILLER}{number}"), "description": "x".repeat(self.filler_bytes),
            "inputSchema": {"type": "object"}})
        .to_string()
    }
}

fn result(tools: &[String], next: Option<&str>) -> String {
    let next = next.map(|next| format!(r#","nextCursor":"{next}""#)).unwrap_or_default();
    format!(r#"{{"tools":[{}]{next}}}"#, tools.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(catalogue: &Catalogue, cursor: Option<&str>) -> (Vec<String>, Option<String>) {
        let page: Value = serde_json::from_str(&catalogue.page(cursor).unwrap()).unwrap();
        let names = page["tools"].as_array().unwrap().iter();
        let names = names.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect();
        (names, page["nextCursor"].as_str().map(str::to_owned))
    }

    fn of(text: &str) -> Catalogue {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn good_pages_hold_every_tool_once() {
        for (pages, count) in [("good", 3), ("emptyLast", 4)] {
            let catalogue =
                of(&format!(r#"{{"real": false, "filler": 101, "page": 50, "pages": "{pages}"}}"#));
            let (mut all, mut cursor, mut read) = (Vec::new(), None, 0);
            loop {
                let (names, next) = page(&catalogue, cursor.as_deref());
                all.extend(names);
                read += 1;
                cursor = next;
                if cursor.is_none() {
                    break;
                }
            }
            let expected: Vec<_> = (0..101).map(|number| format!("filler-{number}")).collect();
            assert_eq!((all, read), (expected, count), "{pages}");
        }
    }

    #[test]
    fn bad_pages_never_end() {
        let repeat = of(r#"{"real": false, "filler": 101, "page": 50, "pages": "repeat"}"#);
        let (_, cursor) = page(&repeat, None);
        let second = page(&repeat, cursor.as_deref());
        assert_eq!((second.0[0].as_str(), &second.1), ("filler-50", &cursor));
        assert_eq!(page(&repeat, second.1.as_deref()), second);
        let endless = of(r#"{"page": 2, "pages": "endless"}"#);
        assert_eq!(page(&endless, Some("from-1000000")).1.as_deref(), Some("from-1000002"));
        assert!(endless.page(Some("nonsense")).is_err());
    }

    #[test]
    fn tools_come_and_go() {
        let catalogue = of(r#"{"add": [{"name": "new"}], "remove": ["echo", "filler-0"], "filler": 2}"#);
        let (names, _) = page(&catalogue, None);
        let has = |name: &str| names.iter().any(|listed| listed == name);
        assert_eq!(
            ["new", "echo", "filler-0", "filler-1", "count"].map(has),
            [true, false, false, true, true]
        );
        let listed = Listed::default();
        listed.set(catalogue);
        assert_eq!(
            ["new", "echo", "filler-0", "filler-1", "no"].map(|name| listed.knows(name)),
            [true, false, false, true, false]
        );
    }
}
