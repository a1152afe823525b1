//! The HTTP port by which a program names a daemon.

use crate::rank::Rank;
use cotensor_core::{Error, Result};

/// The port of rank 0.
pub const PORT: u16 = 2537;

/// The port of this process's daemon: 2537 plus `RANK`, one daemon for each rank. If `GPUS_PER_NODE` is set, one daemon
/// serves all ranks of the machine on port 2537.
///
/// # Errors
/// `Invalid` naming the variable.
pub fn default_port() -> Result<u16> {
    Ok(port_of_rank()?.unwrap_or(PORT))
}

/// The port that `RANK` names; None without that variable.
///
/// # Errors
/// As [`default_port`].
pub fn port_of_rank() -> Result<Option<u16>> {
    port(Rank::of_this_process()?)
}

fn port(Rank { rank, gpus_per_node }: Rank) -> Result<Option<u16>> {
    if gpus_per_node.is_some() {
        return Ok(rank.map(|_| PORT));
    }
    let beyond = |rank| Error::invalid(format!("{PORT} plus {rank} is not a port")).in_field("RANK");
    rank.map(|rank| PORT.checked_add(rank).ok_or_else(|| beyond(rank))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_port_unless_one_daemon_serves_all_devices() {
        let port = |rank, gpus_per_node| Rank::parse(rank, gpus_per_node).and_then(port);
        assert_eq!(port(None, None).unwrap(), None);
        assert_eq!(port(None, Some("4")).unwrap(), None);
        assert_eq!(port(Some("0"), None).unwrap(), Some(2537));
        assert_eq!(port(Some("3"), None).unwrap(), Some(2540));
        assert_eq!(port(Some("3"), Some("4")).unwrap(), Some(2537));
        for (rank, gpus, field) in [
            (Some("-1"), None, "RANK"),
            (Some("x"), None, "RANK"),
            (Some("65000"), None, "RANK"),
            (Some("1"), Some("0"), "GPUS_PER_NODE"),
            (None, Some("many"), "GPUS_PER_NODE"),
        ] {
            assert_eq!(port(rank, gpus).unwrap_err().field(), Some(field));
        }
    }
}
