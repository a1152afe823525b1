//! Values whose drop may wait for a device.

use cotensor::{Error, ErrorKind};
use cotensor_store::TensorSpec;
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long a reservation waits for the memory of dropped arrays. It is free when the work that this process has given to the device has
/// ended, which may be never: a kernel may wait for another process.
const RELEASES_TIMEOUT: Duration = Duration::from_secs(5);

/// A thread that drops values, and its process.
type Releaser = (u32, Option<Sender<Box<dyn Send>>>);

/// Waits until the values that were given to [`release_later`] before are dropped, for a limited time. False if some are not. The caller is
/// detached from Python.
fn wait_for_releases() -> bool {
    let (end, ended) = channel::<()>();
    release_later(Box::new(end));
    // The drop of `end` is the answer.
    ended.recv_timeout(RELEASES_TIMEOUT) != Err(RecvTimeoutError::Timeout)
}

/// The result of `reserve`, which is called again for memory of a device that has none left, once the memory of dropped arrays is free.
/// The caller is detached from Python.
///
/// # Errors
/// Those of `reserve`.
pub(crate) fn after_releases<T>(
    spec: TensorSpec,
    reserve: impl Fn(TensorSpec) -> Result<T, Error>,
) -> Result<T, Error> {
    if spec.device.is_host() {
        return reserve(spec);
    }
    match reserve(spec.clone()) {
        Err(error) if error.kind() == ErrorKind::OverBudget => {
            let device = spec.device;
            if wait_for_releases() {
                return reserve(spec);
            }
            let why = "arrays that this process has dropped keep their memory until its work on the device ends";
            Err(Error::new(error.kind(), format!("{}; {why} ({device})", error.message())))
        }
        outcome => outcome,
    }
}

/// Drops `value` on another thread. The end of device memory waits for the work of this process on the device, which may need Python:
/// the thread that drops an array must not wait for it.
pub(crate) fn release_later(value: Box<dyn Send>) {
    static RELEASER: OnceLock<Releaser> = OnceLock::new();
    let (process, sender) = RELEASER.get_or_init(|| {
        let (send, receive) = channel::<Box<dyn Send>>();
        let thread = std::thread::Builder::new().name("cotensor-release".to_owned());
        let started = thread.spawn(move || receive.into_iter().for_each(drop));
        (std::process::id(), started.ok().map(|_| send))
    });
    match sender {
        // A value that the thread no longer takes is dropped here, with the error.
        Some(sender) if *process == std::process::id() => drop(sender.send(value)),
        // A forked child has no such thread.
        _ => drop(value),
    }
}
