//! The cores that this process may use.

/// The number of threads that this process may run at a time, if it may not use all cores. By default, onnxruntime makes a thread
/// for each core of the machine and binds it to that core.
pub(super) fn limited_threads() -> Option<usize> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let allowed = std::thread::available_parallelism().ok()?.get();
    (allowed < cores_in(online.trim())?).then_some(allowed)
}

/// The number of cores in a list of the kernel, such as `0-3,8`.
fn cores_in(list: &str) -> Option<usize> {
    let count = |range: &str| match range.split_once('-') {
        Some((first, last)) => (last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)?).checked_add(1),
        None => range.parse::<usize>().ok().map(|_| 1),
    };
    list.split(',').map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::cores_in;

    #[test]
    fn cores_of_a_list_are_counted() {
        assert_eq!([cores_in("0-3,8"), cores_in("0"), cores_in("0-1")], [Some(5), Some(1), Some(2)]);
        assert_eq!([cores_in(""), cores_in("3-1"), cores_in("a-b")], [None; 3]);
    }
}
