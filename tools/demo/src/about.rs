//! The origin of a report: program, command and date.

use std::time::{SystemTime, UNIX_EPOCH};

/// The origin of a report.
#[derive(Clone, Debug)]
pub struct About {
    /// The program with its version and commit.
    pub program: String,
    /// The command that made the report.
    pub command: String,
    /// When.
    pub time: SystemTime,
}

impl About {
    /// The date and time in UTC, such as `2026-01-31 23:59 UTC`.
    pub(crate) fn date(&self) -> String {
        let seconds = self.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (year, month, day) = civil(seconds / 86_400);
        format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3600 % 24, seconds / 60 % 60)
    }
}

/// Year, month and day of a number of days since 1970-01-01, by `civil_from_days` of Howard Hinnant,
/// [chrono-Compatible Low-Level Date Algorithms](https://howardhinnant.github.io/date_algorithms.html).
fn civil(days: u64) -> (u64, u64, u64) {
    // Years begin in March, so that the leap day is the last of a year. An era has 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + 400 * era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn date_is_that_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_208_000, "2024-02-29 12:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(About { program: String::new(), command: String::new(), time }.date(), expected);
        }
    }
}
