//! The `cotensor` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    cotensor_cli::main_with(std::env::args_os(), cotensor_cli::Launch::ThisProgram)
}
