//! `session.hello` and `ping`.

use crate::dispatch::{Answer, Caller, NOTHING, Reply};
use crate::takeover::Resumed;
use cotensor_client::protocol::{Empty, HelloParams, HelloResult, PROTOCOL, Sharing};
use cotensor_core::{Error, ErrorKind};
use cotensor_memory::BLOCK_BYTES_MAX;
use cotensor_store::StoreReports;

pub(super) async fn hello(caller: Caller, params: HelloParams) -> Answer<HelloResult> {
    if params.protocol != PROTOCOL {
        let message = format!(
            "the daemon has protocol {PROTOCOL}, the client {}: end the daemon by `cotensor stop`, or install its version",
            params.protocol
        );
        return Err(Error::unsupported(message).in_field("protocol"));
    }
    caller.set_client(&params.client);
    let daemon = &caller.daemon;
    // Only a connection on the Unix socket carries descriptors. They come first: a failure after the resume would lose claims.
    let is_unix = caller.outbox().is_some();
    let index = is_unix.then(|| daemon.events.slots.fd()).transpose()?;
    if is_unix && params.resume.is_none() && daemon.disconnected().is_full_for(caller.pid.unwrap_or(0)) {
        let message = "too many closed stores still have tensors, also of this process: release their arrays";
        return Err(Error::new(ErrorKind::OverBudget, message));
    }
    let lock = if is_unix && params.lock { daemon.locks.lock(caller.id)? } else { None };
    let was = params.resume.as_ref().map(|resume| resume.session);
    let resumed = match params.resume {
        Some(resume) => daemon.resume(&caller.session, resume)?,
        None => Resumed::default(),
    };
    daemon.record_session(&caller.session, was, lock.is_some());
    if let Some(was) = was {
        // Afterwards: a server that dies in between leaves both sessions in the journal.
        daemon.end_wait(was);
    }
    caller.complete_hello();
    let sharing = daemon.store.config();
    let allowed = sharing.allowed_types.as_ref();
    let value = HelloResult {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        session: caller.id,
        token: daemon.token(caller.id),
        pid: caller.pid.and_then(|pid| pid.try_into().ok()),
        epoch: daemon.epoch,
        index_slots: if index.is_some() { daemon.events.slots.count() } else { 0 },
        small_bytes_max: daemon.config.small_bytes_max,
        block_bytes_max: if daemon.config.small_bytes_max > 0 { BLOCK_BYTES_MAX as u64 } else { 0 },
        sharing: Sharing {
            enable_shared_tensors: sharing.enable_shared_tensors,
            allowed_types: allowed.map(|kinds| kinds.iter().map(|kind| kind.name().to_owned()).collect()),
            max_shared_tensor_size_bytes: sharing.max_shared_tensor_size_bytes,
        },
        resumed: resumed.leases,
        tickets: resumed.tickets,
        shares: resumed.shares,
        locked: lock.is_some(),
    };
    Ok(Reply::with_fds(value, index.into_iter().chain(lock).collect()))
}

pub(super) async fn ping(_: Caller, _: Empty) -> Answer<Empty> {
    Ok(NOTHING.into())
}
