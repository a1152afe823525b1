//! Lists, holders and statistics.

use crate::daemon::Daemon;
use crate::dispatch::{Answer, Caller, NOTHING};
use cotensor_client::protocol::{
    CopiesParams, CopyParams, Empty, HoldersResult, ListOrder, ListParams, ListResult, NameParams, ReadyParams, Report,
    Spec, TensorInfo, TensorState,
};
use cotensor_core::{Error, Result};
use cotensor_memory::process::segment_group;
use cotensor_store::backend::Record;
use cotensor_store::{CopyReason, LocalStore, MemoryControl, SpilledTensorInfo, StoreReports, TensorId, check_name};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The most copies in one report.
const COPIES_MAX: usize = 64;
/// The most tensors in one answer.
const LIST_MAX: usize = 10_000;

fn describe(store: &LocalStore, record: &Record) -> TensorInfo {
    let holders = record.holders().into_iter().map(|(holder, count)| (holder.name().to_owned(), count));
    TensorInfo {
        id: record.id().into(),
        spec: Spec::from(&record.spec()),
        bytes: record.layout().size_bytes() as u64,
        device: record.segment().device().to_string(),
        age_s: store.age(record).as_secs_f64(),
        hits: record.hits(),
        holders: holders.collect(),
        state: record.state().into(),
        lost: None,
        charged_to: None,
        freed_in_s: freed_in_s(store, record.id()),
        member_count: record.members().map_or(0, |members| members.len()),
    }
}

fn freed_in_s(store: &LocalStore, id: TensorId) -> Option<f64> {
    store.freed_in(id).map(|time| time.as_secs_f64())
}

fn describe_spilled(store: &LocalStore, spilled: &SpilledTensorInfo) -> TensorInfo {
    let SpilledTensorInfo { tensor, age, lost } = spilled;
    TensorInfo {
        id: tensor.id.into(),
        spec: Spec::from(&tensor.spec),
        bytes: tensor.layout.size_bytes() as u64,
        device: tensor.spec.device.to_string(),
        age_s: age.as_secs_f64(),
        hits: 0,
        holders: BTreeMap::new(),
        state: TensorState::Spilled,
        lost: lost.clone(),
        charged_to: None,
        freed_in_s: freed_in_s(store, tensor.id),
        member_count: tensor.spec.members.as_ref().map_or(0, |members| members.len()),
    }
}

pub(super) async fn list(caller: Caller, params: ListParams) -> Answer<ListResult> {
    let store = &caller.daemon.store;
    let (mut all, mut spilled) = (store.records(&params.prefix), store.spilled(&params.prefix));
    let limit = params.limit.min(LIST_MAX);
    let left_off = (all.len() + spilled.len()).saturating_sub(limit);
    if params.order == ListOrder::Size {
        all.sort_by_key(|record| Reverse(record.layout().size_bytes()));
        spilled.sort_by_key(|spilled| Reverse(spilled.tensor.layout.size_bytes()));
    }
    let listed = all.iter().take(limit).map(|record| describe(store, record));
    let mut tensors: Vec<_> =
        listed.chain(spilled.iter().take(limit).map(|spilled| describe_spilled(store, spilled))).collect();
    tensors.sort_by(|a, b| (&a.spec.name, a.id.version).cmp(&(&b.spec.name, b.id.version)));
    if params.order == ListOrder::Size {
        tensors.sort_by_key(|tensor| Reverse(tensor.bytes));
    }
    tensors.truncate(limit);
    // Thousands of groups with thousands of members each would exceed a message. So would metadata.
    for tensor in &mut tensors {
        (tensor.spec.members, tensor.spec.metadata) = (Vec::new(), None);
    }
    Ok(ListResult { left_off, tensors }.into())
}

pub(super) async fn holders(caller: Caller, params: NameParams) -> Answer<HoldersResult> {
    let store = &caller.daemon.store;
    let all = store.records(&params.name);
    let named = all.iter().rev().filter(|record| record.name() == params.name);
    let spilled = store.spilled(&params.name);
    let of_name = spilled.iter().filter(|spilled| spilled.tensor.spec.name == params.name);
    let spilled = of_name.map(|spilled| describe_spilled(store, spilled));
    let in_memory = named.map(|record| {
        let charged_to = record.segment().fd().and_then(segment_group);
        TensorInfo { charged_to, ..describe(store, record) }
    });
    let versions: Vec<_> = spilled.chain(in_memory).collect();
    if versions.is_empty() {
        return Err(Error::not_found(format!("no tensor is named {:?}", params.name)).in_field("name"));
    }
    Ok(HoldersResult { versions }.into())
}

fn report(value: &impl serde::Serialize) -> Answer<Report> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::Object(fields)) => Ok(Report { fields }.into()),
        _ => Err(Error::unsupported("this report is not an object")),
    }
}

pub(super) async fn stats(caller: Caller, _: Empty) -> Answer<Report> {
    report(&caller.daemon.stats())
}

pub(super) async fn diagnostics(caller: Caller, _: Empty) -> Answer<Report> {
    report(&caller.daemon.store.diagnostics())
}

pub(super) async fn recommendations(caller: Caller, _: Empty) -> Answer<Report> {
    report(&caller.daemon.store.recommendations())
}

pub(super) async fn optimize(caller: Caller, _: Empty) -> Answer<Report> {
    report(&caller.daemon.store.optimize())
}

pub(super) async fn record_copies(caller: Caller, params: CopiesParams) -> Answer<Empty> {
    count_copies(&caller.daemon, &params.copies)?;
    Ok(NOTHING.into())
}

pub(super) async fn record_ready(caller: Caller, params: ReadyParams) -> Answer<Empty> {
    caller.session.lock().ready_for_calls = params.bytes;
    Ok(NOTHING.into())
}

/// Counts the copies that a client reports with a call.
///
/// # Errors
/// `Invalid` for too many copies or an unknown reason.
pub(super) fn count_copies(daemon: &Daemon, copies: &[CopyParams]) -> Result<()> {
    if copies.len() > COPIES_MAX {
        return Err(Error::invalid(format!("more than {COPIES_MAX} copies")).in_field("copies"));
    }
    copies.iter().try_for_each(|copy| count_copy(daemon, copy))
}

fn count_copy(daemon: &Daemon, copy: &CopyParams) -> Result<()> {
    check_name(&copy.tensor, "tensor")?;
    let reason = CopyReason::ALL.iter().find(|reason| reason.name() == copy.reason);
    let reason =
        reason.ok_or_else(|| Error::invalid(format!("{:?} is not a copy reason", copy.reason)).in_field("reason"))?;
    let bytes = usize::try_from(copy.bytes).map_err(|_| Error::invalid("too many bytes").in_field("bytes"))?;
    daemon.store.record_copy(&copy.tensor, *reason, bytes);
    Ok(())
}
