use crate::args::DoctorArgs;
use crate::output::{print, print_json};
use crate::table::plain;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor_inspect::doctor::{Diagnosis, Severity, diagnose};
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
        true => Err(Error::new(ErrorKind::Io, "a check failed; see the findings marked BROKEN")),
        false => Ok(()),
    }
}

fn text(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        let mark = match finding.severity {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Slow => "SLOW",
            Severity::Broken => "BROKEN",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{mark:6} {:22} {}", finding.name, plain(&finding.value));
        if !finding.advice.is_empty() {
            let _ = writeln!(text, "       {}", plain(&finding.advice));
        }
    }
    text
}
