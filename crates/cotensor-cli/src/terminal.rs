//! Detects terminals that support escape sequences.

use std::io::IsTerminal;

/// Whether `stream` is a terminal that supports escape sequences: not a file, a pipe or a terminal of type `dumb`.
pub(crate) fn takes_escapes(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// Whether to use colours on `stream`: false when NO_COLOR is set.
pub(crate) fn takes_colours(stream: &impl IsTerminal) -> bool {
    takes_escapes(stream) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
