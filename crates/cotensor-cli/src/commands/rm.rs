//! `rm`: removes tensors by name or pattern.

use super::connection::connect;
use super::tensors::not_found;
use crate::args::RmArgs;
use crate::launch::Program;
use crate::output::{count, print, print_json};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::store::TensorStore;
use cotensor_client::ClientStore;
use cotensor_client::protocol::{List, ListHolders, ListOrder, ListParams, NameParams};
use serde::Serialize;

/// The most tensors that a pattern is compared with.
const LIST_MAX: usize = 10_000;

#[derive(Serialize)]
struct Removed<'a> {
    removed: Vec<String>,
    /// Names without a tensor.
    missing: Vec<&'a str>,
}

pub(crate) fn rm(args: &RmArgs, program: &Program) -> Result<()> {
    let store = connect(&args.client, program, "cotensor rm")?;
    let mut outcome = Removed { removed: Vec::new(), missing: Vec::new() };
    let every = ["*".to_owned()];
    let given = if args.all { &every } else { args.names.as_slice() };
    for name in given {
        let matching = if is_pattern(name) && store.request::<ListHolders>(&NameParams { name: name.clone() }).is_err()
        {
            matching(&store, name)?
        } else {
            vec![name.clone()]
        };
        if matching.is_empty() && !args.all {
            outcome.missing.push(name);
        }
        for found in matching {
            match store.remove(&found) {
                Ok(()) => outcome.removed.push(found),
                // Continues, so that the other names are removed. Another process may have removed one of a pattern.
                Err(error) if error.kind() == ErrorKind::NotFound && found != *name => {}
                Err(error) if error.kind() == ErrorKind::NotFound => outcome.missing.push(name),
                Err(error) => return Err(error),
            }
        }
    }
    if args.client.json {
        print_json(&outcome)?;
    } else if args.all || !outcome.removed.is_empty() && args.names.iter().any(|name| is_pattern(name)) {
        print(&format!("removed {}\n", count(outcome.removed.len(), "tensor")))?;
    }
    not_found(&outcome.missing)
}

/// Whether a name may be a pattern. A tensor of this very name has precedence.
fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// The names that a pattern matches, in as many requests as needed.
fn matching(store: &ClientStore, pattern: &str) -> Result<Vec<String>> {
    let prefix = pattern.split(['*', '?']).next().unwrap_or_default();
    let found =
        store.request::<List>(&ListParams { prefix: prefix.to_owned(), limit: LIST_MAX, order: ListOrder::Name })?;
    if found.left_off > 0 {
        let message =
            format!("{pattern:?}: more than {LIST_MAX} tensors start with {prefix:?}; use a longer beginning");
        return Err(Error::invalid(message).in_field("NAME"));
    }
    let mut names: Vec<String> = found.tensors.into_iter().map(|tensor| tensor.spec.name).collect();
    names.retain(|name| matches(pattern.as_bytes(), name.as_bytes()));
    names.dedup();
    Ok(names)
}

/// Whether a name matches a pattern, in which * stands for any bytes and ? for one.
fn matches(mut pattern: &[u8], mut name: &[u8]) -> bool {
    // What follows the last *, and the name from which it is searched.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern, name) {
            ([b'*', rest @ ..], _) => {
                retry = Some((rest, name));
                pattern = rest;
            }
            ([expected, rest @ ..], [found, later @ ..]) if *expected == b'?' || expected == found => {
                (pattern, name) = (rest, later);
            }
            ([], []) => return true,
            _ => match retry {
                Some((after, [_, later @ ..])) => {
                    retry = Some((after, later));
                    (pattern, name) = (after, later);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("bert/*", "bert/encoder.weight", true),
            ("bert/*", "roberta/x", false),
            ("*.weight", "a.weight", true),
            ("*.weight", "a.weight.old", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
            ("x?", "x1", true),
            ("x?", "x", false),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
