use crate::args::EnvArgs;
use crate::environment::{VARIABLES, markdown};
use crate::output::{print, print_json};
use crate::table::{Table, plain};
use cotensor::core::Result;
use serde::Serialize;

#[derive(Serialize)]
struct Listing {
    variables: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    argument: &'static str,
    default: &'static str,
    meaning: &'static str,
    /// The value, with invalid UTF-8 replaced.
    value: Option<String>,
}

pub(crate) fn env(args: &EnvArgs) -> Result<()> {
    if args.markdown {
        return print(&markdown());
    }
    let value = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let entry = |variable: &crate::environment::Variable| Entry {
        name: variable.name,
        argument: variable.argument,
        default: variable.default,
        meaning: variable.meaning,
        value: value(variable.name),
    };
    let listing = Listing { variables: VARIABLES.iter().map(entry).collect() };
    if args.json {
        return print_json(&listing);
    }
    let mut table = Table::new(&[], &["variable", "argument", "set to"]);
    for entry in &listing.variables {
        let value = entry.value.as_ref().map_or_else(|| format!("(not set: {})", entry.default), |value| plain(value));
        table.row([entry.name.to_owned(), entry.argument.to_owned(), value]);
    }
    print(&table.text())
}
