//! Room for new tensors: unleased tensors are evicted, spilled, or freed when their time without leases has passed.

mod due;
mod make_room;
