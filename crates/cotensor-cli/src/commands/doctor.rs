use super::{print, print_json};
use crate::args::DoctorArgs;
use crate::table::plain;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor_inspect::doctor::{Diagnosis, State, diagnose};
use std::fmt::Write;

pub(crate) fn doctor(args: &DoctorArgs) -> Result<()> {
    let socket = args.client.socket.clone().unwrap_or_else(cotensor_client::default_socket);
    let diagnosis = diagnose(&socket);
    if args.client.json {
        print_json(&diagnosis)?;
    } else {
        print(&text(&diagnosis))?;
    }
    match diagnosis.broken {
        true => Err(Error::new(ErrorKind::Io, "something does not work here")),
        false => Ok(()),
    }
}

fn text(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        let mark = match finding.state {
            State::Ok => "ok",
            State::Note => "note",
            State::Slow => "SLOW",
            State::Broken => "BROKEN",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{mark:6} {:22} {}", finding.name, plain(&finding.value));
        if !finding.why.is_empty() {
            let _ = writeln!(text, "       {}", plain(&finding.why));
        }
    }
    text
}
