//! Sessions begin.

use super::{Answer, NOTHING};
use crate::dispatch::Caller;
use cotensor_client::protocol::{Empty, HelloParams, HelloResult, PROTOCOL, Sharing};
use cotensor_core::Error;
use cotensor_store::Store;

pub(super) async fn hello(caller: Caller, params: HelloParams) -> Answer<HelloResult> {
    if params.protocol != PROTOCOL {
        let message = format!("the daemon speaks protocol {PROTOCOL}, the client {}", params.protocol);
        return Err(Error::unsupported(message).in_field("protocol"));
    }
    caller.introduce(&params.client);
    let daemon = &caller.daemon;
    let resumed = match params.resume {
        Some(resume) => daemon.resume(&caller.session, &resume)?,
        None => Vec::new(),
    };
    let sharing = daemon.store.config();
    let allowed = sharing.allowed_types.as_ref();
    Ok(HelloResult {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        session: caller.id,
        token: daemon.token(caller.id),
        epoch: daemon.epoch,
        index_slots: 0,
        small_bytes_max: daemon.config.small_bytes_max,
        sharing: Sharing {
            enable_shared_tensors: sharing.enable_shared_tensors,
            allowed_types: allowed.map(|kinds| kinds.iter().map(|kind| kind.name().to_owned()).collect()),
            max_shared_tensor_size_bytes: sharing.max_shared_tensor_size_bytes,
        },
        resumed,
    }
    .into())
}

pub(super) async fn ping(_: Caller, _: Empty) -> Answer<Empty> {
    Ok(NOTHING.into())
}
