//! The HTTP port by which a program names a daemon.

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
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    port(variable("RANK").as_deref(), variable("GPUS_PER_NODE").as_deref())
}

fn port(rank: Option<&str>, gpus_per_node: Option<&str>) -> Result<Option<u16>> {
    let number = |name: &str, value: Option<&str>| -> Result<Option<u16>> {
        let wrong = |value: &str| Error::invalid(format!("{value:?} is not a port offset")).in_field(name);
        value.map(|value| value.trim().parse().map_err(|_| wrong(value))).transpose()
    };
    let rank = number("RANK", rank)?;
    match number("GPUS_PER_NODE", gpus_per_node)? {
        Some(0) => Err(Error::invalid("a machine has at least one device").in_field("GPUS_PER_NODE")),
        Some(_) => Ok(rank.map(|_| PORT)),
        None => {
            let beyond = |rank| Error::invalid(format!("{PORT} plus {rank} is not a port")).in_field("RANK");
            rank.map(|rank| PORT.checked_add(rank).ok_or_else(|| beyond(rank))).transpose()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_port_unless_one_daemon_serves_all_devices() {
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
