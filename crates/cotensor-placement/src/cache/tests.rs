use super::TinyLfu;

#[test]
fn loop_keeps_most_of_what_fits() {
    const TENSORS: usize = 80;
    const SLOTS: usize = 40;
    let sizes = [1; TENSORS];
    let mut cache = TinyLfu::default();
    let mut on_device: Vec<usize> = Vec::new();
    let mut misses = 0;
    for turn in 0..20 {
        misses = 0;
        for tensor in 0..TENSORS {
            cache.used(tensor, TENSORS);
            if on_device.contains(&tensor) {
                continue;
            }
            misses += 1;
            let full = on_device.len() == SLOTS;
            if full {
                let victim = cache.victim(&sizes, |other| on_device.contains(&other)).unwrap();
                on_device.retain(|&other| other != victim);
            }
            cache.came(tensor, full);
            on_device.push(tensor);
        }
        assert_eq!(on_device.len(), SLOTS, "turn {turn}");
    }
    assert!(misses <= 41, "{misses} of {TENSORS}");
}
