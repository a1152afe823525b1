//! The position of a value in arguments or a result, for errors: `argument 0["x"][2]`.

use std::fmt;

/// The path of a value inside an argument or a result. It is formatted for errors only.
pub(crate) struct ValuePath<'a> {
    /// Nesting levels.
    pub(crate) depth: usize,
    step: Step<'a>,
}

enum Step<'a> {
    Argument(usize),
    Named(&'a str),
    At(&'a ValuePath<'a>, usize),
    Key(&'a ValuePath<'a>, &'a str),
}

impl<'a> ValuePath<'a> {
    /// A positional argument.
    pub(crate) fn argument(position: usize) -> Self {
        Self { depth: 0, step: Step::Argument(position) }
    }

    /// A named argument, or the result.
    pub(crate) fn named(name: &'a str) -> Self {
        Self { depth: 0, step: Step::Named(name) }
    }

    /// An item of a list or a tuple.
    pub(crate) fn at(&'a self, position: usize) -> Self {
        Self { depth: self.depth + 1, step: Step::At(self, position) }
    }

    /// A value of a dict.
    pub(crate) fn key(&'a self, key: &'a str) -> Self {
        Self { depth: self.depth + 1, step: Step::Key(self, key) }
    }

    /// The levels that are shown. A deeper path is cut.
    const SHOWN_MAX: usize = 8;
}

impl fmt::Display for ValuePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (within, shown) = match self.step {
            Step::Argument(position) => return write!(f, "argument {position}"),
            Step::Named(name) => return f.write_str(name),
            Step::At(within, position) => (within, format!("[{position}]")),
            Step::Key(within, key) => (within, format!("[{key:?}]")),
        };
        write!(f, "{within}")?;
        match self.depth {
            depth if depth <= Self::SHOWN_MAX => f.write_str(&shown),
            depth if depth == Self::SHOWN_MAX + 1 => f.write_str("…"),
            _ => Ok(()),
        }
    }
}
