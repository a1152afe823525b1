//! `top`: a live view of the daemon; prints tables once without a terminal.

mod columns;
mod snapshot;
mod view;

use crate::args::TopArgs;
use crate::commands::tensors::{budget, device_memory};
use crate::output::{count, print, print_json};
use crate::signals;
use crate::table::{Table, plain};
use crate::terminal::takes_escapes;
use cotensor::core::sync::lock;
use cotensor::core::waiting::set_wait_reporter;
use cotensor::core::{Error, Result, size};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{DeviceShares, TensorState};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use ratatui::crossterm::execute;
use serde::Serialize;
use snapshot::{HolderRow, Order, SHARE_COLUMNS, Snapshot, leases, share_rows};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use view::View;

const PAGE: isize = 20;

pub(crate) fn top(args: &TopArgs) -> Result<()> {
    let store = connect(args)?;
    let snapshot = Snapshot::take(&store)?;
    if args.client.json {
        return print_json(&report(snapshot));
    }
    if !takes_escapes(&std::io::stdout()) || !std::io::stdin().is_terminal() {
        return print(&text(snapshot));
    }
    // Reports would disturb the live view.
    set_wait_reporter(None);
    let io = |error: std::io::Error| Error::io("the terminal", &error);
    // Held while drawing, and for ever once the terminal is restored.
    let drawing = Arc::new(Mutex::new(()));
    let ended = Arc::clone(&drawing);
    signals::clean_up_first(move || {
        let drawn = ended.lock();
        // A closed terminal needs no restoring.
        let _ = ratatui::try_restore();
        drop(execute!(std::io::stdout(), Show));
        std::mem::forget(drawn);
    })?;
    let terminal = ratatui::try_init().map_err(io)?;
    let outcome = watch(terminal, store, snapshot, args, &drawing).map_err(io);
    ratatui::try_restore().map_err(io)?;
    outcome
}

fn connect(args: &TopArgs) -> Result<Arc<ClientStore>> {
    ClientStore::connect(args.client.socket.as_deref(), "cotensor top")
}

/// Shows the live view until the user quits.
fn watch(
    mut terminal: DefaultTerminal,
    store: Arc<ClientStore>,
    snapshot: Snapshot,
    args: &TopArgs,
    drawing: &Mutex<()>,
) -> std::io::Result<()> {
    let socket = args.client.socket.clone().unwrap_or_else(cotensor_client::default_socket);
    let socket = socket.display().to_string();
    let mut view = View { socket, snapshot, order: Order::Bytes, top: 0, paused: false, rate: 0.0, error: None };
    view.snapshot.sort(view.order);
    let mut store = Some(store);
    let mut refreshed = Instant::now();
    loop {
        let drawn = lock(drawing);
        terminal.draw(|frame| view.draw(frame))?;
        drop(drawn);
        let left = args.interval.saturating_sub(refreshed.elapsed());
        if poll(left)? {
            if let Event::Key(key) = read()?
                && key.kind == KeyEventKind::Press
                && !on_key(&mut view, key)
            {
                return Ok(());
            }
        } else {
            if !view.paused {
                refresh(&mut view, &mut store, args, refreshed.elapsed());
            }
            refreshed = Instant::now();
        }
    }
}

/// Handles a key; false when the user quits.
fn on_key(view: &mut View, key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Up | KeyCode::Char('k') => view.scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => view.scroll(1),
        KeyCode::PageUp => view.scroll(-PAGE),
        KeyCode::PageDown => view.scroll(PAGE),
        KeyCode::Home => view.scroll(isize::MIN),
        KeyCode::Char('p' | ' ') => view.paused = !view.paused,
        KeyCode::Char('s') => {
            view.order = view.order.next();
            view.snapshot.sort(view.order);
        }
        _ => {}
    }
    true
}

/// Takes a new snapshot; connects again when the daemon was replaced.
fn refresh(view: &mut View, store: &mut Option<Arc<ClientStore>>, args: &TopArgs, passed: Duration) {
    let connected = match store.take() {
        Some(store) => Ok(store),
        None => connect(args),
    };
    match connected.and_then(|store| Ok((Snapshot::take(&store)?, store))) {
        Ok((snapshot, connected)) => {
            let lookups = |snapshot: &Snapshot| snapshot.stats.cache_hits + snapshot.stats.cache_misses;
            // The counters of a new daemon start at zero.
            let new = lookups(&snapshot).saturating_sub(lookups(&view.snapshot));
            view.rate = new as f64 / passed.as_secs_f64();
            view.snapshot = snapshot;
            view.snapshot.sort(view.order);
            view.scroll(0);
            view.error = None;
            *store = Some(connected);
        }
        Err(error) => view.error = Some(error.to_string()),
    }
}

/// The JSON output.
#[derive(Serialize)]
struct Report {
    stats: cotensor::store::Stats,
    tensors: Vec<TensorRow>,
    holders: Vec<Holder>,
    /// Devices whose memory programs divide.
    devices: Vec<DeviceShares>,
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    version: u64,
    state: TensorState,
    bytes: u64,
    hits: u64,
    leases: u64,
    age_s: f64,
}

#[derive(Serialize)]
struct Holder {
    name: String,
    tensors: usize,
    leases: u64,
    bytes: u64,
}

impl From<HolderRow> for Holder {
    fn from(HolderRow { name, tensors, leases, bytes }: HolderRow) -> Self {
        Self { name, tensors, leases, bytes }
    }
}

fn report(mut snapshot: Snapshot) -> Report {
    snapshot.sort(Order::Bytes);
    let holders = snapshot.holders().into_iter().map(Holder::from).collect();
    let row = |tensor: &cotensor_client::protocol::TensorInfo| TensorRow {
        name: tensor.spec.name.clone(),
        version: tensor.id.version,
        state: tensor.state,
        bytes: tensor.bytes,
        hits: tensor.hits,
        leases: leases(tensor),
        age_s: tensor.age_s,
    };
    let tensors = snapshot.tensors.iter().map(row).collect();
    Report { tensors, stats: snapshot.stats, holders, devices: snapshot.devices }
}

fn text(snapshot: Snapshot) -> String {
    let report = report(snapshot);
    let mut tensors = Table::new(&[true, true, true, false, false], &["bytes", "hits", "leases", "state", "name"]);
    for tensor in &report.tensors {
        let (hits, leases) = (tensor.hits.to_string(), tensor.leases.to_string());
        tensors.row([size(tensor.bytes), hits, leases, tensor.state.name().to_owned(), plain(&tensor.name)]);
    }
    let mut holders = Table::new(&[true, true, true, false], &["tensors", "leases", "bytes", "holder"]);
    for holder in &report.holders {
        holders.row([holder.tensors.to_string(), holder.leases.to_string(), size(holder.bytes), plain(&holder.name)]);
    }
    let mut devices = Table::new(&[true, true, true, false, false, false], &SHARE_COLUMNS);
    share_rows(&report.devices).into_iter().for_each(|row| devices.row(row));
    let devices = if report.devices.is_empty() { String::new() } else { format!("\n{}", devices.text()) };
    let stats = &report.stats;
    let memory: String = device_memory(stats).map(|(device, used)| format!("{device}: {used}\n")).collect();
    format!(
        "{} saved of {} without sharing, {}, {} in use, peak {}, budget {}, hit rate {:.1} %\n{memory}\n{}\n{}{devices}",
        size(stats.saved_bytes),
        size(stats.unshared_bytes),
        count(stats.total_tensors, "tensor"),
        size(stats.memory_usage_bytes),
        size(stats.peak_memory_bytes),
        budget(stats),
        100.0 * stats.hit_rate,
        tensors.text(),
        holders.text()
    )
}
