//! Memory that is kept for later segments.

use std::time::Instant;

/// Memory that is kept for later segments and that none uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unused {
    /// Its bytes.
    pub bytes: usize,
    /// Since when the part is unused that was used least recently. `None` without bytes.
    pub since: Option<Instant>,
}

impl Unused {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let since = self.since.into_iter().chain(other.since).min();
        Self { bytes: self.bytes + other.bytes, since }
    }
}

impl FromIterator<(usize, Instant)> for Unused {
    /// Of parts: the bytes of each, and since when it is unused.
    fn from_iter<T: IntoIterator<Item = (usize, Instant)>>(parts: T) -> Self {
        let of = |(bytes, since)| Self { bytes, since: Some(since) };
        parts.into_iter().map(of).fold(Self::default(), Self::and)
    }
}
