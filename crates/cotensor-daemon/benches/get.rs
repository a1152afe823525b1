//! Getting a name that this client holds and that has not changed (no round trip), beside a first get and a ping.
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]
#![allow(missing_docs, reason = "criterion's macros make public items")]

use cotensor_client::protocol as p;
use cotensor_daemon::testing::{Running, spec};
use cotensor_store::{CopyReason, TensorStore};
use criterion::{Criterion, criterion_group, criterion_main};

fn get(criterion: &mut Criterion) {
    let running = Running::start(|_| {});
    let (producer, consumer) = (running.connect("producer"), running.connect("consumer"));
    let mut reservation = producer.reserve(spec("x", 4096), &producer.holder("")).unwrap();
    reservation.write(&[1; 4096], CopyReason::Put).unwrap();
    let _made = reservation.publish().unwrap();
    let holder = consumer.holder("reader");
    criterion.bench_function("get and release, nothing held before", |bencher| {
        bencher.iter(|| consumer.get("x", &holder).unwrap());
    });
    let held = consumer.get("x", &holder).unwrap();
    criterion.bench_function("get and release, held and unchanged", |bencher| {
        bencher.iter(|| consumer.get("x", &holder).unwrap());
    });
    criterion.bench_function("ping", |bencher| bencher.iter(|| consumer.request::<p::Ping>(&p::Empty {}).unwrap()));
    drop(held);
}

criterion_group!(benches, get);
criterion_main!(benches);
