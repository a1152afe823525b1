/// A duration, or a point on the virtual clock, in nanoseconds.
pub type Nanos = u64;

/// Nanoseconds of a time in microseconds, rounded.
pub(crate) fn from_micros(micros: f64) -> Nanos {
    (micros * 1e3).round() as Nanos
}

/// Microseconds of a time in nanoseconds.
pub fn micros(nanos: f64) -> f64 {
    nanos / 1e3
}
