//! The `cotensor` command.
fn main() {}
