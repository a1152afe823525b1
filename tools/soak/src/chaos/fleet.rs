//! The client processes.

use crate::content::Random;
use crate::daemon::{Death, io, this_program, until};
use cotensor_core::Result;
use cotensor_core::sync::lock;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The numbers of clients, and of leases of all clients together.
#[derive(Clone, Copy)]
pub(super) struct FleetSize {
    pub(super) clients: usize,
    pub(super) leases: usize,
}

/// All live clients.
pub(super) struct ClientFleet {
    socket: PathBuf,
    size: FleetSize,
    clients: Vec<Client>,
    results: Arc<Mutex<Results>>,
}

/// Messages of all clients, including dead ones.
#[derive(Default)]
struct Results {
    wrong: Vec<String>,
    /// Time of the kill, and nanoseconds until the client was back.
    recoveries: Vec<(u64, u64)>,
}

/// What idle clients have done since their starts.
#[derive(Clone, Copy, Default)]
pub(super) struct Done {
    /// Leases that they hold.
    pub(super) leases: usize,
    /// Tensors that they published in blocks.
    pub(super) blocks: usize,
    /// Frames of channels that they checked.
    pub(super) frames: usize,
}

impl std::iter::Sum for Done {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            leases: sum.leases + one.leases,
            blocks: sum.blocks + one.blocks,
            frames: sum.frames + one.frames,
        })
    }
}

/// An error that no client may find.
pub(super) struct Failure(pub(super) String);

struct Client {
    process: Child,
    status: Arc<Mutex<Status>>,
}

#[derive(Default)]
struct Status {
    full: bool,
    /// Number of kills that the client has not acknowledged.
    pending_kills: usize,
    /// What the client has done, once it is idle.
    done: Option<Done>,
}

impl Client {
    fn start(socket: &Path, size: FleetSize, index: usize, seed: u64, results: &Arc<Mutex<Results>>) -> Result<Self> {
        let leases = size.leases.div_ceil(size.clients);
        let mut command = this_program("worker")?;
        command.arg(socket).args([index, size.clients, leases].map(|number| number.to_string()));
        command.arg(seed.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(io("starting a client"))?;
        let status = Arc::<Mutex<Status>>::default();
        if let Some(out) = process.stdout.take() {
            let (status, results) = (Arc::clone(&status), Arc::clone(results));
            std::thread::spawn(move || on_messages(out, &status, &results));
        }
        Ok(Self { process, status })
    }

    fn send(&mut self, line: &str) {
        // A client that has just died receives nothing.
        drop(self.process.stdin.as_mut().map(|input| writeln!(input, "{line}")));
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
    }
}

fn on_messages(out: ChildStdout, status: &Mutex<Status>, results: &Mutex<Results>) {
    for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["full"] => lock(status).full = true,
            ["rests", leases, blocks, frames] => {
                if let (Ok(leases), Ok(blocks), Ok(frames)) = (leases.parse(), blocks.parse(), frames.parse()) {
                    lock(status).done = Some(Done { leases, blocks, frames });
                }
            }
            ["back", at, after] => {
                lock(status).pending_kills -= 1;
                if let (Ok(at), Ok(after)) = (at.parse(), after.parse()) {
                    lock(results).recoveries.push((at, after));
                }
            }
            _ => lock(results).wrong.push(line),
        }
    }
}

impl ClientFleet {
    pub(super) fn start(socket: &Path, size: FleetSize, random: &mut Random) -> Result<Self> {
        let results = Arc::default();
        let start = |index| Client::start(socket, size, index, random.next(), &results);
        let clients = (0..size.clients).map(start).collect::<Result<_>>()?;
        Ok(Self { socket: socket.to_path_buf(), size, clients, results })
    }

    pub(super) fn all_full(&self) -> bool {
        self.clients.iter().all(|client| lock(&client.status).full)
    }

    pub(super) fn is_wrong(&self) -> bool {
        !lock(&self.results).wrong.is_empty()
    }

    pub(super) fn wrong(&self) -> Vec<String> {
        lock(&self.results).wrong.clone()
    }

    pub(super) fn recoveries(&self) -> Vec<(u64, u64)> {
        lock(&self.results).recoveries.clone()
    }

    /// Kills a random client, and starts a replacement.
    pub(super) fn replace(&mut self, random: &mut Random) -> Result<()> {
        let index = random.below(self.clients.len());
        self.clients[index].kill();
        self.clients[index] = Client::start(&self.socket, self.size, index, random.next(), &self.results)?;
        Ok(())
    }

    /// Notifies all clients that the server was killed; they report when they are back.
    pub(super) fn notify_kill(&mut self, death: &Death) {
        for client in &mut self.clients {
            lock(&client.status).pending_kills += 1;
            client.send(&format!("killed {} {}", death.killed_ns, death.dead_ns));
        }
    }

    /// Waits until all clients have reported, with a time-out.
    pub(super) fn wait_until_back(&self) {
        drop(until("all are back", || {
            self.is_wrong() || self.clients.iter().all(|client| lock(&client.status).pending_kills == 0)
        }));
    }

    /// Makes all clients check their tensors and become idle.
    ///
    /// # Errors
    /// `Corrupt` when a client found an error.
    pub(super) fn rest(&mut self) -> Result<Done> {
        for client in &mut self.clients {
            lock(&client.status).done = None;
            client.send("rest");
        }
        let done = |client: &Client| lock(&client.status).done;
        until("all rest", || self.is_wrong() || self.clients.iter().all(|client| done(client).is_some()))?;
        match self.wrong().first() {
            Some(wrong) => Err(Failure(wrong.clone()).into()),
            None => Ok(self.clients.iter().filter_map(done).sum()),
        }
    }

    /// Removes half of the clients from the fleet.
    pub(super) fn split(&mut self) -> Self {
        let clients = self.clients.split_off(self.clients.len() / 2);
        Self { clients, socket: self.socket.clone(), size: self.size, results: Arc::clone(&self.results) }
    }

    /// Kills all clients. Returns the time at which the last was dead.
    pub(super) fn kill_all(mut self) -> Instant {
        self.clients.iter_mut().for_each(Client::kill);
        for client in &mut self.clients {
            let _ = client.process.wait();
        }
        Instant::now()
    }
}
