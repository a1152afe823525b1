//! Where in the arguments or the result of a function a value is, for errors: `argument 0["x"][2]`.

use std::fmt;

/// A value's place: of a whole one, or inside that of another. Written out when there is an error only.
pub(crate) struct Place<'a> {
    /// Levels below the whole.
    pub(crate) depth: usize,
    step: Step<'a>,
}

enum Step<'a> {
    Argument(usize),
    Whole(&'a str),
    At(&'a Place<'a>, usize),
    Key(&'a Place<'a>, &'a str),
}

impl<'a> Place<'a> {
    /// The argument at a position.
    pub(crate) fn argument(position: usize) -> Self {
        Self { depth: 0, step: Step::Argument(position) }
    }

    /// An argument of that name, or the result.
    pub(crate) fn whole(name: &'a str) -> Self {
        Self { depth: 0, step: Step::Whole(name) }
    }

    /// What is at a position of a list or a tuple.
    pub(crate) fn at(&'a self, position: usize) -> Self {
        Self { depth: self.depth + 1, step: Step::At(self, position) }
    }

    /// What is under a key of a dict.
    pub(crate) fn key(&'a self, key: &'a str) -> Self {
        Self { depth: self.depth + 1, step: Step::Key(self, key) }
    }

    /// How far down a place is written out: one that is deeper is told by how it begins.
    const SHOWN: usize = 8;
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (within, shown) = match self.step {
            Step::Argument(position) => return write!(f, "argument {position}"),
            Step::Whole(name) => return f.write_str(name),
            Step::At(within, position) => (within, format!("[{position}]")),
            Step::Key(within, key) => (within, format!("[{key:?}]")),
        };
        write!(f, "{within}")?;
        match self.depth {
            depth if depth <= Self::SHOWN => f.write_str(&shown),
            depth if depth == Self::SHOWN + 1 => f.write_str("…"),
            _ => Ok(()),
        }
    }
}
