//! The number of mappings of this process, which `vm.max_map_count` limits.
//!
//! Beyond the limit every allocation that needs a mapping fails, of any library: threads do not start, and programs
//! abort. Cotensor leaves a part of the mappings to the rest of the program.

use cotensor_core::{Error, ErrorKind, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The kernel's default of `vm.max_map_count`.
const DEFAULT_MAX: usize = 65_530;

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// One counted mapping, until the drop.
pub(super) struct Counted(());

impl Counted {
    /// # Errors
    /// `OverBudget` at the limit.
    pub(super) fn new() -> Result<Self> {
        static MAX: OnceLock<usize> = OnceLock::new();
        let max = *MAX.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
            text.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_MAX)
        });
        let counted = Self(());
        if COUNT.fetch_add(1, Ordering::Relaxed) < limit(max) { Ok(counted) } else { Err(over_limit(max)) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Mappings of tensors among `max` mappings of the process. The others are for libraries, threads and heaps.
fn limit(max: usize) -> usize {
    max - max / 4
}

fn over_limit(max: usize) -> Error {
    let message = format!(
        "this process has reached its limit of {} mappings for tensors, of {max} that vm.max_map_count allows: release \
         tensors and arrays, or raise the limit (`sysctl -w vm.max_map_count={}`)",
        limit(max),
        4 * max.max(DEFAULT_MAX)
    );
    Error::new(ErrorKind::OverBudget, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_counted_and_the_error_names_the_setting() {
        let before = COUNT.load(Ordering::Relaxed);
        let counted: Vec<_> = (0..10).map(|_| Counted::new().unwrap()).collect();
        // Other tests may run in this process.
        assert!(COUNT.load(Ordering::Relaxed) >= before.min(10));
        drop(counted);
        assert_eq!((limit(65_530), limit(0)), (49_148, 0));
        let error = over_limit(65_530);
        assert!(
            error.kind() == ErrorKind::OverBudget && error.message().contains("vm.max_map_count=262120"),
            "{error}"
        );
    }
}
