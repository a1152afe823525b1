//! Registering and finding functions, and connecting callers with providers.

use crate::dispatch::{Answer, Caller, NOTHING, Reply};
use crate::state::functions::FunctionProvider;
use cotensor_client::protocol::provider::ListTasksParams;
use cotensor_client::protocol::{
    AllTasks, AllTasksParams, CallerInfo, Empty, FoundFunction, FunctionList, FunctionNameParams, ListFunctionsParams,
    LookupFunctionParams, ProviderInfo, RegisterFunctionParams,
};
use cotensor_core::{Error, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The most providers in the list of a caller's connections.
const CONNECTED_MAX: usize = 1024;
/// The most tasks in one answer.
const TASKS_MAX: usize = 10_000;

pub(super) async fn register(caller: Caller, params: RegisterFunctionParams) -> Answer<Empty> {
    if caller.outbox().is_none() {
        return Err(Error::unsupported("functions are provided over the Unix socket"));
    }
    caller.daemon.functions.add(Arc::clone(&caller.session) as Arc<dyn FunctionProvider>, params)?;
    Ok(NOTHING.into())
}

pub(super) async fn unregister(caller: Caller, params: FunctionNameParams) -> Answer<Empty> {
    caller.daemon.functions.remove(caller.id, &params.name)?;
    Ok(NOTHING.into())
}

pub(super) async fn lookup(caller: Caller, params: LookupFunctionParams) -> Answer<FoundFunction> {
    let (found, provider) = caller.daemon.functions.find(&params.name)?;
    if params.connected.len() > CONNECTED_MAX {
        return Err(Error::invalid(format!("more than {CONNECTED_MAX} providers")).in_field("connected"));
    }
    if params.connected.contains(&found.provider.epoch) {
        return Ok(found.into());
    }
    if caller.outbox().is_none() {
        return Err(Error::unsupported("functions are called over the Unix socket"));
    }
    let (ours, theirs) = UnixStream::pair().map_err(|error| Error::io("connecting caller and provider", &error))?;
    let caller_info = CallerInfo { client: caller.client().to_owned() };
    if !provider.connect(&caller_info, theirs.into()) {
        // The provider's session has ended or ends now. The function was not called.
        let message = format!("function {:?} not found: its provider {} has ended", params.name, found.provider.client);
        return Err(Error::not_found(message).in_field("name"));
    }
    Ok(Reply::with_fds(found, vec![ours.into()]))
}

pub(super) async fn list(caller: Caller, params: ListFunctionsParams) -> Answer<FunctionList> {
    Ok(FunctionList { functions: caller.daemon.functions.list(&params.prefix) }.into())
}

pub(super) async fn tasks(caller: Caller, params: AllTasksParams) -> Answer<AllTasks> {
    let request = |(info, provider): (ProviderInfo, Arc<dyn FunctionProvider>)| {
        let params = ListTasksParams { state: params.state, limit: params.limit.min(TASKS_MAX) };
        let daemon = Arc::clone(&caller.daemon);
        tokio::task::spawn_blocking(move || daemon.tasks.of(info, &*provider, &params))
    };
    // Concurrently: a provider that does not answer must not delay the others.
    let pending: Vec<_> = caller.daemon.functions.providers().into_iter().map(request).collect();
    let mut providers = Vec::with_capacity(pending.len());
    let mut room = TASKS_MAX;
    for answer in pending {
        let mut answer = answer.await.map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        answer.left_off += answer.tasks.len().saturating_sub(room);
        answer.tasks.truncate(room);
        room -= answer.tasks.len();
        providers.push(answer);
    }
    Ok(AllTasks { providers }.into())
}
