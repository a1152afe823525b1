//! The size of a huge page.

use std::sync::OnceLock;

/// The size of a huge page in bytes; `None` when the kernel has no transparent huge pages.
pub(crate) fn huge_page_bytes() -> Option<usize> {
    static BYTES: OnceLock<Option<usize>> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok()?;
        text.trim().parse().ok().filter(|bytes: &usize| bytes.is_power_of_two())
    })
}
