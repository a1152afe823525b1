//! Handlers of the protocol's methods: each takes the caller and the parameters.

mod answer;
mod blobs;
mod broker;
mod channels;
mod claim;
mod functions;
mod key;
mod methods;
mod names;
mod notes;
mod report;
mod service;
mod session;
mod tensor;

pub(crate) use key::claim_key;
pub(crate) use methods::methods;
