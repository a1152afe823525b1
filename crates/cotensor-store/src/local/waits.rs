//! Waits for claims and for blobs without a thread. A wait that is dropped leaves nothing in the store.

use super::blobs;
use crate::blobs::UploadPlan;
use crate::computations::Waiter;
use crate::local::LocalStore;
use crate::{BlobSpec, Claim, Holder, Key};
use cotensor_core::Result;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A wait for a claim.
#[must_use]
pub struct ClaimFuture<'a> {
    store: &'a LocalStore,
    key: Key,
    holder: Holder,
    waiter: Waiter<'a>,
}

/// A wait for blobs.
#[must_use]
pub struct UploadFuture<'a> {
    store: &'a LocalStore,
    specs: &'a [BlobSpec],
    holder: &'a Holder,
    waiter: Waiter<'a>,
}

impl LocalStore {
    /// As [`ComputationStore::claim`](crate::ComputationStore::claim), without blocking. The caller limits the time.
    ///
    /// # Errors
    /// The future's are those of [`ComputationStore::claim`](crate::ComputationStore::claim), but for `TimedOut`.
    pub fn await_claim(&self, key: &Key, holder: &Holder) -> ClaimFuture<'_> {
        ClaimFuture { store: self, key: *key, holder: holder.clone(), waiter: self.claims.waiter() }
    }

    /// The first half of [`BlobStore::blobs`](crate::BlobStore::blobs), without blocking: the blobs that exist, and those that the caller
    /// provides. It waits only while other callers provide all of them. The caller limits the time.
    ///
    /// # Errors
    /// The future's are those of [`BlobStore::blobs`](crate::BlobStore::blobs).
    pub fn plan_upload<'a>(&'a self, specs: &'a [BlobSpec], holder: &'a Holder) -> UploadFuture<'a> {
        UploadFuture { store: self, specs, holder, waiter: self.claims.waiter() }
    }
}

impl Future for ClaimFuture<'_> {
    type Output = Result<Claim>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Claim>> {
        let Self { store, key, holder, waiter } = &mut *self;
        store.poll_claim(key, holder, waiter, context.waker())
    }
}

impl Future for UploadFuture<'_> {
    type Output = Result<UploadPlan>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<UploadPlan>> {
        let Self { store, specs, holder, waiter } = &mut *self;
        match blobs::begin(store, specs, holder, waiter, context.waker()) {
            Ok(plan) if plan.pack.is_none() && plan.ready.is_empty() && !plan.pending.is_empty() => Poll::Pending,
            plan => Poll::Ready(plan),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{BlobSpec, ComputationStore, TensorStore, blob_key};
    use cotensor_core::{ContentHash, DType, Device};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&Arc::clone(woken).into()))
    }

    #[test]
    fn dropped_claims_leave_no_waker() {
        let store = LocalStore::builder().build();
        let (key, holder) = (Key(ContentHash::of(b"slow")), store.holder("m"));
        let Claim::Compute(ticket) = store.claim(&key, &holder).unwrap() else { panic!("nothing is computed yet") };
        let (abandoned, waiting) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
        let mut wait = store.await_claim(&key, &holder);
        assert!(poll(&mut wait, &waiting).is_pending());
        for _ in 0..100 {
            let mut late = store.await_claim(&key, &holder);
            assert!(poll(&mut late, &abandoned).is_pending() && poll(&mut late, &abandoned).is_pending());
        }
        assert_eq!(store.claims.count_waiters(&key), 1);
        drop(ticket);
        assert_eq!([&abandoned, &waiting].map(|woken| woken.0.load(Ordering::SeqCst)), [0, 1]);
        assert!(matches!(poll(&mut wait, &waiting), Poll::Ready(Ok(Claim::Compute(_)))));
    }

    #[test]
    fn planned_uploads_leave_no_waker() {
        let store = LocalStore::builder().build();
        let holder = store.holder("m");
        let spec = |content: &[u8]| BlobSpec {
            hash: ContentHash::of(content),
            dtype: DType::U8,
            shape: vec![content.len()],
            device: Device::Cpu,
            producer: "test".to_owned(),
            label: String::new(),
            metadata: None,
        };
        let (both, woken) = ([spec(b"a"), spec(b"b")], Arc::new(Woken::default()));
        let key = blob_key(&both[0].hash, Device::Cpu);
        let plan = |specs| match poll(&mut store.plan_upload(specs, &holder), &woken) {
            Poll::Ready(plan) => Some(plan.unwrap()),
            Poll::Pending => None,
        };
        let first = plan(&both[..1]).unwrap();
        assert_eq!(first.pack.as_ref().unwrap().indexes().count(), 1);
        // The first blob is provided elsewhere. The second one is returned at once, and ends the wait.
        let second = plan(&both[..]).unwrap();
        assert_eq!((second.pending, store.claims.count_waiters(&key)), (vec![0], 0));
        assert!(plan(&both[..1]).is_none());
        assert_eq!(store.claims.count_waiters(&key), 0);
    }
}
