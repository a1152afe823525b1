//! Progress on standard error: a bar on a terminal, plain lines elsewhere.

use cotensor_demo::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;

/// Shows steps to a person.
pub(crate) struct Steps {
    bar: Option<ProgressBar>,
    last: Mutex<String>,
}

impl Steps {
    pub(crate) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {percent:>3} % {msg} ({elapsed})");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, last: Mutex::default() }
    }
}

impl Progress for Steps {
    fn step(&self, done: u64, total: u64, what: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(what.to_owned());
            }
            None => {
                let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if *last != what {
                    eprintln!("{what}");
                    what.clone_into(&mut last);
                }
            }
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
