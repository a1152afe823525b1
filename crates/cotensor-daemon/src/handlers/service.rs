//! Sessions, processes, HTTP address, dashboard and method descriptions.

use crate::dispatch::{Answer, Caller, NOTHING};
use crate::models::checked;
use cotensor_client::protocol::{
    DaemonStatus, DashboardFile, Document, Empty, HttpEndpoint, HttpListenParams, LibraryParams, ModelEndpoint,
    OfferedLibrary, SessionList, openrpc_with,
};
use cotensor_core::{Error, ErrorKind};
use cotensor_store::StoreReports;
use cotensor_supervisor::stop_this_process;

pub(super) async fn sessions(caller: Caller, _: Empty) -> Answer<SessionList> {
    Ok(SessionList { sessions: caller.daemon.session_infos() }.into())
}

pub(super) async fn status(caller: Caller, _: Empty) -> Answer<DaemonStatus> {
    let daemon = &caller.daemon;
    let models = daemon.models.running();
    let status = DaemonStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        server: std::process::id(),
        supervisor: daemon.events.link.as_ref().and_then(|link| link.supervisor()),
        clients: daemon.clients(),
        uptime_s: daemon.store.stats().counted_seconds,
        idle_exit_s: daemon.config.idle_exit.map(|idle| idle.as_secs_f64()),
        http: daemon.http().ok().map(|http| http.address().to_string()),
        engine: models.as_ref().and_then(|process| process.engine()),
        models: models.map(|process| process.pid),
    };
    Ok(status.into())
}

pub(super) async fn stop(caller: Caller, _: Empty) -> Answer<Empty> {
    if caller.outbox().is_none() {
        return Err(Error::new(ErrorKind::Refused, "only a client on the Unix socket can end the daemon"));
    }
    if caller.daemon.events.link.is_none() {
        let message = format!("this daemon is a part of process {} and ends with it", std::process::id());
        return Err(Error::new(ErrorKind::Refused, message));
    }
    stop_this_process();
    Ok(NOTHING.into())
}

pub(super) async fn http_address(caller: Caller, _: Empty) -> Answer<HttpEndpoint> {
    endpoint(&caller)
}

fn endpoint(caller: &Caller) -> Answer<HttpEndpoint> {
    let http = caller.daemon.http()?;
    let models = caller.daemon.models.is_configured();
    let v1_token_file = models.then(|| http.v1_token_file().to_path_buf());
    Ok(HttpEndpoint { address: http.address(), token_file: http.token_file().to_path_buf(), v1_token_file }.into())
}

pub(super) async fn listen(caller: Caller, params: HttpListenParams) -> Answer<HttpEndpoint> {
    if caller.outbox().is_none() {
        return endpoint(&caller);
    }
    (caller.daemon.start_http)(&caller.daemon, params.port).await?;
    endpoint(&caller)
}

pub(super) async fn start_models(caller: Caller, _: Empty) -> Answer<ModelEndpoint> {
    let process = caller.daemon.models.ensure().await?;
    Ok(ModelEndpoint { socket: process.path.clone(), pid: process.pid }.into())
}

pub(super) async fn offer_library(caller: Caller, params: LibraryParams) -> Answer<OfferedLibrary> {
    if !caller.daemon.models.is_configured() {
        return Err(Error::unsupported("this daemon serves no models"));
    }
    let library = checked(&params.library, caller.pid)?;
    Ok(OfferedLibrary { engine: caller.daemon.models.offer(library).await }.into())
}

pub(super) async fn open_dashboard(caller: Caller, _: Empty) -> Answer<DashboardFile> {
    Ok(DashboardFile { file: caller.daemon.http()?.open_dashboard()? }.into())
}

pub(super) async fn discover(caller: Caller, _: Empty) -> Answer<Document> {
    match openrpc_with(&caller.daemon.functions.list("")) {
        serde_json::Value::Object(fields) => Ok(Document { fields }.into()),
        _ => Err(Error::unsupported("the description is not an object")),
    }
}
