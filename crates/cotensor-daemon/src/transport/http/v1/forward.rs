//! Forwards requests to the model process, which makes the answers.

use super::answer::openai_error;
use super::connections::Connections;
use crate::models::Models;
use crate::transport::http::answer::Refusal;
use crate::transport::http::body::{BodyMemory, ReadBody};
use crate::transport::http::config::HttpConfig;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use cotensor_core::{Error, ErrorKind};
use http_body_util::Full;
use hyper::body::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// The headers of a request that the model process gets.
const FORWARDED: [HeaderName; 2] = [CONTENT_TYPE, ACCEPT];
/// The headers of an answer that are about one connection.
const OF_CONNECTION: [HeaderName; 3] = [CONNECTION, TRANSFER_ENCODING, HeaderName::from_static("keep-alive")];
/// The time for a process that gave no answer to be seen as ended.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The model process, the connections to it, and the limits of requests.
pub(in crate::transport::http) struct Forwarder {
    models: Arc<Models>,
    connections: Connections,
    /// The memory for requests.
    memory: BodyMemory,
    bytes_max: usize,
    message_timeout: Duration,
    request_time_max: Duration,
}

impl Forwarder {
    pub(in crate::transport::http) fn new(models: Arc<Models>, config: &HttpConfig) -> Arc<Self> {
        Arc::new(Self {
            models,
            connections: Connections::default(),
            memory: BodyMemory::new(config.v1_total_bytes_max),
            bytes_max: config.v1_bytes_max,
            message_timeout: config.message_timeout,
            request_time_max: config.request_time_max,
        })
    }
}

/// Answers a request as the model process does; its errors, and those of this function, have the form of OpenAI's API.
pub(in crate::transport::http) async fn forward(State(forwarder): State<Arc<Forwarder>>, request: Request) -> Response {
    try_forward(&forwarder, request).await.unwrap_or_else(|refusal| openai_error(&refusal))
}

async fn try_forward(forwarder: &Forwarder, request: Request) -> Result<Response, Refusal> {
    if !forwarder.models.is_configured() {
        let message = "this daemon serves no models; a daemon that `cotensor serve` starts does";
        return Err(Refusal::new(StatusCode::NOT_FOUND, message));
    }
    let (parts, body) = request.into_parts();
    if parts.headers.contains_key(CONTENT_ENCODING) {
        let message = "the body is compressed: send it without Content-Encoding";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let ReadBody { bytes, memory: _until_answered } =
        forwarder.memory.read(body, forwarder.bytes_max, forwarder.message_timeout).await?;
    let answered = tokio::time::timeout(forwarder.request_time_max, send(forwarder, &parts, bytes.into())).await;
    let answer = answered.map_err(|_| Refusal::new(StatusCode::GATEWAY_TIMEOUT, "the models took too long"))??;
    let (mut head, body) = answer.into_parts();
    for name in OF_CONNECTION {
        head.headers.remove(name);
    }
    Ok(Response::from_parts(head, Body::new(body)))
}

/// Sends a request to the model process, which is started if none runs. If the process ends before it answers, the request is
/// sent once to the next one: requests to models have no effect but their answers.
async fn send(
    forwarder: &Forwarder,
    parts: &Parts,
    body: Bytes,
) -> Result<hyper::Response<hyper::body::Incoming>, Refusal> {
    let mut repeated = false;
    loop {
        let process = forwarder.models.ensure().await.map_err(|error| unavailable(&error))?;
        match forwarder.connections.send(&process, rebuilt(parts, body.clone())?).await {
            Ok(answer) => return Ok(answer),
            Err(reason) => {
                // It ends just now. The next request goes to another process.
                let _ = tokio::time::timeout(END_TIMEOUT, process.ended()).await;
                if repeated {
                    return Err(no_answer(&reason));
                }
                repeated = true;
            }
        }
    }
}

/// The request for the model process: without the token and the other headers of the client.
fn rebuilt(parts: &Parts, body: Bytes) -> Result<hyper::Request<Full<Bytes>>, Refusal> {
    let path = parts.uri.path_and_query().map_or("/v1", |path| path.as_str());
    let mut request = hyper::Request::new(Full::new(body));
    *request.method_mut() = parts.method.clone();
    let wrong = |_| Refusal::new(StatusCode::BAD_REQUEST, "the path is wrong");
    *request.uri_mut() = path.parse().map_err(wrong)?;
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    for name in FORWARDED {
        for value in parts.headers.get_all(&name) {
            request.headers_mut().append(name.clone(), value.clone());
        }
    }
    Ok(request)
}

fn no_answer(reason: &str) -> Refusal {
    let message =
        format!("the model process ended twice before it answered ({reason}); the daemon's log has the reason");
    Refusal::new(StatusCode::BAD_GATEWAY, message)
}

fn unavailable(error: &Error) -> Refusal {
    let status = match error.kind() {
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    Refusal::new(status, error.to_string())
}
