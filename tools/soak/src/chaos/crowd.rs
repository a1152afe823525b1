//! The clients' processes.

use super::Options;
use crate::content::Random;
use crate::daemon::{Death, io, this_program, until};
use cotensor_core::Result;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// All clients that live.
pub(super) struct Crowd {
    socket: PathBuf,
    options: Options,
    clients: Vec<Client>,
    heard: Arc<Mutex<Heard>>,
}

/// What clients said, the dead ones too.
#[derive(Default)]
struct Heard {
    wrong: Vec<String>,
    /// Of a kill, at this time, and after how many nanoseconds.
    back: Vec<(u64, u64)>,
}

/// Something that no client may see.
pub(super) struct Wrong(pub(super) String);

struct Client {
    process: Child,
    said: Arc<Mutex<Said>>,
}

#[derive(Default)]
struct Said {
    full: bool,
    /// Kills that it was told of and has not answered.
    away: usize,
    /// Leases, once it rests.
    rests: Option<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    fn start(socket: &Path, options: &Options, index: usize, seed: u64, heard: &Arc<Mutex<Heard>>) -> Result<Self> {
        let leases = options.leases.div_ceil(options.clients);
        let mut command = this_program("worker")?;
        command.arg(socket).args([index, options.clients, leases].map(|number| number.to_string()));
        command.arg(seed.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(io("starting a client"))?;
        let said = Arc::<Mutex<Said>>::default();
        if let Some(out) = process.stdout.take() {
            let (said, heard) = (Arc::clone(&said), Arc::clone(heard));
            std::thread::spawn(move || hear(out, &said, &heard));
        }
        Ok(Self { process, said })
    }

    fn tell(&mut self, line: &str) {
        // One that has just died hears nothing.
        drop(self.process.stdin.as_mut().map(|input| writeln!(input, "{line}")));
    }

    fn kill(&mut self) {
        drop(self.process.kill());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
        drop(self.process.wait());
    }
}

fn hear(out: ChildStdout, said: &Mutex<Said>, heard: &Mutex<Heard>) {
    for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["full"] => lock(said).full = true,
            ["rests", leases] => lock(said).rests = leases.parse().ok(),
            ["back", at, after] => {
                lock(said).away -= 1;
                if let (Ok(at), Ok(after)) = (at.parse(), after.parse()) {
                    lock(heard).back.push((at, after));
                }
            }
            _ => lock(heard).wrong.push(line),
        }
    }
}

impl Crowd {
    pub(super) fn start(socket: &Path, options: &Options, random: &mut Random) -> Result<Self> {
        let heard = Arc::default();
        let start = |index| Client::start(socket, options, index, random.next(), &heard);
        let clients = (0..options.clients).map(start).collect::<Result<_>>()?;
        Ok(Self { socket: socket.to_path_buf(), options: options.clone(), clients, heard })
    }

    pub(super) fn all_full(&self) -> bool {
        self.clients.iter().all(|client| lock(&client.said).full)
    }

    pub(super) fn is_wrong(&self) -> bool {
        !lock(&self.heard).wrong.is_empty()
    }

    pub(super) fn wrong(&self) -> Vec<String> {
        lock(&self.heard).wrong.clone()
    }

    pub(super) fn recoveries(&self) -> Vec<(u64, u64)> {
        lock(&self.heard).back.clone()
    }

    /// Kills one, and starts another in its place.
    pub(super) fn replace(&mut self, random: &mut Random) -> Result<()> {
        let index = random.below(self.clients.len());
        self.clients[index].kill();
        self.clients[index] = Client::start(&self.socket, &self.options, index, random.next(), &self.heard)?;
        Ok(())
    }

    /// Tells all that the server was killed; they say when they are back.
    pub(super) fn tell_of(&mut self, death: &Death) {
        for client in &mut self.clients {
            lock(&client.said).away += 1;
            client.tell(&format!("killed {} {}", death.killed_ns, death.dead_ns));
        }
    }

    /// Waits, but not for ever, until all have said so.
    pub(super) fn wait_until_back(&self) {
        drop(until("all are back", || {
            self.is_wrong() || self.clients.iter().all(|client| lock(&client.said).away == 0)
        }));
    }

    /// Has all check what they hold and do nothing more; returns how many leases they have.
    ///
    /// # Errors
    /// `Corrupt` when one has something wrong.
    pub(super) fn rest(&mut self) -> Result<usize> {
        for client in &mut self.clients {
            lock(&client.said).rests = None;
            client.tell("rest");
        }
        let rests = |client: &Client| lock(&client.said).rests;
        until("all rest", || self.is_wrong() || self.clients.iter().all(|client| rests(client).is_some()))?;
        match self.wrong().first() {
            Some(wrong) => Err(Wrong(wrong.clone()).into()),
            None => Ok(self.clients.iter().filter_map(rests).sum()),
        }
    }

    /// Takes half of them out.
    pub(super) fn split(&mut self) -> Self {
        let clients = self.clients.split_off(self.clients.len() / 2);
        Self { clients, socket: self.socket.clone(), options: self.options.clone(), heard: Arc::clone(&self.heard) }
    }

    /// Kills all, and says when the last was dead.
    pub(super) fn kill_all(mut self) -> Instant {
        self.clients.iter_mut().for_each(Client::kill);
        for client in &mut self.clients {
            drop(client.process.wait());
        }
        Instant::now()
    }
}
