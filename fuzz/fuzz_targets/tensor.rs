//! Descriptions of tensors in messages: accepted ones lie inside their segment and round-trip.
#![no_main]

use cotensor_client::protocol::{Descriptor, Spec};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(spec) = serde_json::from_slice::<Spec>(bytes)
        && let Ok(known) = spec.to_domain()
    {
        let again = Spec::from(&known);
        assert_eq!(Spec::from(&again.to_domain().expect("an accepted description round-trips")), again);
        assert!(!known.name.is_empty() && known.name.len() <= 1024);
    }
    if let Ok(descriptor) = serde_json::from_slice::<Descriptor>(bytes)
        && let Ok(layout) = descriptor.layout()
    {
        assert!(layout.byte_range().end as u64 <= descriptor.segment.bytes);
        assert_eq!(layout.shape(), descriptor.spec.shape);
        let _ = descriptor.spec.clone().with_layout(&layout).to_domain();
    }
});
