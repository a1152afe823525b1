//! Sessions, HTTP address, dashboard and method descriptions.

use super::answer::Answer;
use crate::dispatch::Caller;
use cotensor_client::protocol::{DashboardFile, Document, Empty, HttpEndpoint, SessionList, openrpc_with};
use cotensor_core::Error;

pub(super) async fn sessions(caller: Caller, _: Empty) -> Answer<SessionList> {
    Ok(SessionList { sessions: caller.daemon.session_infos() }.into())
}

pub(super) async fn http_address(caller: Caller, _: Empty) -> Answer<HttpEndpoint> {
    let dashboard = caller.daemon.dashboard()?;
    Ok(HttpEndpoint { address: dashboard.address, token_file: dashboard.token_file.clone() }.into())
}

pub(super) async fn open_dashboard(caller: Caller, _: Empty) -> Answer<DashboardFile> {
    Ok(DashboardFile { file: caller.daemon.dashboard()?.open()? }.into())
}

pub(super) async fn discover(caller: Caller, _: Empty) -> Answer<Document> {
    match openrpc_with(&caller.daemon.functions.list("")) {
        serde_json::Value::Object(fields) => Ok(Document { fields }.into()),
        _ => Err(Error::unsupported("the description is not an object")),
    }
}
