//! `models families`.

use crate::output::{print, print_json};
use cotensor::core::Result;
use cotensor::model::family::families as known;
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct Listing {
    families: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    family: &'static str,
    kinds: Vec<&'static str>,
    stages: Vec<&'static str>,
}

pub(super) fn families(json: bool) -> Result<()> {
    let families = known()
        .iter()
        .map(|family| Entry {
            family: &family.name,
            kinds: family.kinds.iter().map(|kind| kind.name()).collect(),
            stages: family.stages.iter().map(|stage| stage.role.as_str()).collect(),
        })
        .collect();
    let listing = Listing { families };
    if json {
        return print_json(&listing);
    }
    let mut text = format!("{:10} {:38} stages\n", "family", "kinds");
    for entry in &listing.families {
        let stages = if entry.stages.is_empty() {
            "planned: known, cannot be run yet".to_owned()
        } else {
            entry.stages.join(", ")
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:10} {:38} {stages}", entry.family, entry.kinds.join(", "));
    }
    print(&text)
}
