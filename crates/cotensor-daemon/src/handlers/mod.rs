//! Handlers of the protocol's methods: each takes the caller and the parameters.

mod blobs;
mod broker;
mod channels;
mod claim;
mod functions;
mod methods;
mod names;
mod notes;
mod report;
mod service;
mod session;
mod tensor;

pub(crate) use methods::methods;
