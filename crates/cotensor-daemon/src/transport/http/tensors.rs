//! The bytes of tensors over HTTP: contiguous, row-major, little-endian.

use super::answer::{Refusal, json};
use super::body::next;
use super::context::Http;
use super::min_rate::time_for;
use super::range::{Wanted, wanted};
use crate::descriptors::room_for;
use crate::state::segment::Upload;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH,
    IF_RANGE, RANGE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use cotensor_client::protocol::{Id, Keep, Spec};
use cotensor_core::{Device, Error, size};
use cotensor_formats::npy_header;
use cotensor_store::{CopyReason, Lease, LocalStore, StoreReports, TensorStore};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

const DTYPE: HeaderName = HeaderName::from_static("cotensor-dtype");
const SHAPE: HeaderName = HeaderName::from_static("cotensor-shape");
const KIND: HeaderName = HeaderName::from_static("cotensor-kind");
const VERSION: HeaderName = HeaderName::from_static("cotensor-version");
/// Bytes that are read and sent at a time.
const PIECE_BYTES: usize = 256 << 10;

/// The query of a download.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetQuery {
    #[serde(default)]
    format: BytesFormat,
}

/// The form in which the elements are sent.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BytesFormat {
    /// The elements only.
    #[default]
    Raw,
    /// A file of numpy.
    Npy,
}

/// The bytes of the newest version of a name, or a range of them. The tensor is leased until they are sent.
pub(super) async fn get(
    State(http): State<Arc<Http>>,
    method: Method,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<GetQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let Query(GetQuery { format }) = query.map_err(|error| Error::invalid(error.body_text()).in_field("query"))?;
    let name = name_in(name)?;
    let call = http.sessions.call(&http.daemon, &headers)?;
    let store = Arc::clone(&http.daemon.store);
    let lease = store.get(&name, &call.session.holder("")?)?;
    if !lease.device().is_host() {
        let message = format!("the daemon cannot read {}; a client on its machine can", lease.device());
        return Err(Error::unsupported(message).in_field(name).into());
    }
    if !lease.layout().is_contiguous() {
        return Err(Error::unsupported("a strided tensor is not served over HTTP: publish a contiguous copy").into());
    }
    let head = match format {
        BytesFormat::Raw => Vec::new(),
        BytesFormat::Npy => npy_header(lease.dtype(), lease.shape()).map_err(|_| {
            let message = format!("numpy has no {}: leave out format=npy for the elements only", lease.dtype());
            Error::unsupported(message).in_field("format")
        })?,
    };
    let len = head.len() as u64 + lease.layout().size_bytes() as u64;
    let form = if format == BytesFormat::Npy { "-npy" } else { "" };
    let tag = format!("\"{}-{}-{}{form}\"", http.daemon.epoch, lease.id().name_id, lease.id().version);
    let text = |header| headers.get(header).and_then(|value: &HeaderValue| value.to_str().ok());
    let mut about = describe(&lease);
    about.insert(ETAG, ascii(&tag));
    about.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if format == BytesFormat::Npy {
        about.insert(CONTENT_DISPOSITION, ascii(&format!("attachment; filename=\"{}.npy\"", file_name(&name))));
    }
    if text(IF_NONE_MATCH).is_some_and(|known| known == "*" || known.split(',').any(|known| known.trim() == tag)) {
        return Ok((StatusCode::NOT_MODIFIED, about).into_response());
    }
    // A range of another version does not match the client's other ranges.
    let same = text(IF_RANGE).is_none_or(|known| known == tag);
    let selection = text(RANGE).filter(|_| same).map_or(Wanted::All, |header| wanted(header, len));
    let (status, range) = match selection {
        Wanted::All => (StatusCode::OK, 0..len),
        Wanted::Part(range) => {
            about.insert(CONTENT_RANGE, ascii(&format!("bytes {}-{}/{len}", range.start, range.end - 1)));
            (StatusCode::PARTIAL_CONTENT, range)
        }
        Wanted::Nothing => {
            about.insert(CONTENT_RANGE, ascii(&format!("bytes */{len}")));
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, about).into_response());
        }
    };
    about.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if method == Method::HEAD {
        about.insert(CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
        return Ok((status, about).into_response());
    }
    Ok((status, about, Body::new(Pieces::new(store, lease, &head, range))).into_response())
}

/// The query of a publication.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutQuery {
    dtype: String,
    /// Dimensions, separated by commas; empty for a scalar.
    #[serde(default)]
    shape: String,
    /// `cpu` if it is missing, the only device whose memory HTTP fills.
    #[serde(default)]
    device: Option<String>,
    kind: Option<String>,
    space: Option<String>,
    #[serde(default)]
    producer: String,
    #[serde(default)]
    keep: Keep,
    keep_ms: Option<u64>,
}

/// The answer to a publication.
#[derive(Serialize)]
struct Published {
    id: Id,
    spec: Spec,
    bytes: u64,
    /// Whether the session has a lease of it.
    leased: bool,
}

/// Publishes the body under a name. Its memory grows with the body and is sealed at the end.
pub(super) async fn put(
    State(http): State<Arc<Http>>,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<PutQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(|error| Error::invalid(error.body_text()).in_field("query"))?;
    let spec = spec_of(name_in(name)?, query)?.to_domain()?;
    let layout = spec.layout()?;
    let bytes = layout.size_bytes() as u64;
    let Some(sent) = body.size_hint().exact() else {
        return Err(Refusal::new(StatusCode::LENGTH_REQUIRED, "a tensor's Content-Length is required"));
    };
    if sent.max(bytes) > http.config.tensor_bytes_max {
        let message = format!("a tensor has at most {} here", size(http.config.tensor_bytes_max));
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    if sent != bytes {
        return Err(Error::invalid(format!("{bytes} bytes by dtype and shape, {sent} sent")).in_field("shape").into());
    }
    let call = http.sessions.call(&http.daemon, &headers)?;
    let holder = call.session.holder("")?;
    let store = &http.daemon.store;
    let upload = Upload::new(&spec.name, bytes, store.grant_growing(&spec)?, store, room_for)?;
    let lease = receive(&http, body, upload).await?.publish(spec, layout, store, &holder)?;
    let published = Published { id: lease.id().into(), spec: Spec::from(&lease.spec()), bytes, leased: call.is_kept() };
    if call.is_kept() {
        call.session.grant(lease, &holder, &mut Vec::new())?;
    }
    Ok(json(StatusCode::CREATED, &published))
}

/// Removes a name.
pub(super) async fn delete(
    State(http): State<Arc<Http>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Refusal> {
    http.daemon.store.remove(&name_in(name)?)?;
    Ok(StatusCode::NO_CONTENT)
}

fn name_in(name: Result<Path<String>, PathRejection>) -> Result<String, Error> {
    let Path(name) = name.map_err(|error| Error::invalid(error.body_text()).in_field("name"))?;
    Ok(name)
}

fn spec_of(name: String, query: PutQuery) -> Result<Spec, Error> {
    let dimensions = query.shape.split(',').map(str::trim).filter(|_| !query.shape.trim().is_empty());
    let wrong = |_| Error::invalid("expected dimensions separated by commas").in_field("shape");
    let device = query.device.map(|device| device.parse::<Device>()).transpose();
    let device = device.map_err(|error| error.in_field("device"))?.unwrap_or_default();
    if !device.is_host() {
        let message = format!("the daemon cannot write {device}; a client on its machine can publish the tensor there");
        return Err(Error::unsupported(message).in_field("device"));
    }
    Ok(Spec {
        name,
        dtype: query.dtype,
        shape: dimensions.map(|dimension| dimension.parse().map_err(wrong)).collect::<Result<_, _>>()?,
        device,
        kind: query.kind.unwrap_or_else(|| cotensor_core::Kind::Other.name().to_owned()),
        space: query.space,
        producer: query.producer,
        keep: query.keep,
        keep_ms: query.keep_ms,
        provenance: None,
        metadata: None,
        members: Vec::new(),
    })
}

/// Fills an upload with a body, within the time limits.
async fn receive(http: &Http, mut body: Body, mut upload: Upload) -> Result<Upload, Refusal> {
    let start = Instant::now();
    while let Some(part) = next(&mut body, start + http.config.message_timeout + time_for(upload.filled())).await? {
        upload = upload.add(&part, &http.daemon.store)?;
    }
    Ok(upload)
}

fn describe(lease: &Lease) -> HeaderMap {
    let shape: Vec<String> = lease.shape().iter().map(usize::to_string).collect();
    HeaderMap::from_iter([
        (DTYPE, ascii(lease.dtype().name())),
        (SHAPE, ascii(&shape.join(","))),
        (KIND, ascii(lease.kind().name())),
        (VERSION, HeaderValue::from(lease.id().version)),
    ])
}

/// Names of types, numbers and punctuation are always valid in a header.
fn ascii(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

/// The last part of a tensor's name as the name of a file.
fn file_name(name: &str) -> String {
    let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    // A name that begins with a dot would be a hidden file, or a folder.
    let plain: String = last.trim_start_matches('.').chars().map(plain).collect();
    if plain.is_empty() { "tensor".to_owned() } else { plain }
}

/// The body of an answer with a tensor's bytes, after a file's head.
struct Pieces {
    store: Arc<LocalStore>,
    lease: Lease,
    /// The part of the head that is wanted and not sent.
    head: Bytes,
    /// The remaining range in the segment.
    left: Range<usize>,
    sent: usize,
}

impl Pieces {
    /// `range` is within the head and the tensor's bytes after it.
    fn new(store: Arc<LocalStore>, lease: Lease, head: &[u8], range: Range<u64>) -> Self {
        // Both ends are within an answer whose length is a usize.
        let (first, end) = (range.start as usize, range.end as usize);
        let wanted = Bytes::copy_from_slice(&head[first.min(head.len())..end.min(head.len())]);
        let start = lease.layout().byte_range().start;
        let left = start + first.saturating_sub(head.len())..start + end.saturating_sub(head.len());
        Self { store, lease, head: wanted, left, sent: 0 }
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        if !this.head.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.head)))));
        }
        if this.left.is_empty() {
            return Poll::Ready(None);
        }
        let mut piece = vec![0; this.left.len().min(PIECE_BYTES)];
        let read = this.lease.segment().read_at(this.left.start, &mut piece);
        this.left.start += piece.len();
        this.sent += piece.len();
        Poll::Ready(Some(read.map(|()| Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_empty() && self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.head.len() + self.left.len()) as u64)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        if self.sent > 0 {
            self.store.record_copy(self.lease.name(), CopyReason::Network, self.sent);
        }
    }
}
