//! `channel`: lists channels, and reads their frames.

use super::connection::connect;
use super::files::{export, is_stream};
use crate::args::ChannelArgs;
use crate::launch::Program;
use crate::output::{json_line, print, print_json, write_if_open};
use crate::table::{Table, elements, plain};
use cotensor::core::{Error, Result, size};
use cotensor_client::protocol::ChannelInfo;
use cotensor_client::{ChannelPolicy, ClientStore, Frame};
use cotensor_formats::Format;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait without an option: for ever.
const NO_LIMIT: Duration = Duration::MAX;

#[derive(Serialize)]
struct Listing {
    channels: Vec<ChannelInfo>,
}

/// A frame in the output.
#[derive(Serialize)]
struct Shown<'a> {
    channel: &'a str,
    number: u64,
    /// Frames between this one and the one before.
    lost: u64,
    /// Microseconds from the publication until it was taken.
    age_us: f64,
}

pub(crate) fn channel(args: &ChannelArgs, program: &Program) -> Result<()> {
    if args.client.json && args.output.as_deref().is_some_and(is_stream) {
        let message = "cannot be combined with `-`: standard output contains the tensor";
        return Err(Error::invalid(message).in_field("--json"));
    }
    let store = connect(&args.client, program, "cotensor channel")?;
    match &args.name {
        None => list(&store, args.client.json),
        Some(name) => read(&store, name, args),
    }
}

fn list(store: &ClientStore, as_json: bool) -> Result<()> {
    let channels = store.channels()?;
    if as_json {
        return print_json(&Listing { channels });
    }
    let titles = ["channel", "dtype", "shape", "frames", "readers", "memory", "producer"];
    let mut table = Table::new(&[false, false, false, true, true, true], &titles);
    for channel in &channels {
        let [dtype, shape] = elements(&channel.opened.dtype, &channel.opened.shape, 0);
        table.row([
            plain(&channel.opened.name),
            dtype,
            shape,
            channel.frames.to_string(),
            format!("{} of {}", channel.open_readers, channel.opened.readers),
            size(channel.bytes),
            plain(&channel.client),
        ]);
    }
    print(&table.text())
}

fn read(store: &Arc<ClientStore>, name: &str, args: &ChannelArgs) -> Result<()> {
    let policy = if args.queue { ChannelPolicy::Queue } else { ChannelPolicy::Newest };
    let format = args.output.as_deref().map(|file| if is_stream(file) { Ok(Format::Npy) } else { Format::of(file) });
    let format = format.transpose().map_err(|error| error.in_field("--output"))?;
    let timeout = args.timeout.unwrap_or(NO_LIMIT);
    let reader = store.read_channel(name, policy, args.timeout.unwrap_or_default())?;
    let count = args.count.unwrap_or(if args.output.is_some() { 1 } else { u64::MAX });
    let to_stdout = args.output.as_deref().is_some_and(is_stream);
    let mut last: Option<Frame> = None;
    for _ in 0..count {
        // The one before is given back first: a reader holds a few frames.
        drop(last.take());
        let Some(frame) = reader.next(timeout)? else { break };
        let shown = Shown {
            channel: name,
            number: frame.number(),
            lost: frame.lost(),
            age_us: frame.age().as_secs_f64() * 1e6,
        };
        let line = if args.client.json {
            json_line(&shown)?
        } else {
            format!("{} frame {}: {} lost, {:.0} us old\n", plain(name), shown.number, shown.lost, shown.age_us)
        };
        last = Some(frame);
        if !to_stdout && !write_if_open(&line)? {
            break;
        }
    }
    match (&args.output, format, last) {
        (Some(file), Some(format), Some(frame)) => export(file, format, &[(name, frame.lease())]),
        (Some(_), ..) => Err(Error::not_found(format!("channel {name:?} ended without a frame")).in_field("--output")),
        (None, ..) => Ok(()),
    }
}
