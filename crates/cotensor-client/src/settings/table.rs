//! The table of all settings: arguments, variables and keys of the configuration file have their names from it. `cotensor env`,
//! `cotensor config` and docs/reference/configuration.md show it.

/// The variable that names the configuration file.
pub const CONFIG: &str = "COTENSOR_CONFIG";
/// The variable that names the folder of the default sockets.
pub const RUNTIME_DIR: &str = "COTENSOR_RUNTIME_DIR";
/// The beginning of the names of variables.
const PREFIX: &str = "COTENSOR_";

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The environment variable.
    pub variable: &'static str,
    /// The argument of commands. It takes precedence.
    pub argument: &'static str,
    /// The default in words.
    pub default: &'static str,
    /// The meaning, with units.
    pub meaning: &'static str,
}

impl Setting {
    /// The key in the configuration file: the variable's name without `COTENSOR_`, in lower case.
    pub fn key(&self) -> String {
        self.variable.trim_start_matches(PREFIX).to_ascii_lowercase()
    }

    /// The setting with a variable.
    pub fn of_variable(variable: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.variable == variable)
    }

    /// The setting with a key in the configuration file.
    pub(super) fn of_key(key: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.key() == key)
    }
}

macro_rules! settings {
    ($($ident:ident $variable:literal $argument:literal $default:literal $meaning:literal;)*) => {
        $(
            #[doc = $meaning]
            pub const $ident: Setting =
                Setting { variable: $variable, argument: $argument, default: $default, meaning: $meaning };
        )*

        /// All settings.
        pub const SETTINGS: &[Setting] = &[$($ident),*];
    };
}

settings! {
    CACHE "COTENSOR_CACHE" "--cache" "the user's cache folder" "Folder for weights and the demo's models.";
    THREADS "COTENSOR_THREADS" "--threads" "one per core" "Number of engine threads.";
    ENGINE "COTENSOR_ENGINE" "--engine" "auto" "Engine that runs graphs: auto, ort, ort-shared or rten.";
    MAX_MEMORY "COTENSOR_MAX_MEMORY" "--max-memory" "50% for the daemon" "Memory budget of the store, such as 4GiB, a share of the machine's memory, such as 75%, or none: the daemon's, where each tensor counts 1 KiB more than its size, or that of a local store.";
    MAX_DEVICE_MEMORY "COTENSOR_MAX_DEVICE_MEMORY" "--max-device-memory" "host memory only" "Devices whose memory clients of the daemon may share, each with its budget, separated by commas: cuda:0=40GiB. cuda=40GiB is for the device of RANK, or for each of GPUS_PER_NODE devices.";
    MAX_CLIENT_MEMORY "COTENSOR_MAX_CLIENT_MEMORY" "--max-client-memory" "no limit" "Memory that one client of the daemon may lease and reserve, such as 4GiB.";
    SPILL "COTENSOR_SPILL" "--spill" "unleased tensors are evicted" "Folder for tensors that the daemon spills when memory is needed.";
    MAX_SPILL "COTENSOR_MAX_SPILL" "--max-spill" "the free disk space" "Maximum size of the spilled files, such as 40GiB.";
    SOCKET "COTENSOR_SOCKET" "--socket" "cotensor.sock in /tmp/cotensor-UID" "Unix socket of the daemon.";
    LISTEN "COTENSOR_LISTEN" "--listen" "no HTTP" "Address of the daemon's HTTP server, such as 127.0.0.1:2537; empty for loopback and port 2537 + RANK.";
    TOKEN_FILE "COTENSOR_TOKEN_FILE" "--token-file" "generated in the user's state folder" "File with the token that HTTP clients of the daemon need.";
    ALLOW_HOST "COTENSOR_ALLOW_HOST" "--allow-host" "IP addresses and localhost" "Host names by which HTTP clients may address the daemon, separated by commas.";
    AUTOSTART "COTENSOR_AUTOSTART" "--autostart" "true" "Whether commands and clients start a daemon when none answers.";
    IDLE_EXIT "COTENSOR_IDLE_EXIT" "--idle-exit" "never; 10min for a daemon that a client started" "Time, such as 10min, without clients and tensors after which the daemon ends.";
    MODEL_TTL "COTENSOR_MODEL_TTL" "--model-ttl" "10min" "Time, such as 1h, without requests after which a model that the daemon serves below /v1 is unloaded; 0 for never.";
    LOG "COTENSOR_LOG" "--log" "info" "Log level of the daemon: off, error, warn, info, debug, trace, or a list such as `warn,cotensor_daemon=debug,cotensor_supervisor=debug`.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_and_variables_find_their_settings() {
        let keys: BTreeSet<String> = SETTINGS.iter().map(Setting::key).collect();
        assert_eq!(keys.len(), SETTINGS.len());
        for setting in SETTINGS {
            assert!(setting.variable.starts_with(PREFIX) && setting.argument.starts_with("--"), "{setting:?}");
            assert_eq!(Setting::of_key(&setting.key()), Some(setting));
            assert_eq!(Setting::of_variable(setting.variable), Some(setting));
        }
        assert_eq!(MAX_MEMORY.key(), "max_memory");
    }
}
