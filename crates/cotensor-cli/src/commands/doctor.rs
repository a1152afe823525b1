use crate::args::DoctorArgs;
use crate::launch::Program;
use crate::output::{print, print_json};
use crate::table::plain;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::model::engine::{EngineInfo, Engines};
use cotensor_inspect::doctor::{Diagnosis, Finding, Role, Severity, diagnose, hold, produce};
use std::fmt::Write;
use std::process::Command;

pub(crate) fn doctor(args: &DoctorArgs, program: &Program) -> Result<()> {
    if let Some(ordinal) = args.produce {
        return produce(ordinal);
    }
    if args.hold {
        return hold();
    }
    let socket = args.client.socket.clone().unwrap_or_else(cotensor_client::default_socket);
    let mut diagnosis = diagnose(&socket, |role| {
        let (program, arguments) = program.command()?;
        let mut command = Command::new(program);
        command.args(arguments).arg("doctor");
        match role {
            Role::Produce(device) => command.args(["--produce", &device.ordinal.to_string()]),
            Role::Hold => command.arg("--hold"),
        };
        Ok(command)
    });
    diagnosis.findings.push(own_engine());
    if args.client.json {
        print_json(&diagnosis)?;
    } else {
        print(&text(&diagnosis))?;
    }
    if diagnosis.broken {
        Err(Error::new(ErrorKind::Io, "a check failed; see the findings marked BROKEN"))
    } else {
        Ok(())
    }
}

/// The engine with which this installation runs models: that of a model process that it starts.
fn own_engine() -> Finding {
    let name = "engine";
    let EngineInfo { name: engine, version, library, absent } = match Engines::of_environment(None) {
        Ok(engines) => engines.describe(),
        Err(error) => {
            let advice = "models of this installation cannot run; COTENSOR_ENGINE names their engine".to_owned();
            return Finding { name, severity: Severity::Slow, value: error.to_string(), advice };
        }
    };
    let library = library.map_or_else(|| "part of cotensor".to_owned(), |library| library.display().to_string());
    let severity = if absent.is_empty() { Severity::Ok } else { Severity::Note };
    let advice =
        absent.iter().map(|reason| format!("the fast engine cannot be used: {reason}")).collect::<Vec<_>>().join("; ");
    Finding { name, severity, value: format!("{engine} {version} ({library}), of this installation"), advice }
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
