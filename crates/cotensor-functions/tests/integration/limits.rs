//! The limits of a provider, cached results, and threads.

use crate::support::{Counted, Door, int, none, until};
use cotensor_core::{DType, ErrorKind};
use cotensor_daemon::testing::Running;
use cotensor_functions::{Functions, Limits, Options, Provider, Value};
use cotensor_store::{ManualClock, StoreReports, TensorId};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn concurrent_runs_are_limited_to_workers() {
    let running = Running::start(|_| {});
    let counted = Arc::new(Counted::default());
    let at = Arc::clone(&counted);
    let _provider = Provider::builder(running.connect("provider"))
        .limits(Limits { workers: 2, ..Limits::default() })
        .function("pass", Options::default(), move |_, _| {
            at.pass();
            Ok(Value::Null)
        })
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    let tasks: Vec<_> = (0..20).map(|_| functions.submit("pass", &none()).unwrap()).collect();
    counted.door.waits_for(2);
    // Eighteen runs wait.
    counted.door.open();
    tasks.iter().for_each(|task| drop(task.wait(None).unwrap()));
    assert_eq!(counted.most(), 2, "two run in parallel");
}

#[test]
fn callers_beyond_the_limit_are_refused() {
    let running = Running::start(|_| {});
    let provider = Provider::builder(running.connect("provider"))
        .limits(Limits { callers_max: 2, ..Limits::default() })
        .function("one", Options::default(), |_, _| Ok(1.into()))
        .start()
        .unwrap();
    let caller = |name: &str| Functions::new(running.connect(name));
    let (first, second, third) = (caller("first"), caller("second"), caller("third"));
    assert_eq!((int(first.call("one", &none())), int(second.call("one", &none()))), (1, 1));
    let error = third.call("one", &none()).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("provider["), "{error}");
    assert_eq!(int(first.call("one", &none())), 1, "connected callers stay connected");
    drop(second);
    until("a caller has disconnected", || provider.callers() < 2);
    assert_eq!(int(third.call("one", &none())), 1);
}

#[test]
fn functions_of_a_session_are_limited() {
    let running = Running::start(|_| {});
    let provider = Provider::builder(running.connect("provider")).start().unwrap();
    let offer = |number: usize| provider.add(&format!("f{number}"), Options::default(), |_, _| Ok(Value::Null));
    (0..1024).for_each(|number| offer(number).unwrap());
    let error = offer(1024).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("1024"), "{error}");
    provider.remove("f7").unwrap();
    offer(1024).unwrap();
    let functions = Functions::new(running.connect("caller"));
    assert_eq!(functions.list("f").unwrap().len(), 1024);
    drop(provider);
    until("all functions are removed", || functions.list("").unwrap().is_empty());
}

#[test]
fn cached_results_keep_their_tensors_until_they_expire() {
    let running = Running::start(|_| {});
    let clock = Arc::new(ManualClock::default());
    let _provider = Provider::builder(running.connect("provider"))
        .clock(clock.clone())
        .function("big", Options::default().cached(Duration::from_secs(60), 2), |arguments, context| {
            let byte = u8::try_from(arguments.get(0, "byte")?.as_int()?).unwrap_or(0);
            Ok(context.tensor("big", DType::U8, &[1 << 20], &vec![byte; 1 << 20])?.into())
        })
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    let tensors = || running.daemon.store().stats().total_tensors;
    let call = |byte: i64| -> TensorId {
        let value = functions.call("big", &none().arg(byte)).unwrap();
        let lease = value.as_tensor().unwrap();
        assert_eq!(i64::from(lease.bytes().unwrap()[99]), byte);
        lease.id()
    };
    let first = call(1);
    assert_eq!(call(1), first, "the cached tensor");
    assert_eq!(tensors(), 1, "the cache keeps the tensor");
    call(2);
    call(3);
    until("the first result is evicted", || tensors() == 2);
    assert_ne!(call(1), first);
    clock.advance(Duration::from_secs(61));
    until("expired results are released", || tensors() == 0);
}

#[test]
fn long_call_blocks_no_other_call_and_reuses_threads() {
    let running = Running::start(|_| {});
    let doors: Arc<Vec<Door>> = Arc::new((0..20).map(|_| Door::default()).collect());
    let _provider = {
        let doors = doors.clone();
        let limits = Limits { workers: 4, ..Limits::default() };
        Provider::builder(running.connect("provider"))
            .limits(limits)
            .function("long", Options::default(), move |arguments, _| {
                doors[usize::try_from(arguments.get(0, "door")?.as_int()?).unwrap_or(0)].pass();
                Ok(Value::Null)
            })
            .function("short", Options::default(), |arguments, _| Ok(arguments.get(0, "value")?.clone()))
            .start()
            .unwrap()
    };
    let functions = Functions::new(running.connect("caller"));
    assert_eq!(int(functions.call("short", &none().arg(0))), 0);
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name =
            |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("comm"));
        tasks.filter_map(|task| name(task).ok()).filter(|name| name.trim() == "cotensor-call").count()
    };
    for (number, door) in doors.iter().enumerate() {
        std::thread::scope(|scope| {
            // Over the same connection: the thread that read the long call runs it.
            let long = scope.spawn(|| functions.call("long", &none().arg(number as i64)).unwrap());
            door.waits_for(1);
            for value in 0..20 {
                assert_eq!(int(functions.call("short", &none().arg(value))), value);
            }
            door.open();
            long.join().unwrap();
        });
    }
    assert!(threads() <= 8, "{} threads", threads());
}
