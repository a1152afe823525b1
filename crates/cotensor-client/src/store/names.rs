//! Names in the daemon's store, and waits for their changes.

use super::client_store::ClientStore;
use crate::protocol::{self as p, Method};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::{CallGroup, WaitLimit, Waited};
use cotensor_store::{
    ChangePosition, EveryVersion, NameChange, NameChanges, NameFilter, NameStore, NamedVersion, TensorId,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest wait of one call. The daemon's limit is longer.
const CALL_WAIT_MAX: Duration = Duration::from_secs(20);
/// How much longer than its wait a call may take.
const ANSWER_MARGIN: Duration = Duration::from_secs(30);
/// The longest wait for a word of the shared index. No process wakes its readers if the daemon's server and supervisor end together.
const INDEX_WAIT_MAX: Duration = Duration::from_millis(500);

impl NameStore for ClientStore {
    fn find_name(&self, name: &str) -> Result<Option<TensorId>> {
        let found = self.daemon.call::<p::FindName>(&p::NameParams { name: name.to_owned() })?.0;
        Ok(found.id.map(Into::into))
    }

    fn names(&self, prefix: &str) -> Result<Vec<NamedVersion>> {
        let mut names = Vec::new();
        let mut after = String::new();
        loop {
            let params = p::ListNamesParams { prefix: prefix.to_owned(), after, limit: p::NAMES_MAX };
            let page = self.daemon.call::<p::ListNames>(&params)?.0;
            let last = page.names.last().map(|listed| listed.name.clone());
            let listed = page.names.into_iter().map(|listed| NamedVersion { name: listed.name, id: listed.id.into() });
            names.extend(listed);
            after = match last {
                Some(last) if page.left_off > 0 => last,
                _ => return Ok(names),
            };
        }
    }

    fn count_names(&self, prefix: &str) -> Result<usize> {
        let params = p::ListNamesParams { prefix: prefix.to_owned(), after: String::new(), limit: 0 };
        Ok(self.daemon.call::<p::ListNames>(&params)?.0.left_off)
    }

    fn changes(
        &self,
        filter: &NameFilter,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges> {
        let params = |since, wait| changes_params(filter, since, wait);
        self.await_changes::<p::AwaitChanges>(&params, since, wait, keep_waiting)
    }

    fn versions(
        &self,
        every: &EveryVersion,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges> {
        let params = |since, wait| versions_params(every, since, wait);
        self.await_changes::<p::AwaitVersions>(&params, since, wait, keep_waiting)
    }

    fn end_versions(&self, position: ChangePosition) {
        // A queue ends with its session, too.
        self.session().notify::<p::EndVersions>(&p::EndVersionsParams { log: position.log });
    }
}

impl ClientStore {
    /// Waits while `id` is the newest version of `name`, at most for `timeout` and for half a second. It can also return earlier. False,
    /// without a wait, unless this process leases that version and the shared index of a daemon that runs has it: use [`NameStore::changes`] then.
    ///
    /// # Errors
    /// `Io`.
    pub fn wait_while_newest(&self, name: &str, id: TensorId, timeout: Duration) -> Result<bool> {
        let Some((index, slot)) = self.daemon.leases.slot_of(name, id) else { return Ok(false) };
        index.wait(slot.slot, slot.generation, timeout.min(INDEX_WAIT_MAX))
    }

    /// Repeats a call until there is a change or the wait ends.
    fn await_changes<M: Method<Result = p::Changes>>(
        &self,
        params: &dyn Fn(Option<ChangePosition>, Duration) -> M::Params,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges> {
        let end = Instant::now().checked_add(wait);
        let mut since = since;
        loop {
            let left = end.map_or(CALL_WAIT_MAX, |end| end.saturating_duration_since(Instant::now()));
            let left = left.min(CALL_WAIT_MAX);
            let changes = match self.changes_once::<M>(&params(since, left), left, keep_waiting) {
                Ok(changes) => changes,
                Err(error) => match (since, error.kind()) {
                    (Some(position), ErrorKind::Conflict) if !keep_waiting() => {
                        return Ok(NameChanges { position, changes: Vec::new(), incomplete: false, dropped: 0 });
                    }
                    _ => return Err(error),
                },
            };
            let passed = end.is_some_and(|end| Instant::now() >= end);
            if since.is_none() || changes.incomplete || !changes.changes.is_empty() || passed || !keep_waiting() {
                return Ok(changes);
            }
            since = Some(changes.position);
        }
    }

    /// One call, again in the next session when the daemon is replaced meanwhile.
    fn changes_once<M: Method<Result = p::Changes>>(
        &self,
        params: &M::Params,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges> {
        let deadline = Instant::now().checked_add(wait + ANSWER_MARGIN);
        // Without a report: the caller waits for an event.
        let limit = WaitLimit { deadline, keep_waiting: Some(keep_waiting), waiting: None };
        self.daemon.retry(|session| {
            match session.connection.send_call::<M>(params, Vec::new(), &limit)?.wait(&limit)? {
                Waited::Answer(answer) => changes_of(M::NAME, answer.response),
                Waited::LimitPassed(call) => {
                    // The answer has no lease, so it can be dropped.
                    session.connection.abandon(call, &Arc::new(CallGroup::default()));
                    Err(if limit.has_passed() {
                        Error::new(ErrorKind::TimedOut, "the daemon did not answer in time")
                    } else {
                        Error::new(ErrorKind::Conflict, "the caller stopped waiting")
                    })
                }
            }
        })
    }
}

/// The parameters of a wait. The daemon limits its time.
pub(super) fn changes_params(filter: &NameFilter, since: Option<ChangePosition>, wait: Duration) -> p::ChangesParams {
    let timeout_ms = wait.as_millis().try_into().unwrap_or(u64::MAX);
    p::ChangesParams { filter: filter.into(), since: since.map(Into::into), timeout_ms }
}

/// The parameters of a wait for every version.
pub(super) fn versions_params(
    every: &EveryVersion,
    since: Option<ChangePosition>,
    wait: Duration,
) -> p::VersionsParams {
    let timeout_ms = wait.as_millis().try_into().unwrap_or(u64::MAX);
    let EveryVersion { filter, versions_max, bytes_max, existing } = every;
    let (filter, since) = (filter.into(), since.map(Into::into));
    p::VersionsParams {
        filter,
        versions_max: *versions_max,
        bytes_max: *bytes_max,
        existing: *existing,
        since,
        timeout_ms,
    }
}

/// The changes of an answer to `method`.
pub(super) fn changes_of(method: &str, response: cotensor_rpc::Response) -> Result<NameChanges> {
    let value = response.outcome()?;
    let p::Changes { position, changes, incomplete, dropped } = serde_json::from_str(value.get())
        .map_err(|error| Error::corrupt(format!("the answer to {method}: {error}")))?;
    let each = changes.into_iter();
    let changes = each.map(|change| NameChange { name: change.name, id: change.id.map(Into::into) }).collect();
    Ok(NameChanges { position: position.into(), changes, incomplete, dropped })
}
