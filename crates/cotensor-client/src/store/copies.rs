//! Copies that were made and not yet said: they go with the next publication, which most of them fill.

use super::link::Live;
use super::lock;
use crate::protocol as p;
use cotensor_store::CopyReason;
use std::sync::Mutex;

/// More than this are said at once.
const UNSAID_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Unsaid(Mutex<Vec<p::CopyParams>>);

impl Unsaid {
    pub(super) fn add(&self, live: &Live, tensor: &str, reason: CopyReason, bytes: usize) {
        let copy = p::CopyParams { tensor: tensor.to_owned(), reason: reason.name().to_owned(), bytes: bytes as u64 };
        let mut copies = lock(&self.0);
        copies.push(copy);
        let all = if copies.len() < UNSAID_MAX { Vec::new() } else { std::mem::take(&mut *copies) };
        drop(copies);
        tell(live, all);
    }

    /// What there is to say, for whoever says it.
    pub(super) fn take(&self) -> Vec<p::CopyParams> {
        std::mem::take(&mut lock(&self.0))
    }

    /// Says all of it now.
    pub(super) fn say(&self, live: &Live) {
        tell(live, self.take());
    }
}

fn tell(live: &Live, copies: Vec<p::CopyParams>) {
    if !copies.is_empty() {
        live.tell::<p::RecordCopies>(&p::CopiesParams { copies });
    }
}
