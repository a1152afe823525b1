//! Listing names, and waiting for their changes.

use super::answer::Answer;
use crate::dispatch::Caller;
use cotensor_client::protocol::{
    ChangedName, Changes, ChangesParams, FoundName, ListNamesParams, ListedName, NAMES_BYTES_MAX, NAMES_MAX, NameList,
    NameParams,
};
use cotensor_store::{NameFilter, NameStore, NamedVersion, check_name};
use std::time::Duration;

/// The longest wait of one call. The client repeats it.
const WAIT_MAX: Duration = Duration::from_secs(30);

pub(super) async fn find(caller: Caller, params: NameParams) -> Answer<FoundName> {
    let id = caller.daemon.store.find_name(&params.name)?;
    Ok(FoundName { id: id.map(Into::into) }.into())
}

pub(super) async fn list(caller: Caller, params: ListNamesParams) -> Answer<NameList> {
    let limit = params.limit.min(NAMES_MAX);
    let store = &caller.daemon.store;
    if limit == 0 && params.after.is_empty() {
        return Ok(NameList { names: Vec::new(), left_off: store.count_names(&params.prefix)? }.into());
    }
    let all = store.names(&params.prefix)?;
    let rest = &all[all.partition_point(|named| named.name <= params.after)..];
    let mut bytes = 0;
    let fits = |named: &&NamedVersion| {
        bytes += named.name.len();
        bytes <= NAMES_BYTES_MAX
    };
    let names = rest.iter().take(limit).take_while(fits);
    let names: Vec<_> = names.map(|named| ListedName { name: named.name.clone(), id: named.id.into() }).collect();
    Ok(NameList { left_off: rest.len() - names.len(), names }.into())
}

pub(super) async fn changes(caller: Caller, params: ChangesParams) -> Answer<Changes> {
    let filter = NameFilter::from(params.filter);
    check_name(filter.text(), "filter")?;
    let wait = Duration::from_millis(params.timeout_ms).min(WAIT_MAX);
    let mut future = caller.daemon.store.watch_names(filter, params.since.map(Into::into));
    let ready = tokio::time::timeout(wait, &mut future).await;
    let changes = ready.unwrap_or_else(|_| future.nothing());
    let each = changes.changes.into_iter();
    let changed = each.map(|change| ChangedName { name: change.name, id: change.id.map(Into::into) }).collect();
    let (position, incomplete) = (changes.position.into(), changes.incomplete);
    Ok(Changes { position, changes: changed, incomplete }.into())
}
