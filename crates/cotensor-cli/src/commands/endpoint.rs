//! Whether the address and the key of the daemon's HTTP server outlive the daemon.

use super::service::is_activated;
use crate::args::serve_values::address as parsed;
use cotensor::core::Result;
use cotensor_client::settings::{ConfigFile, LISTEN};
use cotensor_client::{default_port, port_owner, state_folder};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

/// What is known about an address and its key.
#[derive(Serialize, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// Whether each later daemon of this user has the same address and key.
    permanent: bool,
    /// Whether a request starts the daemon.
    starts_daemon: bool,
    /// The same in words, with the commands that make it permanent.
    pub(super) note: String,
}

/// The facts that decide it.
struct Facts {
    address: SocketAddr,
    /// The address in the configuration file, which every daemon reads.
    configured: Option<SocketAddr>,
    /// Whether the key is in the state folder.
    key_is_kept: bool,
    /// Whether systemd listens at the address.
    activated: bool,
    /// The default address.
    default: SocketAddr,
    /// The program that has the default port.
    owner: Option<String>,
}

impl Endpoint {
    /// The endpoint at `address` whose key is in `key_file`.
    ///
    /// # Errors
    /// Those of the configuration file and of `RANK`.
    pub(super) fn of(address: SocketAddr, key_file: &Path) -> Result<Self> {
        let configured = ConfigFile::load()?.value(&LISTEN).map(parsed).transpose()?;
        let default = SocketAddr::from((Ipv4Addr::LOCALHOST, default_port()?));
        Ok(Self::from(Facts {
            address,
            configured,
            key_is_kept: state_folder().is_some_and(|folder| key_file.starts_with(folder)),
            activated: is_activated(address),
            default,
            owner: if address.port() == default.port() { None } else { port_owner(default) },
        }))
    }

    fn from(facts: Facts) -> Self {
        let Facts { address, configured, key_is_kept, activated, default, owner } = facts;
        let has_port = activated || configured == Some(address);
        let permanent = has_port && key_is_kept;
        let note = if permanent && activated {
            format!("{address} and the key are permanent, and a request starts the daemon")
        } else if permanent {
            format!(
                "{address} and the key are permanent; `cotensor service install` makes systemd start the daemon at a request"
            )
        } else if has_port {
            format!(
                "{address} is permanent, the key is not: the daemon's socket is not in the default folder, so the key is beside it"
            )
        } else {
            let taken = owner.map(|owner| format!("{owner} has {default}; ")).unwrap_or_default();
            format!(
                "{taken}{address} is good until the daemon ends; `cotensor config set listen {default}`, `cotensor stop` and \
                 `cotensor service install` make an address permanent"
            )
        };
        Self { permanent, starts_daemon: activated, note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_permanent_with_a_fixed_port_and_a_kept_key() {
        let default: SocketAddr = "127.0.0.1:2537".parse().unwrap();
        let other: SocketAddr = "127.0.0.1:40000".parse().unwrap();
        let endpoint = |address, configured, key_is_kept, activated, owner: Option<&str>| {
            let owner = owner.map(str::to_owned);
            Endpoint::from(Facts { address, configured, key_is_kept, activated, default, owner })
        };
        for (found, permanent, starts_daemon, words) in [
            (endpoint(default, Some(default), true, true, None), true, true, &["a request starts the daemon"][..]),
            (endpoint(default, Some(default), true, false, None), true, false, &["service install"]),
            (endpoint(default, Some(default), false, true, None), false, true, &["the key is not"]),
            (
                endpoint(default, None, true, false, None),
                false,
                false,
                &["until the daemon ends", "config set listen 127.0.0.1:2537"],
            ),
            (
                endpoint(other, None, true, false, Some("process 5 (x)")),
                false,
                false,
                &["process 5 (x) has 127.0.0.1:2537", "40000"],
            ),
            (endpoint(other, Some(default), true, false, None), false, false, &["until the daemon ends"]),
        ] {
            assert_eq!((found.permanent, found.starts_daemon), (permanent, starts_daemon), "{found:?}");
            assert!(words.iter().all(|word| found.note.contains(word)), "{words:?}: {found:?}");
        }
    }
}
