//! DLPack, versions 0 and 1: arrays as capsules, out and in.

pub(crate) mod abi;
pub(crate) mod from_capsule;
pub(crate) mod to_capsule;
