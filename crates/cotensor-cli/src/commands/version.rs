//! `version`: this program, its commit, the protocol and the engines.

use crate::args::VersionArgs;
use crate::output::{print, print_json};
use cotensor::core::Result;
use cotensor::model::engine;
use cotensor_client::protocol::PROTOCOL;
use serde::Serialize;
use std::fmt::Write;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit of the source, if it was built from a repository.
const COMMIT: Option<&str> = option_env!("COTENSOR_COMMIT");

#[derive(Serialize)]
struct Version {
    version: &'static str,
    commit: Option<&'static str>,
    /// The version of the daemon's protocol.
    protocol: u32,
    engines: Vec<EngineVersion>,
}

#[derive(Serialize)]
struct EngineVersion {
    name: &'static str,
    /// None if the engine's library cannot be used here.
    version: Option<String>,
    /// Why not, and the command that installs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The program with its version and commit.
pub(super) fn program() -> String {
    let commit = COMMIT.map_or_else(String::new, |commit| format!(" (commit {commit})"));
    format!("cotensor {VERSION}{commit}")
}

pub(crate) fn version(args: &VersionArgs) -> Result<()> {
    let engines = engine::names().map(|name| match engine::open(name, Some(1)) {
        Ok(engine) => EngineVersion { name, version: Some(engine.version().to_owned()), reason: None },
        Err(error) => EngineVersion { name, version: None, reason: Some(error.to_string()) },
    });
    let version = Version { version: VERSION, commit: COMMIT, protocol: PROTOCOL, engines: engines.collect() };
    if args.json {
        return print_json(&version);
    }
    let mut text = format!("{}\nprotocol {}\n", program(), version.protocol);
    for EngineVersion { name, version, reason } in &version.engines {
        // Writing to a string cannot fail.
        let _ = match version {
            Some(version) => writeln!(text, "engine {name} {version}"),
            None => writeln!(text, "engine {name}: {}", reason.as_deref().unwrap_or_default()),
        };
    }
    print(&text)
}
