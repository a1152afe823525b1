//! `claim.*`: each result is computed by one session.

use crate::dispatch::{Answer, Caller, NOTHING, Reply};
use crate::state::session::{Granted, HANDLES_MAX};
use crate::state::{claim_key, content_hash};
use cotensor_client::protocol::{
    ClaimHolder, ClaimHolderParams, ClaimParams, ClaimResult, Computed, Empty, FinishParams, Id, KeyParams,
    TicketParams,
};
use cotensor_core::{Error, Result};
use cotensor_store::{Claim, ComputationStore, blob_key};
use cotensor_supervisor::Event;
use std::collections::HashSet;
use std::time::Duration;

pub(super) async fn begin(caller: Caller, params: ClaimParams) -> Answer<ClaimResult> {
    let key = claim_key(&params.key)?;
    let holder = caller.holder(&params.holder)?;
    let store = &caller.daemon.store;
    let wait = params.timeout_ms.map_or(Duration::MAX, Duration::from_millis).min(caller.daemon.config.claim_wait_max);
    let claim = tokio::time::timeout(wait, store.await_claim(&key, &holder))
        .await
        .map_err(|_| store.claim_timed_out(&key))??;
    match claim {
        Claim::Compute(ticket) => {
            // Recorded before the session has the ticket, because the end of the session records that the claim is
            // abandoned.
            caller.daemon.events.record(Event::Claimed(key.0.to_string()));
            let mut granted = Granted::new(&caller.session);
            let number = granted.ticket(ticket)?;
            Ok(Reply::granting(ClaimResult::Compute(number), granted))
        }
        Claim::Ready(leases) => {
            let mut granted = Granted::new(&caller.session);
            let value = leases.into_iter().map(|lease| granted.lease(lease, &holder)).collect::<Result<_>>()?;
            Ok(Reply::granting(ClaimResult::Ready(value), granted))
        }
    }
}

pub(super) async fn finish(caller: Caller, params: FinishParams) -> Answer<Empty> {
    // An error drops the ticket, which passes the claim to a waiting session.
    let mut ticket = caller.lock().tickets.take(params.ticket, "ticket")?;
    if params.results.is_empty() {
        return Err(Error::invalid("a computation without results cannot be shared: abandon it").in_field("results"));
    }
    if params.results.len() > HANDLES_MAX {
        return Err(Error::invalid(format!("more than {HANDLES_MAX} results")).in_field("results"));
    }
    let mut seen = HashSet::new();
    if !params.results.iter().all(|id| seen.insert((id.name_id, id.version))) {
        return Err(Error::invalid("a result is listed twice").in_field("results"));
    }
    let find = |id: &Id| {
        let lease = caller.lease_of((*id).into())?;
        if lease.key() == Some(ticket.key()) {
            Ok(lease)
        } else {
            Err(Error::invalid(format!("{} was not published under this ticket", lease.name())))
        }
    };
    let results = params.results.iter().map(find).collect::<Result<Vec<_>>>()?;
    ticket.finish(&results);
    Ok(NOTHING.into())
}

pub(super) async fn abandon(caller: Caller, params: TicketParams) -> Answer<Empty> {
    let ticket = caller.lock().tickets.take(params.ticket, "ticket")?;
    ticket.abandon();
    Ok(NOTHING.into())
}

pub(super) async fn is_computed(caller: Caller, params: KeyParams) -> Answer<Computed> {
    let computed = caller.daemon.store.is_computed(&claim_key(&params.key)?);
    Ok(Computed { computed }.into())
}

pub(super) async fn holder(caller: Caller, params: ClaimHolderParams) -> Answer<ClaimHolder> {
    let key =
        if params.is_blob { blob_key(&content_hash(&params.key)?, params.device) } else { claim_key(&params.key)? };
    let holder = caller.daemon.store.claim_holder(&key);
    Ok(ClaimHolder { holder: holder.map(|holder| holder.name().to_owned()) }.into())
}
