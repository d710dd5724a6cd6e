//! A list in one line, for people.

/// Most things that are named.
const NAMED: usize = 8;

/// The first few of `names`, and how many more there are.
pub fn name_some(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMED) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..NAMED + 3).map(|index| format!("n{index}")).collect();
        assert_eq!(name_some(&names[..2]), "n0, n1");
        assert_eq!(name_some(&names[..NAMED]), "n0, n1, n2, n3, n4, n5, n6, n7");
        assert_eq!(name_some(&names), "n0, n1, n2, n3, n4, n5, n6, n7 and 3 more");
    }
}
