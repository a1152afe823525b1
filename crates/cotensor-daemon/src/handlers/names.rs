//! Listing names, and waiting for their changes.

use crate::dispatch::{Answer, Caller, NOTHING};
use cotensor_client::protocol::{
    ChangedName, Changes, ChangesParams, Empty, EndVersionsParams, FoundName, ListNamesParams, ListedName,
    NAMES_BYTES_MAX, NAMES_MAX, NameList, NameParams, VersionsParams,
};
use cotensor_store::{ChangesFuture, EveryVersion, NameChanges, NameFilter, NameStore, NamedVersion, check_name};
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
    let future = caller.daemon.store.watch_names(filter, params.since.map(Into::into));
    Ok(ready(future, params.timeout_ms).await.into())
}

pub(super) async fn versions(caller: Caller, params: VersionsParams) -> Answer<Changes> {
    let VersionsParams { filter, versions_max, bytes_max, existing, since, timeout_ms } = params;
    let filter = NameFilter::from(filter);
    check_name(filter.text(), "filter")?;
    let since = match since {
        Some(since) => since.into(),
        None => {
            let position = caller.open_versions(EveryVersion { filter, versions_max, bytes_max, existing })?;
            return Ok(Changes { position: position.into(), changes: Vec::new(), incomplete: false, dropped: 0 }.into());
        }
    };
    Ok(ready(caller.await_versions(since), timeout_ms).await.into())
}

pub(super) async fn end_versions(caller: Caller, params: EndVersionsParams) -> Answer<Empty> {
    caller.end_versions(params.log);
    Ok(NOTHING.into())
}

/// The changes when there are some, or none after the limit of time.
async fn ready(mut future: ChangesFuture, timeout_ms: u64) -> Changes {
    let wait = Duration::from_millis(timeout_ms).min(WAIT_MAX);
    let ready = tokio::time::timeout(wait, &mut future).await;
    let NameChanges { position, changes, incomplete, dropped } = ready.unwrap_or_else(|_| future.nothing());
    let each = changes.into_iter();
    let changes = each.map(|change| ChangedName { name: change.name, id: change.id.map(Into::into) }).collect();
    Changes { position: position.into(), changes, incomplete, dropped }
}
