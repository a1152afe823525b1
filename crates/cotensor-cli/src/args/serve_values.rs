//! Values of the arguments of `serve`: addresses and log levels.

use cotensor::core::{Error, Result};
use cotensor_daemon::http::default_port;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tracing_subscriber::filter::{LevelFilter, Targets};

/// Checks the argument `--listen`.
pub(crate) fn listen_argument(text: &str) -> std::result::Result<String, String> {
    address(text).map(|_| text.to_owned()).map_err(|error| error.message().to_owned())
}

/// Checks the argument `--log`.
pub(crate) fn log_argument(text: &str) -> std::result::Result<String, String> {
    filter(text).map(|_| text.to_owned()).map_err(|error| error.message().to_owned())
}

/// Parses a log level, or a list of levels and `target=level` pairs.
pub(crate) fn filter(text: &str) -> Result<Targets> {
    let levels = [
        ("off", LevelFilter::OFF),
        ("error", LevelFilter::ERROR),
        ("warn", LevelFilter::WARN),
        ("info", LevelFilter::INFO),
        ("debug", LevelFilter::DEBUG),
        ("trace", LevelFilter::TRACE),
    ];
    let level = |name: &str| {
        let known = levels.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, level)| *level);
        known.ok_or_else(|| {
            let known = levels.map(|(known, _)| known).join(", ");
            let message = format!(
                "{name:?} is not a log level; levels are {known}, or a list such as warn,cotensor_daemon=debug,cotensor_supervisor=debug"
            );
            Error::invalid(message).in_field("--log")
        })
    };
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty() || text.trim().is_empty()) {
        targets = match part.split_once('=') {
            Some((target, name)) => targets.with_target(target.trim(), level(name.trim())?),
            None => targets.with_default(level(part)?),
        };
    }
    Ok(targets)
}

/// Parses `ADDRESS:PORT`, `ADDRESS`, `PORT` or an empty text. Defaults are loopback and the port of this rank.
pub(crate) fn address(text: &str) -> Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let host: IpAddr = match text {
        "" => Ipv4Addr::LOCALHOST.into(),
        text => text.parse().map_err(|_| {
            Error::invalid(format!("{text:?} is not an address such as 127.0.0.1:2537")).in_field("--listen")
        })?,
    };
    Ok((host, default_port()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_filters_are_parsed_and_wrong_ones_refused() {
        for good in [
            "warn",
            "OFF",
            "warn,cotensor_daemon=debug,cotensor_supervisor=debug",
            " cotensor_daemon = trace , info ",
            "info,",
        ] {
            filter(good).unwrap();
        }
        let part = filter("cotensor_daemon=debug").unwrap();
        assert_eq!(part.default_level(), Some(LevelFilter::INFO), "other targets keep the default level");
        assert!(part.would_enable("cotensor_daemon::http", &tracing::Level::DEBUG));
        for wrong in ["nonsense", "loud", "", "info,cotensor_daemon", "cotensor_daemon=loud", "=", "5"] {
            let error = filter(wrong).unwrap_err();
            assert_eq!(error.field(), Some("--log"), "{wrong}");
            assert!(error.message().contains("off, error, warn, info, debug, trace"), "{error}");
        }
    }

    #[test]
    fn addresses_have_defaults() {
        assert_eq!(address("0.0.0.0:80").unwrap().to_string(), "0.0.0.0:80");
        assert_eq!(address("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert_eq!(address("8080").unwrap().to_string(), "127.0.0.1:8080");
        assert!(address("::1").unwrap().is_ipv6() && address("").unwrap().ip().is_loopback());
        for wrong in ["localhost", "1.2.3", "70000", "1.2.3.4:", ":80"] {
            assert_eq!(address(wrong).unwrap_err().field(), Some("--listen"), "{wrong}");
        }
    }
}
