//! Verbose logging goes to Python's `logging`, under the name "cotensor".

use cotensor_sharing::SharedTensor;
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What happens is told while tensors are locked, and Python's handlers may do anything: another thread tells them.
enum Said {
    Line(String),
    /// Everything before it was told.
    Done(SyncSender<()>),
}

struct Teller {
    said: Mutex<Sender<Said>>,
    process: u32,
}

static TELLER: OnceLock<Teller> = OnceLock::new();

fn teller() -> &'static Teller {
    TELLER.get_or_init(|| {
        let (said, heard) = channel();
        std::thread::spawn(move || tell(&heard));
        Teller { said: Mutex::new(said), process: std::process::id() }
    })
}

fn tell(heard: &Receiver<Said>) {
    for said in heard {
        match said {
            Said::Line(line) => {
                // None when Python is going down.
                let told = Python::try_attach(|py| -> PyResult<()> {
                    py.import("logging")?
                        .call_method1("getLogger", ("cotensor",))?
                        .call_method1("info", ("%s", line))?;
                    Ok(())
                });
                if let Some(Err(error)) = told {
                    Python::try_attach(|py| error.print(py));
                }
            }
            Said::Done(waiting) => drop(waiting.try_send(())),
        }
    }
}

fn say(said: Said) {
    let teller = teller();
    // A forked child has no such thread.
    if teller.process == std::process::id() {
        drop(teller.said.lock().unwrap_or_else(PoisonError::into_inner).send(said));
    }
}

/// Turns it on or off for the whole process; what was said before is told when this returns.
pub(super) fn set_verbose(py: Python<'_>, verbose: bool) {
    py.detach(|| {
        SharedTensor::set_log_sink(Some(Arc::new(|line: &str| say(Said::Line(line.to_owned())))));
        SharedTensor::set_verbose_logging(verbose);
        let (done, waiting) = sync_channel(1);
        say(Said::Done(done));
        // An error says that there is no such thread here.
        let _ = waiting.recv();
    });
}
