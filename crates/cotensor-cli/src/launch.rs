//! Starts this program again: the daemon's server and the demo's workers are processes of the same program.

use cotensor::core::{Error, Result};
use cotensor_client::DaemonProgram;
use std::ffi::OsString;
use std::path::PathBuf;

/// How to start a further process of the program that runs the command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// By the executable of this process, whose arguments are the command's arguments.
    #[default]
    ThisProgram,
    /// By this executable with these arguments, followed by the command's arguments: for example an interpreter with
    /// `-m cotensor`.
    Command(PathBuf, Vec<OsString>),
}

/// This program and its arguments.
pub(crate) struct Program {
    pub(crate) launch: Launch,
    /// The command line without the program's name.
    pub(crate) arguments: Vec<OsString>,
    /// Variables of the daemon's further processes: the values of the configuration file.
    pub(crate) variables: Vec<(OsString, OsString)>,
}

impl Program {
    /// The executable, and the arguments before the command's arguments.
    ///
    /// # Errors
    /// `Io` when the path of the executable is unknown.
    pub(crate) fn command(&self) -> Result<(PathBuf, Vec<OsString>)> {
        match &self.launch {
            Launch::ThisProgram => {
                let program = std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
                Ok((program, Vec::new()))
            }
            Launch::Command(program, arguments) => Ok((program.clone(), arguments.clone())),
        }
    }

    /// The command line, as a shell reads it.
    pub(crate) fn command_line(&self) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./=:,+@%".contains(&byte);
        let quoted = |argument: &OsString| {
            let argument = argument.to_string_lossy();
            if !argument.is_empty() && argument.bytes().all(plain) {
                format!(" {argument}")
            } else {
                format!(" '{}'", argument.replace('\'', "'\\''"))
            }
        };
        std::iter::once("cotensor".to_owned()).chain(self.arguments.iter().map(quoted)).collect()
    }

    /// This program as daemon: `serve` and its options follow.
    ///
    /// # Errors
    /// As [`Program::command`].
    pub(crate) fn as_daemon(&self) -> Result<DaemonProgram> {
        let (program, arguments) = self.command()?;
        Ok(DaemonProgram::new(program, arguments))
    }

    /// The command line of this process, with which the daemon starts its further processes.
    ///
    /// # Errors
    /// As [`Program::command`].
    pub(crate) fn again(&self) -> Result<cotensor_daemon::Launch> {
        let (program, mut arguments) = self.command()?;
        arguments.extend(self.arguments.iter().cloned());
        Ok(cotensor_daemon::Launch::new(program, arguments).with_variables(self.variables.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_quoted_for_a_shell() {
        let arguments = ["demo", "--report=a.html", "it's <b>", ""].map(OsString::from).to_vec();
        let program = Program { launch: Launch::ThisProgram, arguments, variables: Vec::new() };
        assert_eq!(program.command_line(), r"cotensor demo --report=a.html 'it'\''s <b>' ''");
    }
}
