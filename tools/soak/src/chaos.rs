//! Kills clients that hold thousands of leases, and the daemon, at random. Nothing may leak, no client may read a wrong
//! byte, and all clients continue.

mod fleet;
mod taken_over;

use crate::content::Random;
use crate::daemon::{Machine, Process, Usage, until};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{Empty, ListOrder, ListParams, Ping, SessionInfo, Sessions};
use cotensor_core::{Error, Result};
use cotensor_store::StoreReports;
use fleet::{ClientFleet, FleetSize};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taken_over::TakenOver;

/// The daemon is only killed between these shares of the run. A new server keeps tensors for clients that have not
/// reconnected; this time-out must not affect the end of the run.
const QUIET: std::ops::Range<f64> = 0.05..0.85;

#[derive(clap::Args, Clone)]
pub(crate) struct Options {
    /// Number of concurrent client processes.
    #[arg(long, default_value_t = 64)]
    pub(crate) clients: usize,
    /// Number of leases of all clients together.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) leases: usize,
    /// Time during which clients are killed and replaced.
    #[arg(long, default_value_t = 60.0)]
    pub(crate) seconds: f64,
    /// Number of clients to kill.
    #[arg(long, default_value_t = 300)]
    pub(crate) client_kills: usize,
    /// Number of kills of the daemon's server.
    #[arg(long, default_value_t = 10)]
    pub(crate) daemon_kills: usize,
    /// Number of kills of the daemon's supervisor, while the server answers, each followed by a wait until the next one has the state. With any, the
    /// first supervisor and the first server are killed before the first client starts: the later ones have more descriptors.
    #[arg(long, default_value_t = 0)]
    pub(crate) supervisor_kills: usize,
    /// Hard limit of the daemon's open descriptors [default: that of this process]. Clients let tensors go when it is reached.
    #[arg(long)]
    pub(crate) descriptors: Option<u64>,
    /// Seed of the random choice of processes and times.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// The outcome. Times start when a process has died.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    clients: usize,
    client_kills: usize,
    daemon_kills: usize,
    supervisor_kills: usize,
    /// Maximum number of leases that the daemon counted.
    leases_max: usize,
    tensors_max: usize,
    /// Tensors that the clients of the end have published in blocks, and frames of channels that they have checked.
    blocks: usize,
    frames: usize,
    /// Errors found by clients; must be empty.
    wrong: Vec<String>,
    /// Time from the daemon's death to a client's first answered call, over all kills and clients.
    recovery: Option<Times>,
    /// The longest time in which one server kept leases for sessions of the former one.
    taken_over_ms: f64,
    /// Time from the death of half of the clients until the daemon counts exactly the leases of the others.
    half_ms: f64,
    /// Time from the death of the last client until no tensor, byte or session is left.
    pub(crate) zero_ms: f64,
    /// Leases and bytes one second after the last death.
    pub(crate) leaked_leases: usize,
    pub(crate) leaked_bytes: u64,
    /// Usage before the first client, and after the last one.
    before: Usage,
    after: Usage,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) count: usize,
    pub(crate) median_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// The slowest client of each kill.
    pub(crate) max_of_each_ms: Vec<f64>,
}

impl Outcome {
    /// Whether nothing leaked and no client found an error, regardless of the time.
    pub(crate) fn is_right(&self) -> bool {
        let same = |before: Process, after: Process| after.descriptors <= before.descriptors;
        let same = same(self.before.server, self.after.server) && same(self.before.supervisor, self.after.supervisor);
        self.wrong.is_empty() && same
    }

    pub(crate) fn wrong_count(&self) -> usize {
        self.wrong.len()
    }

    pub(crate) fn recovery(&self) -> Option<&Times> {
        self.recovery.as_ref()
    }
}

#[derive(Clone, Copy)]
enum Event {
    Client,
    Server,
    Supervisor,
}

/// The schedule of kills, in order.
fn schedule(options: &Options, random: &mut Random) -> Vec<(Duration, Event)> {
    let at = |share: f64| Duration::from_secs_f64(options.seconds * share);
    let mut share = || random.below(1 << 20) as f64 / f64::from(1 << 20);
    let mut events: Vec<_> = (0..options.client_kills).map(|_| (at(share()), Event::Client)).collect();
    // At irregular intervals with a minimum distance.
    for (kills, event) in [(options.daemon_kills, Event::Server), (options.supervisor_kills, Event::Supervisor)] {
        let each = (QUIET.end - QUIET.start) / kills.max(1) as f64;
        events.extend((0..kills).map(|kill| (at(QUIET.start + each * (kill as f64 + share() / 2.0)), event)));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

/// # Errors
/// Errors that prevent the run. Errors found by the run are in the outcome.
pub(crate) fn run(options: &Options) -> Result<Outcome> {
    let machine = options.descriptors.map_or_else(|| Machine::start(u64::MAX), Machine::start_limited)?;
    let daemon = Inspector(ClientStore::connect(Some(&machine.socket), "inspector")?);
    if options.supervisor_kills > 0 {
        machine.kill_supervisor()?;
        machine.kill_server()?;
    }
    let before = steady(&machine)?;
    let mut random = Random::new(options.seed);
    let size = FleetSize { clients: options.clients, leases: options.leases };
    let mut fleet = ClientFleet::start(&machine.socket, size, &mut random)?;
    until("all clients hold their leases", || fleet.all_full() || fleet.is_wrong())?;
    let (mut leases_max, mut tensors_max) = (0, 0);
    eprintln!("{} clients hold {} leases; killing starts", options.clients, daemon.leases()?);

    let taken_over = TakenOver::watch(&machine.socket)?;
    let start = Instant::now();
    let (mut killed, mut servers, mut supervisors) = (0, 0, 0);
    for (at, event) in schedule(options, &mut random) {
        std::thread::sleep(at.saturating_sub(start.elapsed()));
        match event {
            Event::Client => {
                fleet.replace(&mut random)?;
                killed += 1;
                if killed % 10 == 0 {
                    let (leases, tensors) = (daemon.leases()?, daemon.0.stats().total_tensors);
                    eprintln!("{:5.1} s: {leases} leases, {tensors} tensors", start.elapsed().as_secs_f64());
                    (leases_max, tensors_max) = (leases_max.max(leases), tensors_max.max(tensors));
                }
            }
            Event::Server => {
                fleet.notify_kill(&machine.kill_server()?);
                servers += 1;
            }
            Event::Supervisor => {
                // Until the server has the state, only the supervisor does.
                until("the server answers", || daemon.0.request::<Ping>(&Empty {}).is_ok())?;
                machine.kill_supervisor()?;
                supervisors += 1;
            }
        }
        if !matches!(event, Event::Client) {
            let at = start.elapsed().as_secs_f64();
            eprintln!(
                "{at:5.1} s: {killed} clients killed, the server {servers} times, the supervisor {supervisors} times"
            );
        }
    }
    std::thread::sleep(Duration::from_secs_f64(options.seconds).saturating_sub(start.elapsed()));
    fleet.wait_until_back();
    let taken_over_ms = ms(taken_over.end()?);

    let half_ms = halve(&mut fleet, &daemon)?;
    let done = fleet.rest()?;
    let wrong = fleet.wrong();
    let recovery = times(&fleet.recoveries());
    let last_death = fleet.kill_all();
    eprintln!("all clients are dead");
    let (mut zero_ms, mut a_second_later) = (None, (0, 0));
    until("the daemon is empty", || {
        let left = daemon.left();
        if last_death.elapsed() <= Duration::from_secs(1) {
            a_second_later = left.unwrap_or(a_second_later);
        }
        zero_ms = (left == Some((0, 0))).then(|| ms(last_death.elapsed()));
        zero_ms.is_some()
    })?;
    let (leaked_leases, leaked_bytes) = a_second_later;
    let zero_ms = zero_ms.unwrap_or(f64::INFINITY);
    let after = settled(&machine, &before)?;
    Ok(Outcome {
        clients: options.clients,
        client_kills: killed,
        daemon_kills: servers,
        supervisor_kills: supervisors,
        leases_max,
        tensors_max,
        blocks: done.blocks,
        frames: done.frames,
        wrong,
        recovery,
        taken_over_ms,
        half_ms,
        zero_ms,
        leaked_leases,
        leaked_bytes,
        before,
        after,
    })
}

/// Kills half of the clients while the others are idle. Returns the milliseconds until exactly the others' leases are
/// left.
fn halve(fleet: &mut ClientFleet, daemon: &Inspector) -> Result<f64> {
    let half = fleet.split();
    let held = fleet.rest()?.leases;
    let death = half.kill_all();
    until("the daemon counts exactly the leases of the living clients", || {
        daemon.leases().is_ok_and(|leases| leases == held)
    })?;
    let took = ms(death.elapsed());
    eprintln!("half of the clients are dead, the others hold {held} leases");
    Ok(took)
}

/// Usage of the daemon after its start. On a busy machine it opens its last descriptors shortly after it answers.
fn steady(machine: &Machine) -> Result<Usage> {
    let mut usage = machine.usage()?;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(100));
        let before = std::mem::replace(&mut usage, machine.usage()?);
        let same = |before: Process, after: Process| before.descriptors == after.descriptors;
        if same(before.server, usage.server) && same(before.supervisor, usage.supervisor) {
            break;
        }
    }
    Ok(usage)
}

/// Usage of the daemon once it is at most `before`, or after a time-out.
fn settled(machine: &Machine, before: &Usage) -> Result<Usage> {
    let start = Instant::now();
    loop {
        let after = machine.usage()?;
        let back = after.server.descriptors <= before.server.descriptors
            && after.supervisor.descriptors <= before.supervisor.descriptors;
        if back || start.elapsed() > Duration::from_secs(20) {
            return Ok(after);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Inspector(Arc<ClientStore>);

impl Inspector {
    /// Number of sessions other than this one's. Retries when the server is killed.
    fn sessions(&self) -> Result<Vec<SessionInfo>> {
        let mut answer = self.0.request::<Sessions>(&Empty {});
        for _ in 0..10 {
            if answer.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            answer = self.0.request::<Sessions>(&Empty {});
        }
        let others = answer?.sessions.into_iter().filter(|session| !session.client.starts_with("inspector"));
        Ok(others.collect())
    }

    fn leases(&self) -> Result<usize> {
        Ok(self.sessions()?.iter().map(|session| session.leases).sum())
    }

    /// Leases (an unleased tensor and a session count as one each), and bytes; `None` without an answer.
    fn left(&self) -> Option<(usize, u64)> {
        let list = self
            .0
            .request::<cotensor_client::protocol::List>(&ListParams {
                prefix: String::new(),
                limit: 0,
                order: ListOrder::Name,
            })
            .ok()?;
        let sessions = self.sessions().ok()?;
        let leases = sessions.iter().map(|session| session.leases.max(1)).sum::<usize>();
        Some((leases.max(list.left_off), self.0.stats().memory_usage_bytes))
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Recoveries by kill: nanoseconds after which each client was back.
fn times(recoveries: &[(u64, u64)]) -> Option<Times> {
    let mut sorted: Vec<f64> = recoveries.iter().map(|(_, back)| *back as f64 / 1e6).collect();
    sorted.sort_by(f64::total_cmp);
    let mut by_kill: BTreeMap<u64, f64> = BTreeMap::new();
    for (kill, back) in recoveries {
        let slowest = by_kill.entry(*kill).or_default();
        *slowest = slowest.max(*back as f64 / 1e6);
    }
    let at = |share: usize| sorted.get((sorted.len() * share / 100).min(sorted.len().saturating_sub(1))).copied();
    Some(Times {
        count: sorted.len(),
        median_ms: at(50)?,
        p99_ms: at(99)?,
        max_ms: at(100)?,
        max_of_each_ms: by_kill.into_values().collect(),
    })
}

impl From<fleet::Failure> for Error {
    fn from(fleet::Failure(what): fleet::Failure) -> Self {
        Error::corrupt(what)
    }
}
