//! Starting a daemon when none answers.

mod program;
mod starting;

pub use program::DaemonProgram;
pub use starting::log_path;

/// The variable that forbids it: `0`, `false`, `no` or `off`.
pub const AUTOSTART: &str = "COTENSOR_AUTOSTART";

/// Whether [`AUTOSTART`] allows to start a daemon.
pub fn autostart_allowed() -> bool {
    let value = std::env::var(AUTOSTART).unwrap_or_default().to_ascii_lowercase();
    !matches!(value.trim(), "0" | "false" | "no" | "off")
}
