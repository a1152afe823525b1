//! A program's share of a device's memory, as the daemon's broker divides it.

use crate::OpenSession;
use crate::protocol as p;
use cotensor_core::sync::{lock, wait_timeout};
use cotensor_core::waiting::{REPORT_AFTER, WaitClock, WaitReport};
use cotensor_core::{Error, ErrorKind, Result, size};
use cotensor_memory::process::{client_process, wait_report};
use cotensor_rpc::{Connection, OnNotification};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The time for the daemon's answers when a program joins. A program must not wait for a daemon that is stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL_MIN: Duration = Duration::from_millis(20);
const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The needs of a program on a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNeeds {
    /// With this much it runs best.
    pub demand_bytes: u64,
    /// Without this much it does not run well.
    pub smallest_bytes: u64,
}

/// A program's share of a device, over a connection of its own. Dropping it gives the share back.
///
/// No method but [`join`](Self::join) waits for the daemon. While no daemon answers, the share stays as it is; a thread
/// joins the next daemon.
pub struct DeviceShare(Arc<Member>);

struct Member {
    socket: PathBuf,
    client: String,
    device: String,
    capacity_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
    /// Runs while the share is smaller than the smallest amount.
    short: Mutex<Option<WaitClock>>,
}

struct State {
    share_bytes: u64,
    /// More than the share until the program has freed memory.
    held_bytes: u64,
    /// Counts changes of the share.
    changes: u64,
    needs: DeviceNeeds,
    connection: Option<Arc<Connection>>,
    /// The last session, which the next one resumes.
    session: Option<OpenSession>,
    closed: bool,
}

impl DeviceShare {
    /// Joins the programs on a device of `capacity_bytes`, whose identity is equal in all programs. `client` names this
    /// process for display.
    ///
    /// # Errors
    /// `Unreachable` when no daemon listens at `socket`; `TimedOut` when it does not answer within a second; `OverBudget`
    /// when the smallest amounts of all programs do not fit; `Invalid` for an identity or sizes that are not possible.
    pub fn join(socket: &Path, client: &str, device: &str, capacity_bytes: u64, needs: DeviceNeeds) -> Result<Self> {
        let state =
            State { share_bytes: 0, held_bytes: 0, changes: 0, needs, connection: None, session: None, closed: false };
        let member = Arc::new(Member {
            socket: socket.to_path_buf(),
            client: client.to_owned(),
            device: device.to_owned(),
            capacity_bytes,
            state: Mutex::new(state),
            changed: Condvar::new(),
            short: Mutex::default(),
        });
        let connection = member.connect()?;
        let following = Arc::clone(&member);
        let thread = std::thread::Builder::new().name("device-share".to_owned());
        let thread = thread.spawn(move || following.follow(connection));
        drop(thread.map_err(|error| Error::io("starting a thread", &error))?);
        Ok(Self(member))
    }

    /// Bytes that the program may use, and the number of changes so far.
    pub fn share(&self) -> (u64, u64) {
        let state = lock(&self.0.state);
        (state.share_bytes, state.changes)
    }

    /// Waits until there are more than `changes` changes, the share is closed, or `timeout` has passed. Returns as
    /// [`share`](Self::share). A share that stays smaller than the smallest amount is reported, with the programs that have
    /// the memory.
    pub fn wait(&self, changes: u64, timeout: Duration) -> (u64, u64) {
        let until = Instant::now() + timeout;
        loop {
            let mut state = lock(&self.0.state);
            let left = until.saturating_duration_since(Instant::now());
            if state.changes > changes || state.closed || left.is_zero() {
                return (state.share_bytes, state.changes);
            }
            let slice = if state.is_short() { left.min(REPORT_AFTER) } else { left };
            state = self.0.wait_for_change(state, slice);
            let short = state.is_short() && !state.closed;
            drop(state);
            self.0.check_report(short);
        }
    }

    /// The program uses no more than `share_bytes`. Only an acknowledged share is given to others.
    pub fn acknowledge(&self, share_bytes: u64) {
        let mut state = lock(&self.0.state);
        if state.share_bytes != share_bytes || state.held_bytes == share_bytes {
            return;
        }
        state.held_bytes = share_bytes;
        let connection = state.connection.clone();
        drop(state);
        if let Some(connection) = connection {
            let params = p::DeviceShareParams { device: self.0.device.clone(), share_bytes };
            // Without a daemon, the next one learns it when the program joins.
            let _ = connection.notify::<p::AcknowledgeShare>(&params);
        }
    }

    /// Reports activity and needs. Call it at most every 50 ms.
    pub fn report(&self, needs: DeviceNeeds) {
        let mut state = lock(&self.0.state);
        state.needs = needs;
        let connection = state.connection.clone();
        drop(state);
        if let Some(connection) = connection {
            let DeviceNeeds { demand_bytes, smallest_bytes } = needs;
            let device = self.0.device.clone();
            let params = p::ReportDeviceParams { device, demand_bytes, smallest_bytes };
            // Without a daemon, the next one learns it when the program joins.
            let _ = connection.notify::<p::ReportDevice>(&params);
        }
    }

    /// Whether a daemon answers.
    pub fn is_connected(&self) -> bool {
        lock(&self.0.state).connection.as_ref().is_some_and(|connection| !connection.has_ended())
    }

    /// Gives the share back. Waiting threads return.
    pub fn close(&self) {
        let mut state = lock(&self.0.state);
        state.closed = true;
        if let Some(connection) = state.connection.take() {
            connection.close();
        }
        state.session = None;
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Drop for DeviceShare {
    fn drop(&mut self) {
        self.close();
    }
}

impl Member {
    /// Follows the connection, and the connections to later daemons.
    fn follow(self: Arc<Self>, mut connection: Arc<Connection>) {
        loop {
            // Notifications are handled meanwhile.
            drop(connection.listen());
            let mut delay = RETRY_INTERVAL_MIN;
            connection = loop {
                {
                    let mut state = lock(&self.state);
                    state.connection = None;
                    if !state.closed {
                        state = self.wait_for_change(state, delay);
                    }
                    if state.closed {
                        return;
                    }
                }
                match self.connect() {
                    Ok(connection) => break connection,
                    Err(_) => delay = (delay * 2).min(RETRY_INTERVAL_MAX),
                }
            };
        }
    }

    /// Connects and joins, with the memory that this program holds. A resumed session joins with its hello: until then, the
    /// daemon keeps the memory for it.
    fn connect(self: &Arc<Self>) -> Result<Arc<Connection>> {
        let (params, resume) = {
            let state = lock(&self.state);
            let params = self.joins(&state);
            let devices = vec![params.clone()];
            (params, state.session.as_ref().map(|session| p::Resume { devices, ..session.resume() }))
        };
        let notified = Arc::new(AtomicBool::new(false));
        let (connection, session, share) = match self.greet(resume, &notified) {
            // A daemon that does not know the former one.
            Err(error) if error.field() == Some(p::RESUME_TOKEN) => self.greet(None, &notified)?,
            greeted => greeted?,
        };
        let connection = Arc::new(connection);
        self.unless_closed()?.session = Some(session);
        let share = match share {
            Some(share) => share,
            None => connection.call::<p::JoinDevice>(&params, Vec::new(), Some(ANSWER_TIMEOUT))?.0,
        };
        let mut state = self.unless_closed()?;
        // A notification may arrive before the answer, and is newer.
        if !notified.load(Ordering::SeqCst) {
            state.set(share.share_bytes);
        }
        state.connection = Some(Arc::clone(&connection));
        let acknowledged = (state.held_bytes == state.share_bytes).then_some(state.share_bytes);
        drop(state);
        self.changed.notify_all();
        if let Some(share_bytes) = acknowledged {
            // The program may have acknowledged a notification before the connection was known.
            let device = self.device.clone();
            connection.notify::<p::AcknowledgeShare>(&p::DeviceShareParams { device, share_bytes })?;
        }
        Ok(connection)
    }

    /// The needs of the program, and what it holds.
    fn joins(&self, state: &State) -> p::JoinDeviceParams {
        p::JoinDeviceParams {
            device: self.device.clone(),
            capacity_bytes: self.capacity_bytes,
            demand_bytes: state.needs.demand_bytes,
            smallest_bytes: state.needs.smallest_bytes,
            held_bytes: state.held_bytes,
        }
    }

    fn unless_closed(&self) -> Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        if state.closed { Err(Error::new(ErrorKind::Conflict, "the share was given back")) } else { Ok(state) }
    }

    fn greet(
        self: &Arc<Self>,
        resume: Option<p::Resume>,
        notified: &Arc<AtomicBool>,
    ) -> Result<(Connection, OpenSession, Option<p::DeviceShareParams>)> {
        let (member, notified) = (Arc::downgrade(self), Arc::clone(notified));
        let on_notification: OnNotification = Box::new(move |method, params, _| {
            if method == p::notification::BROKER_SHARE
                && let Ok(params) = serde_json::from_str::<p::DeviceShareParams>(params.get())
                && let Some(member) = member.upgrade()
                && params.device == member.device
            {
                let mut state = lock(&member.state);
                notified.store(true, Ordering::SeqCst);
                state.set(params.share_bytes);
                drop(state);
                member.changed.notify_all();
            }
        });
        let connection = crate::connect(&self.socket, on_notification)?;
        let hello = OpenSession::hello(&self.client, resume);
        let (mut hello, mut fds) = connection.call::<p::Hello>(&hello, Vec::new(), Some(ANSWER_TIMEOUT))?;
        let session = OpenSession::new(&hello, &mut fds)?;
        Ok((connection, session, hello.shares.pop()))
    }

    /// Reports that the share is too small if that is due.
    fn check_report(&self, is_short: bool) {
        let mut clock = lock(&self.short);
        if is_short { clock.get_or_insert_default().check(|| self.describe()) } else { *clock = None }
    }

    /// A report of the wait for memory, with the other programs that have some of it.
    fn describe(&self) -> WaitReport {
        let (has, needs, connection, (own, shares_pids)) = {
            let state = lock(&self.state);
            let (has, needs) = (state.share_bytes, state.needs.smallest_bytes);
            let session = state.session.as_ref();
            let session = session.map_or((0, false), |session| (session.number(), session.shares_pids()));
            (has, needs, state.connection.clone(), session)
        };
        let devices = connection.and_then(|connection| {
            let (list, _) = connection.call_or_forget::<p::ListDevices>(&p::Empty {}, ANSWER_TIMEOUT).ok()?;
            Some(list.devices)
        });
        // Without a daemon, the programs are not known.
        let devices = devices.unwrap_or_default().into_iter().filter(|device| device.device == self.device);
        let programs = devices.flat_map(|device| device.programs);
        let others = programs.filter(|program| program.session != own && program.held_bytes > 0);
        let clients: Vec<String> = others.map(|program| program.client).collect();
        let pids: Vec<u32> =
            clients.iter().filter(|_| shares_pids).filter_map(|client| client_process(client)).collect();
        let (has, needs) = (size(has), size(needs));
        let what = format!(", to free memory of {}: this program has {has}, and needs {needs} at least", self.device);
        wait_report(&pids, "other programs", &what, false)
    }

    fn wait_for_change<'a>(&self, state: MutexGuard<'a, State>, timeout: Duration) -> MutexGuard<'a, State> {
        wait_timeout(&self.changed, state, timeout).0
    }
}

impl State {
    /// Whether the share is smaller than the program needs.
    fn is_short(&self) -> bool {
        self.share_bytes < self.needs.smallest_bytes
    }

    fn set(&mut self, share_bytes: u64) {
        if share_bytes != self.share_bytes {
            self.share_bytes = share_bytes;
            self.changes += 1;
        }
        self.held_bytes = self.held_bytes.max(share_bytes);
    }
}
