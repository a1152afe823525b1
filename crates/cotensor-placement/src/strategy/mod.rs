//! Strategies: what runs where, and what moves when.
//!
//! [`Flow`] plans. [`Genoa`], [`Pinned`], [`Lru`] and [`AllCpu`] are simpler ones, to compare with. A program may bring
//! its own: any value of [`Strategy`](crate::Strategy).

mod all_cpu;
mod flow;
mod genoa;
mod lru;
mod pinned;

pub use all_cpu::AllCpu;
pub use flow::{Flow, FlowState};
pub use genoa::Genoa;
pub use lru::Lru;
pub use pinned::Pinned;

#[cfg(test)]
mod tests;
