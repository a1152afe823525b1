//! Libraries of the fast engine that the model process loads while it runs.

use super::process::ModelProcess;
use cotensor_client::ShortPath;
use cotensor_client::protocol::ModelEngine;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;

/// The path of the process's endpoint for libraries.
const PATH: &str = "/engine";
/// The time for a library to be loaded. The process uses it later, too.
const TIMEOUT: Duration = Duration::from_secs(15);
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Names libraries to the process, which loads the best one if it has no fast engine. Returns the engine.
///
/// # Errors
/// The reason why there is no answer. The process goes on without the libraries.
pub(super) async fn add_libraries(process: &ModelProcess, libraries: &[PathBuf]) -> Result<ModelEngine, String> {
    let answered = tokio::time::timeout(TIMEOUT, send(process, libraries)).await;
    answered.map_err(|_| format!("no answer within {} s", TIMEOUT.as_secs()))?
}

async fn send(process: &ModelProcess, libraries: &[PathBuf]) -> Result<ModelEngine, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let path = ShortPath::of(&process.path).map_err(|error| failed(&error))?;
    let stream = UnixStream::connect(path).await.map_err(|error| failed(&error))?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    // Ends when the sender is dropped.
    tokio::spawn(async move { drop(connection.await) });
    let body = Full::new(Bytes::from(json!({"libraries": libraries}).to_string()));
    let request = Request::post(PATH).header(HOST, "localhost").header(CONTENT_TYPE, "application/json").body(body);
    let answer = sender.send_request(request.map_err(|error| failed(&error))?).await.map_err(|error| failed(&error))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| failed(&error))?;
    if status.is_success() {
        serde_json::from_slice(&body.to_bytes()).map_err(|error| failed(&error))
    } else {
        Err(format!("it answered {status}"))
    }
}
