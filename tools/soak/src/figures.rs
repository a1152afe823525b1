//! Prints the figures of all runs as a table.

use crate::{bert, chaos, cycles, metadata};
use cotensor_core::Result;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Duration of each of the two chaos runs.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Number of tensors to put, get and release.
    #[arg(long, default_value_t = 1_000_000)]
    cycles: usize,
    /// Folder of the seeded model, which is generated if missing.
    #[arg(long, env = "COTENSOR_CACHE")]
    cache: Option<PathBuf>,
}

/// A row of the table: figure, measured value, limit.
struct Row(String, String, &'static str);

/// Performs all runs and prints the table. Returns whether nothing leaked, grew or was wrong.
///
/// # Errors
/// Errors that prevent a run.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut rows = Vec::new();
    let bert = bert::run(&bert::Options { processes: 4, cache: options.cache.clone() })?;
    let what = "four processes running BERT-base, memory over one's".to_owned();
    rows.push(Row(what, format!("{:.3}", bert.ratio), "1.15"));
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let both = format!("{} against {}", mib(bert.shared_bytes()), mib(bert.copies_bytes));
    rows.push(Row("... all four, relative to four with separate copies".to_owned(), both, "-"));
    let mut right = true;
    for daemon_kills in [0, 10] {
        let killed = if daemon_kills == 0 { "" } else { ", daemon killed 10 times" };
        let seconds = options.seconds;
        let chaos = chaos::Options {
            clients: 64,
            leases: 10_000,
            seconds,
            client_kills: 300,
            daemon_kills,
            supervisor_kills: 0,
            descriptors: None,
            seed: 1,
        };
        let outcome = chaos::run(&chaos)?;
        right &= outcome.is_right();
        let left = format!("{} leases, {} bytes", outcome.leaked_leases, outcome.leaked_bytes);
        rows.push(Row(format!("64 clients killed at random{killed}: left after a second"), left, "0"));
        rows.push(Row("... until nothing was left".to_owned(), format!("{:.0} ms", outcome.zero_ms), "1000 ms"));
        rows.push(Row("... wrong checksums and other errors".to_owned(), outcome.wrong_count().to_string(), "0"));
        if let Some(recovery) = outcome.recovery() {
            let times = format!("{:.0} / {:.0} / {:.0} ms", recovery.median_ms, recovery.p99_ms, recovery.max_ms);
            rows.push(Row("... clients continue, median / 99 % / slowest".to_owned(), times, "1000 ms"));
        }
    }
    let cycles = cycles::Options { cycles: options.cycles, ..cycles::Options::default() };
    let outcome = cycles::run(&cycles)?;
    right &= outcome.is_right();
    let server = &outcome.growth.server;
    let grown =
        format!("{} KiB, {} descriptors, {} mappings", server.private_bytes >> 10, server.descriptors, server.mappings);
    rows.push(Row(format!("{} cycles of put, get, release: the daemon grew by", options.cycles), grown, "0"));
    let outcome = metadata::run(&metadata::Options::default())?;
    right &= outcome.is_right();
    let (leased, kept) = (outcome.leased, outcome.kept);
    let bytes = format!("{} + {} leased, {} + {} kept", leased.server, leased.supervisor, kept.server, kept.supervisor);
    rows.push(Row("bytes of metadata per tensor, server + supervisor, 200,000 tensors".to_owned(), bytes, "1024"));
    rows.push(Row("takeover of 200,000 tensors".to_owned(), format!("{:.0} ms", outcome.takeover_ms()), "1000 ms"));
    println!("| figure | measured | limit |\n|---|---|---|");
    for Row(what, measured, most) in rows {
        println!("| {what} | {measured} | {most} |");
    }
    Ok(right)
}
