//! Verbose logging by Python's `logging`, under the name "cotensor".

use cotensor_core::sync::lock;
use cotensor_sharing::SharedTensor;
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};

/// A message to the logging thread. Events occur while tensors are locked, and Python's handlers may run any code, so a
/// separate thread logs them.
enum Message {
    Line(String),
    /// Confirms that every earlier line was logged.
    Flush(SyncSender<()>),
}

struct Logger {
    messages: Mutex<Sender<Message>>,
    process: u32,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

fn logger() -> &'static Logger {
    LOGGER.get_or_init(|| {
        let (messages, received) = channel();
        std::thread::spawn(move || log_all(&received));
        Logger { messages: Mutex::new(messages), process: std::process::id() }
    })
}

fn log_all(messages: &Receiver<Message>) {
    for message in messages {
        match message {
            Message::Line(line) => {
                // `None` while the interpreter shuts down.
                let logged = Python::try_attach(|py| -> PyResult<()> {
                    py.import("logging")?
                        .call_method1("getLogger", ("cotensor",))?
                        .call_method1("info", ("%s", line))?;
                    Ok(())
                });
                if let Some(Err(error)) = logged {
                    Python::try_attach(|py| error.print(py));
                }
            }
            Message::Flush(done) => drop(done.try_send(())),
        }
    }
}

fn send(message: Message) {
    let logger = logger();
    // A forked child has no logging thread.
    if logger.process == std::process::id() {
        let _ = lock(&logger.messages).send(message);
    }
}

/// Turns logging of the whole process on or off. Returns after all earlier events are logged.
pub(super) fn set_verbose(py: Python<'_>, verbose: bool) {
    py.detach(|| {
        SharedTensor::set_log_sink(Some(Arc::new(|line: &str| send(Message::Line(line.to_owned())))));
        SharedTensor::set_verbose_logging(verbose);
        let (done, flushed) = sync_channel(1);
        send(Message::Flush(done));
        // An error means that this process has no logging thread.
        let _ = flushed.recv();
    });
}
