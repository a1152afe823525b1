//! Copies to report. The next publication reports them: most copies fill a tensor that is published next.

use super::session::Session;
use crate::protocol as p;
use cotensor_core::sync::lock;
use cotensor_store::CopyReason;
use std::sync::Mutex;

/// This many copies are reported without a publication.
const UNREPORTED_MAX: usize = 64;

#[derive(Default)]
pub(super) struct UnreportedCopies(Mutex<Vec<p::CopyParams>>);

impl UnreportedCopies {
    pub(super) fn add(&self, session: &Session, tensor: &str, reason: CopyReason, bytes: usize) {
        let copy = p::CopyParams { tensor: tensor.to_owned(), reason: reason.name().to_owned(), bytes: bytes as u64 };
        let mut copies = lock(&self.0);
        copies.push(copy);
        let all = if copies.len() < UNREPORTED_MAX { Vec::new() } else { std::mem::take(&mut *copies) };
        drop(copies);
        report(session, all);
    }

    /// Takes all copies, for a report by the caller.
    pub(super) fn take(&self) -> Vec<p::CopyParams> {
        std::mem::take(&mut lock(&self.0))
    }

    /// Reports all copies now.
    pub(super) fn report(&self, session: &Session) {
        report(session, self.take());
    }
}

fn report(session: &Session, copies: Vec<p::CopyParams>) {
    if !copies.is_empty() {
        session.notify::<p::RecordCopies>(&p::CopiesParams { copies });
    }
}
