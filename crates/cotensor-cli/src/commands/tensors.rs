//! `ls`, `stat` and `who`: tensors of the daemon, their versions and holders.

use super::connection::connect;
use super::gpu_memory;
use crate::args::{LsArgs, StatArgs, TensorOrder, WhoArgs};
use crate::launch::Program;
use crate::output::{count, print, print_json, report_exactly, warning_line};
use crate::table::{Table, duration, elements, plain, shape};
use cotensor::core::{Device, Error, ErrorKind, Result, size};
use cotensor::memory::DEVICES_VARIABLE;
use cotensor::store::{DeviceStats, KeptTensors, Stats, StoreReports};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{
    DeviceShares, Empty, GroupMember, Hello, HelloParams, HelloResult, Keep, List, ListDevices, ListHolders, ListOrder,
    ListParams, NameParams, PROTOCOL, Spec, TensorInfo, TensorState,
};
use cotensor_inspect::scan::{GpuScan, gpus};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// One version of a tensor in the JSON output.
#[derive(Serialize)]
struct Tensor {
    name: String,
    version: u64,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
    kind: String,
    producer: String,
    device: String,
    /// Whether the tensor stays when its last lease ends.
    cached: bool,
    /// The longest time that it stays then, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_s: Option<f64>,
    /// The time after which it is freed, in seconds; none while it has holders.
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_in_s: Option<f64>,
    age_s: f64,
    hits: u64,
    /// Leases by holder.
    holders: BTreeMap<String, u32>,
    /// State of this version.
    state: TensorState,
    /// Why a spilled tensor cannot be read: its file is missing or damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<String>,
    /// The control group whose memory limit counts the bytes. `ls` leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    charged_to: Option<String>,
    /// Number of members of a group.
    #[serde(skip_serializing_if = "is_zero")]
    member_count: usize,
    /// The publisher's metadata. `ls` leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<serde_json::Value>,
    /// The members of a group. `ls` leaves them out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<GroupMember>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Tensor {
    fn elements(&self) -> [String; 2] {
        elements(&self.dtype, &self.shape, self.member_count)
    }

    fn state_name(&self) -> &'static str {
        if self.lost.is_some() { "lost" } else { self.state.name() }
    }
}

impl From<TensorInfo> for Tensor {
    fn from(info: TensorInfo) -> Self {
        let TensorInfo {
            id,
            spec,
            bytes,
            device,
            age_s,
            hits,
            holders,
            state,
            lost,
            member_count,
            charged_to,
            freed_in_s,
        } = info;
        let Spec { name, dtype, shape, kind, producer, keep, keep_ms, members, metadata, .. } = spec;
        let keep_s = keep_ms.map(|milliseconds| milliseconds as f64 / 1000.0);
        let cached = keep != Keep::WhileLeased;
        let version = id.version;
        Self {
            name,
            version,
            dtype,
            shape,
            bytes,
            kind,
            producer,
            device,
            cached,
            keep_s,
            freed_in_s,
            age_s,
            hits,
            holders,
            state,
            lost,
            charged_to,
            member_count,
            metadata: metadata.and_then(|text| serde_json::from_str(&text).ok()),
            members,
        }
    }
}

#[derive(Serialize)]
struct Listing {
    tensors: Vec<Tensor>,
    left_off: usize,
}

pub(crate) fn ls(args: &LsArgs, program: &Program) -> Result<()> {
    let store = connect(&args.client, program, "cotensor ls")?;
    let order = if args.sort == TensorOrder::Size { ListOrder::Size } else { ListOrder::Name };
    let params = ListParams { prefix: args.prefix.clone(), limit: args.limit as usize, order };
    let found = store.request::<List>(&params)?;
    let mut listing =
        Listing { tensors: found.tensors.into_iter().map(Tensor::from).collect(), left_off: found.left_off };
    listing.sort(args.sort);
    if args.client.json {
        return print_json(&listing);
    }
    let mut text = if args.quiet { listing.names() } else { listing.table(args.long) };
    if listing.left_off > 0 && !args.quiet {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "and {} more; use a prefix or a higher --limit", listing.left_off);
    }
    print(&text)
}

impl Listing {
    /// Sorts by name, or by a number, the largest first.
    fn sort(&mut self, order: TensorOrder) {
        let number = |tensor: &Tensor| match order {
            TensorOrder::Name => 0.0,
            TensorOrder::Size => tensor.bytes as f64,
            TensorOrder::Age => tensor.age_s,
            TensorOrder::Hits => tensor.hits as f64,
            TensorOrder::Leases => f64::from(tensor.holders.values().sum::<u32>()),
        };
        // The list is sorted by name, or by size and name, already.
        self.tensors.sort_by(|a, b| number(b).total_cmp(&number(a)));
    }

    fn names(&self) -> String {
        let mut names: Vec<String> = self.tensors.iter().map(|tensor| plain(&tensor.name) + "\n").collect();
        names.dedup();
        names.concat()
    }

    fn table(&self, long: bool) -> String {
        let right = &[false, true, false, false, false, true, true, true, true];
        let mut titles = vec!["name", "version", "state", "dtype", "shape", "size", "age", "hits", "leases"];
        if long {
            titles.extend(["kind", "producer", "device", "holders"]);
        }
        let mut table = Table::new(right, &titles);
        for tensor in &self.tensors {
            let [dtype, dims] = tensor.elements();
            let mut row = vec![
                plain(&tensor.name),
                tensor.version.to_string(),
                tensor.state_name().to_owned(),
                dtype,
                dims,
                size(tensor.bytes),
                duration(tensor.age_s),
                tensor.hits.to_string(),
                tensor.holders.values().sum::<u32>().to_string(),
            ];
            if long {
                let holders: Vec<String> = tensor.holders.keys().map(|holder| plain(holder)).collect();
                row.extend([plain(&tensor.kind), plain(&tensor.producer), plain(&tensor.device), holders.join(", ")]);
            }
            table.row(row);
        }
        table.text()
    }
}

#[derive(Serialize)]
struct Versions {
    name: String,
    /// Existing versions, newest first.
    versions: Vec<Tensor>,
}

#[derive(Serialize)]
struct Named {
    tensors: Vec<Versions>,
    /// For `who`: the devices that have these tensors, as the daemon counts them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<DeviceStats>,
    /// For `who`: the same devices, as the driver of GPUs has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpus: Vec<GpuScan>,
}

impl Named {
    /// Adds the devices that have the tensors. Without the driver's library, only the daemon's figures are known. What could not be read is a
    /// warning.
    fn add_devices(&mut self, store: &ClientStore) {
        let host = Device::default().to_string();
        let on = |device: &str| {
            device != host
                && self.tensors.iter().flat_map(|found| &found.versions).any(|tensor| tensor.device == device)
        };
        let devices: Vec<_> = store.stats().devices.into_iter().filter(|stats| on(&stats.device)).collect();
        if devices.iter().any(|stats| stats.device.starts_with("cuda:")) {
            let (gpus, unread) = gpus();
            let unnamed = gpus.iter().filter(|gpu| gpu.device.is_none());
            let unnamed =
                unnamed.map(|gpu| format!("the number of {} is not known: {DEVICES_VARIABLE} lists UUIDs", gpu.uuid));
            unread.into_iter().chain(unnamed).for_each(|text| report_exactly(&warning_line(&text)));
            self.gpus = gpus.into_iter().filter(|gpu| gpu.device.as_deref().is_some_and(on)).collect();
        }
        self.devices = devices;
    }
}

/// The versions of each name, and the names without a tensor.
fn versions<'a>(store: &ClientStore, names: &'a [String]) -> Result<(Named, Vec<&'a str>)> {
    let (mut tensors, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        match store.request::<ListHolders>(&NameParams { name: name.clone() }) {
            Ok(found) => {
                let versions = found.versions.into_iter().map(Tensor::from).collect();
                tensors.push(Versions { name: name.clone(), versions });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => missing.push(name.as_str()),
            Err(error) => return Err(error),
        }
    }
    Ok((Named { tensors, devices: Vec::new(), gpus: Vec::new() }, missing))
}

/// The error for missing names, reported after the existing ones are processed.
pub(super) fn not_found(missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<String> = missing.iter().map(|name| format!("{name:?}")).collect();
    Err(Error::not_found(format!("no tensor is named {}; `cotensor ls` lists names", missing.join(", "))))
}

/// Prints the existing versions of `names`, as JSON or by `text`, after `add` has completed them.
fn show(
    store: &ClientStore,
    json: bool,
    names: &[String],
    add: impl FnOnce(&mut Named, &ClientStore),
    text: impl FnOnce(&Named) -> String,
) -> Result<()> {
    let (mut found, missing) = versions(store, names)?;
    add(&mut found, store);
    match (found.tensors.is_empty(), json) {
        (true, _) => {}
        (false, true) => print_json(&found)?,
        (false, false) => print(&text(&found))?,
    }
    not_found(&missing)
}

pub(crate) fn who(args: &WhoArgs, program: &Program) -> Result<()> {
    let store = connect(&args.client, program, "cotensor who")?;
    show(&store, args.client.json, &args.names, Named::add_devices, holders)
}

fn holders(found: &Named) -> String {
    let right = &[false, true, false, false, true, false];
    let mut table = Table::new(right, &["name", "version", "state", "holder", "leases", "charged to"]);
    for (name, tensor) in
        found.tensors.iter().flat_map(|found| found.versions.iter().map(|tensor| (&found.name, tensor)))
    {
        let mut row = |holder: String, leases: u32| {
            let (version, state) = (tensor.version.to_string(), tensor.state_name().to_owned());
            let charged_to = plain(tensor.charged_to.as_deref().unwrap_or("-"));
            table.row([plain(name), version, state, holder, leases.to_string(), charged_to]);
        };
        tensor.holders.iter().for_each(|(holder, leases)| row(plain(holder), *leases));
        if tensor.holders.is_empty() {
            let kept = match (&tensor.lost, tensor.state) {
                (Some(why), _) => format!("no lease; lost: {}", plain(why)),
                (None, TensorState::Published) => format!("no lease; {}", kept_until(tensor)),
                (None, TensorState::Spilled) => format!("no lease; spilled to disk{}", freed(tensor)),
                (None, TensorState::Superseded | TensorState::Removed) => "no lease; about to be freed".to_owned(),
            };
            row(kept, 0);
        }
    }
    let mut text = table.text();
    for (device, used) in of_devices(&found.devices) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\ntensors of this daemon on {device}: {used}");
    }
    text.push_str(&gpu_memory::lines(&found.gpus));
    text
}

/// The daemon's counters.
#[derive(Serialize)]
struct Daemon {
    version: String,
    protocol: u32,
    epoch: u64,
    stats: Stats,
    /// Devices whose memory programs divide.
    devices: Vec<DeviceShares>,
}

pub(crate) fn stat(args: &StatArgs, program: &Program) -> Result<()> {
    let store = connect(&args.client, program, "cotensor stat")?;
    match args.names.as_slice() {
        [] => stat_daemon(&store, args),
        names => show(&store, args.client.json, names, |_, _| {}, described),
    }
}

fn described(found: &Named) -> String {
    let mut text = String::new();
    for Versions { name, versions } in &found.tensors {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", plain(name));
        versions.iter().for_each(|tensor| describe(tensor, &mut text));
    }
    text
}

/// Until when a tensor stays without a lease.
fn kept_until(tensor: &Tensor) -> String {
    match (tensor.freed_in_s, tensor.keep_s) {
        (Some(left), _) => format!("freed in {}", duration(left)),
        (None, Some(time)) => format!("freed {} after its last lease", duration(time)),
        (None, None) => "kept until it is evicted".to_owned(),
    }
}

/// When a spilled tensor is freed.
fn freed(tensor: &Tensor) -> String {
    tensor.freed_in_s.map_or_else(String::new, |left| format!("; freed in {}", duration(left)))
}

fn describe(tensor: &Tensor, text: &mut String) {
    let [dtype, dims] = tensor.elements();
    let _ = writeln!(
        text,
        "version {}, {}: {} {}, {} ({} bytes) on {}\n  kind {}, produced by {}, {} ago\n  {} hits, {} leases, {}",
        tensor.version,
        tensor.state_name(),
        dtype,
        dims,
        size(tensor.bytes),
        tensor.bytes,
        tensor.device,
        tensor.kind,
        plain(&tensor.producer),
        duration(tensor.age_s),
        tensor.hits,
        tensor.holders.values().sum::<u32>(),
        match (&tensor.lost, tensor.state, tensor.cached) {
            (Some(why), ..) => format!("lost ({}); publish it again", plain(why)),
            (None, TensorState::Spilled, _) => format!("spilled to disk until the next lookup{}", freed(tensor)),
            (None, TensorState::Published, true) => kept_until(tensor),
            _ => "freed with its last lease".to_owned(),
        },
    );
    if let Some(group) = &tensor.charged_to {
        let _ = writeln!(text, "  charged to {}", plain(group));
    }
    if let Some(metadata) = &tensor.metadata {
        let _ = writeln!(text, "  metadata {}", plain(&metadata.to_string()));
    }
    for member in &tensor.members {
        let _ = writeln!(text, "  member {}: {} {}", plain(&member.name), plain(&member.dtype), shape(&member.shape));
    }
}

fn stat_daemon(store: &ClientStore, args: &StatArgs) -> Result<()> {
    let hello = HelloParams { protocol: PROTOCOL, client: String::new(), ..Default::default() };
    let hello = store.request::<Hello>(&hello)?;
    let devices = store.request::<ListDevices>(&Empty {})?.devices;
    let HelloResult { version, protocol, epoch, .. } = hello;
    let daemon = Daemon { version, protocol, epoch, stats: store.stats(), devices };
    if args.client.json {
        return print_json(&daemon);
    }
    let stats = &daemon.stats;
    let mut table = Table::new(&[], &["daemon", &daemon.version]);
    let mut row = |what: &str, value: String| table.row([what.to_owned(), value]);
    row("tensors", stats.total_tensors.to_string());
    row("spilled tensors", format!("{} ({})", stats.spilled_now, size(stats.spilled_now_bytes)));
    row("holders", stats.total_models.to_string());
    row("memory", size(stats.memory_usage_bytes));
    let unshared = size(stats.unshared_bytes);
    row("saved by sharing", format!("{} ({unshared} with a copy for each holder)", size(stats.saved_bytes)));
    row("kept without a holder", kept(stats.kept_tensors, stats.kept_bytes, &stats.kept_by));
    row("memory of metadata", size(stats.metadata_bytes));
    row("memory kept ready", format!("{} by producers, beyond the budget", size(stats.ready_bytes)));
    row("memory budget", budget(stats));
    for (device, used) in device_memory(stats) {
        row(&format!("memory on {device}"), used);
    }
    row("counters start", format!("{} ago, with this server", duration(stats.counted_seconds)));
    row("peak memory", size(stats.peak_memory_bytes));
    row("hits", format!("{} ({:.1} %)", stats.cache_hits, 100.0 * stats.hit_rate));
    row("misses", stats.cache_misses.to_string());
    row("evictions", format!("{} ({})", stats.evictions, size(stats.evicted_bytes)));
    row("spills", format!("{} ({}), {} read back", stats.spills, size(stats.spilled_bytes), stats.restores));
    for copy in &stats.copies {
        row(&format!("copies: {}", copy.reason), format!("{} ({})", copy.count, size(copy.bytes)));
    }
    for device in &daemon.devices {
        let held = device.programs.iter().map(|program| program.held_bytes).sum();
        let value = format!("{} of {} ({} programs)", size(held), size(device.capacity_bytes), device.programs.len());
        row(&format!("shared device {}", plain(&device.device)), value);
    }
    print(&table.text())
}

/// The tensors without leases, and the programs that published them.
pub(super) fn kept(tensors: usize, bytes: u64, by: &[KeptTensors]) -> String {
    let producers: Vec<_> = by.iter().map(|kept| format!("{} ({})", kept.producer, size(kept.bytes))).collect();
    let listed: usize = by.iter().map(|kept| kept.tensors).sum();
    let others = if listed < tensors { ", others" } else { "" };
    let by = if producers.is_empty() { String::new() } else { format!(" of {}{others}", producers.join(", ")) };
    format!("{} in {}{by}", size(bytes), count(tensors, "tensor"))
}

/// The name of each device but the host, with its memory in use, its budget and its tensors.
pub(super) fn device_memory(stats: &Stats) -> impl Iterator<Item = (&str, String)> {
    of_devices(&stats.devices)
}

fn of_devices(devices: &[DeviceStats]) -> impl Iterator<Item = (&str, String)> {
    let devices = devices.iter().filter(|device| device.device != Device::default().to_string());
    devices.map(|device| {
        let max = device.max_memory_bytes.map_or_else(|| "no limit".to_owned(), size);
        let used = format!("{} of {max} ({})", size(device.memory_usage_bytes), count(device.tensors, "tensor"));
        (&*device.device, used)
    })
}

/// The budget of a store, as text.
pub(super) fn budget(stats: &Stats) -> String {
    stats.max_memory_bytes.map_or_else(|| "none".to_owned(), size)
}
