//! One copy of every tensor per machine.
