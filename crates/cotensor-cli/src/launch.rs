//! How this program is started again: the daemon's server and the demo's workers are processes of it.

use cotensor::core::{Error, Result};
use cotensor_daemon::keeper;
use std::ffi::OsString;
use std::path::PathBuf;

/// How the program that runs the command is started again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// It is the program of this process, and its arguments are the command's.
    #[default]
    ThisProgram,
    /// By this program with these arguments, and those of the command behind them: an interpreter with `-m cotensor`, say.
    Command(PathBuf, Vec<OsString>),
}

/// This program, and what it was started with.
pub(crate) struct Program {
    pub(crate) launch: Launch,
    /// The command line without the program's name.
    pub(crate) arguments: Vec<OsString>,
}

impl Program {
    /// The program, and the arguments that come before a command's own.
    ///
    /// # Errors
    /// `Io` when the system does not tell which program this is.
    pub(crate) fn command(&self) -> Result<(PathBuf, Vec<OsString>)> {
        match &self.launch {
            Launch::ThisProgram => {
                let program = std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
                Ok((program, Vec::new()))
            }
            Launch::Command(program, arguments) => Ok((program.clone(), arguments.clone())),
        }
    }

    /// How a process of the daemon starts another one: as this one was.
    ///
    /// # Errors
    /// As [`Program::command`].
    pub(crate) fn again(&self) -> Result<keeper::Launch> {
        let (program, mut arguments) = self.command()?;
        arguments.extend(self.arguments.iter().cloned());
        Ok(keeper::Launch::new(program, arguments))
    }
}
