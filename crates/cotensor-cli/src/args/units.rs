//! Parsers of arguments that are sizes, rates and times. `cotensor::core` has the units.

use cotensor::core::{Error, parse_rate, parse_size, parse_time};
use cotensor_daemon::share_of_memory;
use std::time::Duration;

/// The value's name of sizes in the help.
pub(super) const SIZE: &str = "SIZE";
/// The value's name of times in the help.
pub(super) const TIME: &str = "TIME";
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);
pub(super) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn reason(error: Error) -> String {
    error.message().to_owned()
}

/// A size with a unit, in bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(reason)
}

/// A memory budget in bytes: a size, a share of the memory that this machine or control group has, such as `50%`, or `none` for no
/// limit.
pub(super) fn budget(text: &str) -> Result<u64, String> {
    if text.trim().eq_ignore_ascii_case("none") {
        return Ok(u64::MAX);
    }
    let Some(percent) = text.trim().strip_suffix('%') else { return size(text) };
    let share = percent.trim().parse().ok().filter(|share| (1..=100).contains(share));
    let share: u64 = share.ok_or("expected a share from 1% to 100%, a size such as 4GiB, or none")?;
    share_of_memory(share).ok_or_else(|| "the memory of this machine is unknown: give a size, such as 4GiB".to_owned())
}

/// A rate with a unit, in bytes per second.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    parse_rate(text).map_err(reason)
}

/// A time above 0.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    within(Duration::from_nanos(1), Duration::MAX, "above 0, such as 500ms or 10s", text)
}

/// A parser of times from `least` to `most`. `words` describe these and give an example.
pub(super) fn time_from(
    least: Duration,
    most: Duration,
    words: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| within(least, most, words, text)
}

fn within(least: Duration, most: Duration, words: &str, text: &str) -> Result<Duration, String> {
    let time = parse_time(text).map_err(reason)?;
    let is_within = (least..=most).contains(&time);
    is_within.then_some(time).ok_or_else(|| {
        let bare = text.trim().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let bare = if bare { "; a number without a unit is in seconds" } else { "" };
        format!("expected a time {words}{bare}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::{Arg, Command, CommandFactory};

    /// Calls `check` with each argument, whose command is named.
    fn arguments(command: &Command, path: &str, check: &mut dyn FnMut(&str, &Arg)) {
        command.get_arguments().for_each(|arg| check(path, arg));
        for command in command.get_subcommands() {
            arguments(command, &format!("{path} {}", command.get_name()), check);
        }
    }

    fn accepts(arg: &Arg, value: &str) -> bool {
        let probe = Arg::new("probe").long("probe").value_parser(arg.get_value_parser().clone());
        Command::new("probe").no_binary_name(true).arg(probe).try_get_matches_from([format!("--probe={value}")]).is_ok()
    }

    #[test]
    fn every_size_rate_and_time_has_units() {
        let (mut sizes, mut rates, mut times) = (0, 0, 0);
        arguments(&Cli::command(), "cotensor", &mut |path, arg| {
            let (Some(long), Some(name)) = (arg.get_long(), arg.get_value_names().and_then(<[_]>::first)) else {
                return;
            };
            let accepted = |value: &str| accepts(arg, value);
            let place = format!("{path} --{long} {name}");
            match name.as_str() {
                "SIZE" => {
                    assert!(accepted("4GiB") && accepted("4 GB") && accepted("4G") && !accepted("4"), "{place}");
                    sizes += 1;
                }
                "DEVICE=SIZE" => assert!(accepted("cuda:0=4GiB") && !accepted("cuda:0=4"), "{place}"),
                "RATE" => {
                    assert!(accepted("12GB/s") && accepted("12G/s") && !accepted("12"), "{place}");
                    rates += 1;
                }
                "TIME" => {
                    assert!(["20us", "2s", "2000ms", "2d"].iter().any(|time| accepted(time)), "{place}");
                    times += 1;
                }
                // No name of a unit: the value has its unit.
                "SECONDS" | "MS" | "MICROSECONDS" | "DAYS" | "BYTES" | "BYTES/s" | "MIB" => panic!("{place}"),
                _ => {}
            }
        });
        assert!(sizes > 8 && rates > 0 && times > 10, "{sizes} {rates} {times}");
    }

    #[test]
    fn times_without_units_are_not_misread() {
        let days = time_from(Duration::from_secs(3600), YEAR, "from 1h on, such as 7d");
        assert_eq!(days("7d"), Ok(7 * DAY));
        let error = days("7").unwrap_err();
        assert!(error.contains("7d") && error.contains("seconds"), "{error}");
        assert!(!days("7min").unwrap_err().contains("without a unit"));
        assert_eq!((time("10"), time("0.5")), (Ok(Duration::from_secs(10)), Ok(Duration::from_millis(500))));
        assert!(time("0").is_err() && time("never").is_err());
    }

    #[test]
    fn budgets_are_sizes_shares_or_none() {
        assert_eq!((budget("4GiB"), budget("none"), budget(" None ")), (Ok(4 << 30), Ok(u64::MAX), Ok(u64::MAX)));
        let (half, all) = (budget("50%").unwrap(), budget("100 %").unwrap());
        assert!(half > 0 && half <= all && all / 2 - half <= 100, "{half} of {all}");
        for wrong in ["0%", "101%", "5.5%", "%", "4", "nothing", "-1%"] {
            assert!(budget(wrong).is_err(), "{wrong}");
        }
    }
}
