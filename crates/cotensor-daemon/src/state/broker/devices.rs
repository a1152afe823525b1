//! The devices and their programs, and the messages to them.

use super::shares::{Program, Shares};
use cotensor_client::protocol::{
    DEVICE_IDENTITY_BYTES_MAX, DeviceShareParams, DeviceShares, JoinDeviceParams, ProgramShare, ReportDeviceParams,
};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result, size};
use cotensor_store::Clock;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The most devices.
pub(crate) const DEVICES_MAX: usize = 64;
/// The most programs on one device.
const PROGRAMS_MAX: usize = 64;
/// The least time between two reports of a program that count: a report can change the shares of all.
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// The session of a program, as the broker needs it.
pub(crate) trait DeviceProgram: Send + Sync {
    /// The number of the session.
    fn session(&self) -> u64;

    /// Its name, for display.
    fn client(&self) -> &str;

    /// Sends the program its share. A program that does not receive it ends.
    fn send_share(&self, share: &DeviceShareParams);
}

/// A program's share of a device. Dropping it gives the memory to others, so it stays as long as the program may use the
/// memory: also while its session has no connection.
pub(crate) struct Share {
    broker: Arc<Broker>,
    device: String,
    session: u64,
}

impl Share {
    /// The device's identity.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.broker.remove(&self.device, self.session);
    }
}

/// The programs of all devices.
pub(crate) struct Broker {
    /// The end of a share is an event, too, and has no argument for the time.
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    devices: BTreeMap<String, Device>,
    /// Whether programs of a former server may have memory that this server does not know.
    settling: bool,
}

#[derive(Default)]
struct Device {
    shares: Shares,
    /// By session.
    programs: HashMap<u64, Joined>,
}

struct Joined {
    client: String,
    /// Weak: the broker does not keep a session that has ended.
    program: Weak<dyn DeviceProgram>,
}

impl Broker {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Adds a program to a device. Its share may be 0 until other programs have freed memory.
    ///
    /// # Errors
    /// `Invalid` for an identity or sizes that are not possible; `Conflict` if the session is there already, or too many
    /// are; `OverBudget` if the smallest amounts of all programs do not fit.
    pub(crate) fn join(
        self: &Arc<Self>,
        program: &Arc<dyn DeviceProgram>,
        params: JoinDeviceParams,
    ) -> Result<(Share, DeviceShareParams)> {
        self.add(program, params, Vec::new(), false)
    }

    /// Adds a program that has resumed its session, in place of its `former` shares of the device. It has `held_bytes` of
    /// the device whatever other programs need, so its smallest amount is reduced to what they leave.
    ///
    /// # Errors
    /// As [`join`](Self::join), but for `OverBudget`.
    pub(crate) fn join_again(
        self: &Arc<Self>,
        program: &Arc<dyn DeviceProgram>,
        params: JoinDeviceParams,
        former: Vec<Share>,
    ) -> Result<(Share, DeviceShareParams)> {
        self.add(program, params, former, true)
    }

    fn add(
        self: &Arc<Self>,
        program: &Arc<dyn DeviceProgram>,
        params: JoinDeviceParams,
        former: Vec<Share>,
        returns: bool,
    ) -> Result<(Share, DeviceShareParams)> {
        check(&params)?;
        let (now, session) = (self.clock.now(), program.session());
        let mut state = lock(&self.state);
        if !state.devices.contains_key(&params.device) && state.devices.len() >= DEVICES_MAX {
            return Err(Error::new(ErrorKind::Conflict, format!("{DEVICES_MAX} devices are the most")));
        }
        let JoinDeviceParams { device: name, capacity_bytes, demand_bytes, smallest_bytes, held_bytes } = params;
        let device = state.devices.entry(name.clone()).or_default();
        for share in &former {
            device.remove(share.session);
        }
        let left = device.shares.left(capacity_bytes);
        let joined = Program {
            demand: demand_bytes,
            smallest: if returns { smallest_bytes.min(left.unwrap_or(0)) } else { smallest_bytes },
            share: held_bytes,
            held: held_bytes,
            reported: now,
            capacity: capacity_bytes,
        };
        if let Err(error) = device.join(session, joined) {
            state.devices.retain(|_, device| !device.programs.is_empty());
            return Err(error);
        }
        let joined = Joined { client: program.client().to_owned(), program: Arc::downgrade(program) };
        device.programs.insert(session, joined);
        // The answer has the share of the new program, so it needs no notification.
        state.divide(&name, now, Some(session));
        let share_bytes = state.devices.get(&name).and_then(|device| device.shares.programs.get(&session));
        let answer = DeviceShareParams { share_bytes: share_bytes.map_or(0, |program| program.share), device: name };
        drop(state);
        Ok((Share { broker: Arc::clone(self), device: answer.device.clone(), session }, answer))
    }

    /// Notes the activity and the needs of a program.
    ///
    /// # Errors
    /// `NotFound` for a device that the session has not joined; `Conflict` sooner than 50 ms after the last report.
    pub(crate) fn report(&self, session: u64, params: &ReportDeviceParams) -> Result<()> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let device = state.joined(session, &params.device)?;
        let last = device.shares.programs.get(&session).map(|program| program.reported);
        if last.is_some_and(|last| now.saturating_sub(last) < REPORT_INTERVAL_MIN) {
            let message = format!("report at most every {} ms", REPORT_INTERVAL_MIN.as_millis());
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        device.shares.report(session, params.demand_bytes, params.smallest_bytes, now);
        state.divide(&params.device, now, None);
        Ok(())
    }

    /// A program has freed the memory beyond its share.
    ///
    /// # Errors
    /// `NotFound` for a device that the session has not joined.
    pub(crate) fn acknowledge(&self, session: u64, params: &DeviceShareParams) -> Result<()> {
        let mut state = lock(&self.state);
        state.joined(session, &params.device)?.shares.acknowledge(session, params.share_bytes);
        state.divide(&params.device, self.clock.now(), None);
        Ok(())
    }

    fn remove(&self, name: &str, session: u64) {
        let mut state = lock(&self.state);
        if state.devices.get_mut(name).is_some_and(|device| device.remove(session)) {
            state.divide(name, self.clock.now(), None);
            state.devices.retain(|_, device| !device.programs.is_empty());
        }
    }

    /// No program grows until [`end_settling`](Self::end_settling): programs of a former server return with the memory
    /// that they have.
    pub(crate) fn begin_settling(&self) {
        lock(&self.state).settling = true;
    }

    /// All programs of the former server have returned with their memory, or ended.
    pub(crate) fn end_settling(&self) {
        let mut state = lock(&self.state);
        state.settling = false;
        let names: Vec<String> = state.devices.keys().cloned().collect();
        let now = self.clock.now();
        names.iter().for_each(|name| state.divide(name, now, None));
    }

    /// All devices with their programs.
    pub(crate) fn list(&self) -> Vec<DeviceShares> {
        let now = self.clock.now();
        let state = lock(&self.state);
        state.devices.iter().map(|(name, device)| device.describe(name, now)).collect()
    }
}

impl State {
    /// A device that a session has joined.
    fn joined(&mut self, session: u64, name: &str) -> Result<&mut Device> {
        let missing = || Error::not_found(format!("join the device {name:?} first")).in_field("device");
        self.devices.get_mut(name).filter(|device| device.programs.contains_key(&session)).ok_or_else(missing)
    }

    /// Divides the memory of a device, and notifies programs but `except`. Messages are sent under the lock, so that each
    /// program gets them in order; sending does not wait.
    fn divide(&mut self, name: &str, now: Duration, except: Option<u64>) {
        let may_grow = !self.settling;
        let Some(device) = self.devices.get_mut(name) else { return };
        for session in device.shares.divide(now, may_grow) {
            let program = device.programs.get(&session).and_then(|joined| joined.program.upgrade());
            if let (Some(program), Some(share)) = (program, device.shares.programs.get(&session))
                && Some(session) != except
            {
                program.send_share(&DeviceShareParams { device: name.to_owned(), share_bytes: share.share });
            }
        }
    }
}

impl Device {
    fn join(&mut self, session: u64, program: Program) -> Result<()> {
        if self.programs.contains_key(&session) {
            return Err(Error::new(ErrorKind::Conflict, "this session has joined the device").in_field("device"));
        }
        if self.programs.len() >= PROGRAMS_MAX {
            return Err(Error::new(ErrorKind::Conflict, format!("{PROGRAMS_MAX} programs use the device")));
        }
        let (smallest, others) = (program.smallest, self.programs.len());
        self.shares.join(session, program).map_err(|left| {
            let message = format!(
                "the program needs at least {}, and the needs of {others} others leave {} of the device: end one of them, \
                 see `cotensor top`",
                size(smallest),
                size(left)
            );
            Error::new(ErrorKind::OverBudget, message)
        })
    }

    fn remove(&mut self, session: u64) -> bool {
        self.shares.programs.remove(&session);
        self.programs.remove(&session).is_some()
    }

    fn describe(&self, name: &str, now: Duration) -> DeviceShares {
        let programs = self.shares.programs.iter().filter_map(|(session, share)| {
            Some(ProgramShare {
                session: *session,
                client: self.programs.get(session)?.client.clone(),
                share_bytes: share.share,
                held_bytes: share.held,
                demand_bytes: share.demand,
                smallest_bytes: share.smallest,
                quiet_s: now.saturating_sub(share.reported).as_secs_f64(),
                busy: share.is_busy(now),
            })
        });
        let programs = programs.collect();
        DeviceShares { device: name.to_owned(), capacity_bytes: self.shares.capacity(), programs }
    }
}

fn check(params: &JoinDeviceParams) -> Result<()> {
    let name = &params.device;
    let printable = name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if name.is_empty() || name.len() > DEVICE_IDENTITY_BYTES_MAX || !printable {
        let message = format!("1 to {DEVICE_IDENTITY_BYTES_MAX} printable characters of ASCII expected");
        return Err(Error::invalid(message).in_field("device"));
    }
    if params.capacity_bytes == 0 || params.capacity_bytes > i64::MAX as u64 {
        return Err(Error::invalid("1 to 2^63 - 1 bytes expected").in_field("capacity_bytes"));
    }
    if params.held_bytes > params.capacity_bytes {
        return Err(Error::invalid("at most the capacity expected").in_field("held_bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_store::ManualClock;

    struct Silent(u64);

    impl DeviceProgram for Silent {
        fn session(&self) -> u64 {
            self.0
        }

        fn client(&self) -> &str {
            "silent"
        }

        fn send_share(&self, _: &DeviceShareParams) {}
    }

    #[test]
    fn report_counts_after_its_interval_and_a_silent_program_is_idle() {
        let clock = Arc::new(ManualClock::default());
        let broker = Arc::new(Broker::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let program = Arc::new(Silent(1)) as Arc<dyn DeviceProgram>;
        let device = "GPU-1".to_owned();
        let (demand_bytes, smallest_bytes) = (100, 10);
        let joining = JoinDeviceParams {
            device: device.clone(),
            capacity_bytes: 100,
            demand_bytes,
            smallest_bytes,
            held_bytes: 0,
        };
        let (share, answer) = broker.join(&program, joining).unwrap();
        assert_eq!(answer.share_bytes, 100);
        let report = ReportDeviceParams { device, demand_bytes, smallest_bytes };
        clock.advance(REPORT_INTERVAL_MIN - Duration::from_nanos(1));
        assert_eq!(broker.report(1, &report).unwrap_err().kind(), ErrorKind::Conflict);
        clock.advance(Duration::from_nanos(1));
        broker.report(1, &report).unwrap();
        let listed = |broker: &Broker| (broker.list()[0].programs[0].quiet_s, broker.list()[0].programs[0].busy);
        clock.advance(Duration::from_secs(4));
        assert_eq!(listed(&broker), (4.0, true));
        clock.advance(Duration::from_secs(1));
        assert_eq!(listed(&broker), (5.0, false));
        drop(share);
        assert!(broker.list().is_empty());
    }
}
