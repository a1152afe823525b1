//! The rest of a body whose request was refused before all of it arrived. Many clients read no answer before they have
//! sent everything: if the daemon closed the connection, they would see a broken pipe instead of the reason.

use super::context::Http;
use super::min_rate::time_for;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::Response;
use cotensor_core::sync::lock;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::time::Instant;

/// The longest rest that is read and dropped.
const DROPPED_BYTES_MAX: u64 = 256 << 20;

/// The body of a request, if its handler did not read all of it.
type Rest = Arc<Mutex<Option<Body>>>;

/// Reads the rest of a refused request's body before the answer.
pub(super) async fn drop_rest(State(http): State<Arc<Http>>, request: Request, next: Next) -> Response {
    // Such a client waits for the answer before it sends the body.
    let waits = request.headers().contains_key(EXPECT);
    let rest = Rest::default();
    let kept = Arc::clone(&rest);
    let request = request.map(|body| Body::new(Returned { body: Some(body), rest: kept }));
    let response = next.run(request).await;
    let body = lock(&rest).take();
    // A body without a length may have no end.
    let ends = |body: &Body| body.size_hint().exact().is_some_and(|rest| 0 < rest && rest <= DROPPED_BYTES_MAX);
    if let Some(body) = body.filter(|body| !waits && !response.status().is_success() && ends(body)) {
        drop_body(body, &http).await;
    }
    response
}

/// Reads a body to its end, as long as it comes in time.
async fn drop_body(mut body: Body, http: &Http) {
    let (start, mut dropped) = (Instant::now(), 0);
    while let Ok(Some(part)) =
        super::body::next(&mut body, start + http.config.message_timeout + time_for(dropped)).await
    {
        dropped += part.len() as u64;
    }
}

/// A body that is kept when its reader drops it.
struct Returned {
    body: Option<Body>,
    rest: Rest,
}

impl HttpBody for Returned {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        *lock(&self.rest) = self.body.take();
    }
}
