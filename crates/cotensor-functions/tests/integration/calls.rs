//! Calls between two clients: values, tensors, errors, options and objects.

use crate::support::{Counted, Door, int, none, put, until};
use cotensor_client::protocol::provider::TaskState;
use cotensor_core::{DType, ErrorKind};
use cotensor_daemon::testing::Running;
use cotensor_functions::{Arguments, Completion, Entries, Failure, Functions, Limits, Options, Provider, Value};
use cotensor_store::{Lease, ManualClock, StoreReports, TensorStore};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn all_kinds_of_values_round_trip() {
    let running = Running::start(|_| {});
    let provider = Provider::builder(running.connect("provider"))
        .function("echo", Options::new("Returns its first argument."), |arguments, _| {
            Ok(arguments.get(0, "value")?.clone())
        })
        .start()
        .unwrap();
    let store = running.connect("caller");
    let functions = Functions::new(store.clone());
    let large = Arc::new(put(&*store, "large", &vec![7; 1 << 20]));
    let small = Arc::new(put(&*store, "small", &[1, 2, 3]));
    let map: Entries = [
        ("plain".to_owned(), Value::List(vec![Value::Null, true.into(), (-5).into(), 1.0.into(), "é\"\n".into()])),
        ("tuple".to_owned(), Value::Tuple(vec![1.into(), Value::Tuple(Vec::new()), "b".into()])),
        ("tensors".to_owned(), Value::List(vec![Value::Tensor(large.clone()), Value::Tensor(small.clone())])),
        ("$odd".to_owned(), Value::Map([("$tensor".to_owned(), Value::Int(i64::MIN))].into())),
        ("bytes".to_owned(), Value::Bytes(vec![0, 255])),
        ("ordered".to_owned(), Value::Map([("z".to_owned(), 1.into()), ("a".to_owned(), 2.into())].into())),
        ("floats".to_owned(), Value::List(vec![f64::NAN.into(), f64::INFINITY.into(), (-0.0).into(), 1e300.into()])),
    ]
    .into();
    let sent = Value::Map(map);
    let back = functions.call("echo", &none().named("value", sent.clone())).unwrap();
    let text = |value: &Value| format!("{value:?}").replace("by functions", "by ");
    assert_eq!(text(&back), text(&sent));
    let tensors = back.as_map().unwrap()["tensors"].as_list().unwrap();
    let lease = tensors[0].as_tensor().unwrap();
    assert_eq!(lease.bytes().unwrap().as_ptr(), large.bytes().unwrap().as_ptr(), "not copied");
    assert_eq!(functions.list("e").unwrap()[0].function.summary, "Returns its first argument.");
    assert_eq!(provider.callers(), 1);
    drop((back, sent, large, small));
    // The provider releases its leases after `result.taken`.
    until("all leases are released", || running.daemon.store().stats().total_tensors == 0);
}

#[test]
fn tensor_of_another_connection_is_not_copied() {
    let running = Running::start(|_| {});
    let _provider = Provider::builder(running.connect("provider"))
        .function("echo", Options::default(), |arguments, _| Ok(arguments.get(0, "value")?.clone()))
        .start()
        .unwrap();
    let (mine, other) = (running.connect("caller"), running.connect("the same process"));
    let functions = Functions::new(mine.clone());
    for len in [100, 2 << 20] {
        let there = Arc::new(put(&*other, "x", &vec![7; len]));
        let back = functions.call("echo", &none().arg(Value::Tensor(there.clone()))).unwrap();
        assert_eq!(back.as_tensor().unwrap().id(), there.id());
    }
    // The same id and version at another daemon.
    let elsewhere = Running::start(|_| {});
    let stranger = Arc::new(put(&*elsewhere.connect("stranger"), "x", &vec![8; 2 << 20]));
    let own = put(&*mine, "x", &vec![9; 2 << 20]);
    assert!(mine.join(&stranger, &mine.holder("me")).is_none());
    assert!(mine.join(&own, &mine.holder("me")).is_some());
    let refused = functions.call("echo", &none().arg(Value::Tensor(stranger))).unwrap_err();
    assert!(refused.to_string().contains("publish it there first"), "{refused}");
}

#[test]
fn result_outlives_its_provider() {
    let running = Running::start(|_| {});
    let provider = Provider::builder(running.connect("provider"))
        .function("ones", Options::default(), |arguments, context| {
            let len = usize::try_from(arguments.get(0, "len")?.as_int()?).unwrap_or(0);
            Ok(context.tensor("ones", DType::U8, &[len], &vec![1; len])?.into())
        })
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    for len in [10, 1 << 20, 100, 3 << 20] {
        // Only the result's leases keep the tensor: without a lease it would be freed at once.
        let ones = functions.call("ones", &none().arg(len)).unwrap();
        assert!(ones.as_tensor().unwrap().bytes().unwrap() == vec![1; len as usize]);
    }
    let kept = functions.call("ones", &none().arg(5 << 20)).unwrap();
    drop(provider);
    assert!(kept.as_tensor().unwrap().bytes().unwrap().iter().all(|&byte| byte == 1));
}

#[test]
fn errors_name_function_and_cause() {
    let running = Running::start(|_| {});
    let provider = Provider::builder(running.connect("provider"))
        .function("fails", Options::default(), |_, _| {
            Err(Failure { trace: "line 3".into(), ..Failure::new("ValueError", "no") })
        })
        .function("panics", Options::default(), |_, _| panic!("at the disco"))
        .function("needs", Options::default(), |arguments, _| Ok(arguments.get(0, "number")?.as_int()?.into()))
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    let failure = |name: &str| functions.call(name, &none()).unwrap_err().failure().unwrap().clone();
    let fails = failure("fails");
    assert_eq!((&*fails.kind, &*fails.message, &*fails.trace), ("ValueError", "no", "line 3"));
    assert_eq!((&*failure("panics").kind, &*failure("panics").message), ("panic", "at the disco"));
    assert!(failure("needs").message.contains("number"));
    assert_eq!(int(functions.call("needs", &none().arg(3))), 3, "the thread continues after a panic");
    let error = functions.call("os.system", &none()).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("os.system"), "{error}");
    provider.remove("needs").unwrap();
    let removed = functions.call("needs", &none().arg(3)).unwrap_err();
    assert_eq!(removed.kind(), ErrorKind::NotFound);
    let second =
        Provider::builder(running.connect("second")).function("fails", Options::default(), |_, _| Ok(Value::Null));
    assert_eq!(second.start().err().unwrap().kind(), ErrorKind::Conflict, "a name has one provider");
    for name in ["", "a b", "../x\0", &"x".repeat(300)] {
        assert!(provider.add(name, Options::default(), |_, _| Ok(Value::Null)).is_err(), "{name:?}");
    }
}

#[test]
fn deeply_nested_and_foreign_arguments_are_refused() {
    let running = Running::start(|_| {});
    let _provider =
        Provider::builder(running.connect("provider"))
            .function("echo", Options::default(), |arguments, _| Ok(arguments.get(0, "value")?.clone()))
            .function("deep", Options::default(), |_, _| {
                Ok((0..500).fold(Value::Null, |inner, _| Value::List(vec![inner])))
            })
            .start()
            .unwrap();
    let functions = Functions::new(running.connect("caller"));
    let deep = (0..500).fold(Value::Null, |inner, _| Value::List(vec![inner]));
    let error = functions.call("echo", &none().arg(deep)).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("deeper"), "{error}");
    assert!(functions.call("deep", &none()).unwrap_err().to_string().contains("result"));
    let elsewhere = cotensor_store::LocalStore::builder().build();
    let foreign = put(&*elsewhere, "x", &[1]);
    let error = functions.call("echo", &none().arg(foreign)).unwrap_err();
    assert!(error.to_string().contains("not in the daemon's store"), "{error}");
    let many = Value::List(vec![Value::Null; 1 << 20]);
    let error = functions.call("echo", &none().arg(many)).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("values"), "{error}");
    assert_eq!(int(functions.call("echo", &none().arg(4))), 4, "the connection stays open");
}

#[test]
fn concurrent_equal_calls_share_one_run() {
    let running = Running::start(|_| {});
    let (door, runs) = (Arc::new(Door::default()), Arc::new(AtomicUsize::new(0)));
    let (at, counted) = (Arc::clone(&door), Arc::clone(&runs));
    let _provider = Provider::builder(running.connect("provider"))
        .function("slow", Options::default().singleflight(), move |arguments, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            at.pass();
            Ok(arguments.get(0, "number")?.clone())
        })
        .start()
        .unwrap();
    let callers: Vec<_> = (0..6).map(|caller| Functions::new(running.connect(&format!("caller {caller}")))).collect();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| int(callers[0].call("slow", &none().arg(7))));
        door.waits_for(1);
        // Calls and tasks join the run. The provider reads a caller's messages in order: when it has answered the task,
        // it has read the call before it.
        let joined: Vec<_> = callers
            .iter()
            .map(|functions| {
                let queue = functions.completion_queue("slow").unwrap();
                queue.call(1, "slow", none().arg(7), None).unwrap();
                (queue, functions.submit("slow", &none().arg(7)).unwrap())
            })
            .collect();
        // A call with another argument has a run of its own.
        let other = scope.spawn(|| int(callers[1].call("slow", &none().arg(8))));
        door.waits_for(2);
        door.open();
        assert_eq!((first.join().unwrap(), other.join().unwrap()), (7, 8));
        for (queue, task) in joined {
            let mut done = queue.wait(&|| true);
            let (number, outcome) = done.remove(0);
            let Completion::Call(value) = outcome else { panic!("a call") };
            assert_eq!((number, int(value), done.len()), (1, 7, 0));
            assert_eq!(task.wait(None).unwrap().state, TaskState::Completed);
        }
    });
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[test]
fn serialized_calls_run_one_at_a_time_and_occupy_one_worker() {
    let running = Running::start(|_| {});
    let counted = Arc::new(Counted::default());
    let at = Arc::clone(&counted);
    let _provider = Provider::builder(running.connect("provider"))
        .limits(Limits { workers: 2, ..Limits::default() })
        .function("one", Options::default().serialized(), move |_, _| {
            at.pass();
            Ok(Value::Null)
        })
        .function("free", Options::default(), |_, _| Ok(1.into()))
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(|| functions.call("one", &none()))).collect();
        counted.door.waits_for(1);
        assert_eq!(int(functions.call("free", &none())), 1, "seven calls wait without a worker");
        counted.door.open();
        calls.into_iter().for_each(|call| drop(call.join().unwrap().unwrap()));
    });
    assert_eq!(counted.most(), 1);
}

#[test]
fn results_are_cached_by_content_not_by_name() {
    let running = Running::start(|_| {});
    let (clock, runs) = (Arc::new(ManualClock::default()), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&runs);
    let sum = move |arguments: &Arguments, _: &_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let bytes = arguments
            .get(0, "tensor")?
            .as_tensor()?
            .bytes()
            .map_or(0, |bytes| bytes.iter().map(|&b| i64::from(b)).sum());
        Ok(Value::Int(bytes))
    };
    let again = sum.clone();
    let _provider = Provider::builder(running.connect("provider"))
        .clock(clock.clone())
        .function("sum", Options::default().cached(Duration::from_secs(60), 100), sum)
        .function("sum.uncached", Options::default(), again)
        .start()
        .unwrap();
    let store = running.connect("caller");
    let functions = Functions::new(store.clone());
    let runs = || runs.load(Ordering::SeqCst);
    let call = |lease: &Arc<Lease>| int(functions.call("sum", &none().arg(lease.clone())));
    let first = Arc::new(put(&*store, "x", &[1, 2, 3]));
    assert_eq!((call(&first), call(&first), runs()), (6, 6, 1));
    let same = Arc::new(put(&*store, "y", &[1, 2, 3]));
    assert_eq!((call(&same), runs()), (6, 1), "equal content under another name");
    let other = Arc::new(put(&*store, "x", &[4, 5, 6]));
    assert_eq!((call(&other), runs()), (15, 2), "other content under the same name");
    assert_eq!(
        (int(functions.call("sum", &none().named("tensor", first.clone()))), runs()),
        (6, 3),
        "by name instead of position"
    );
    clock.advance(Duration::from_secs(61));
    assert_eq!((call(&first), runs()), (6, 4), "expired");
    for expected in [5, 6] {
        int(functions.call("sum.uncached", &none().arg(first.clone())));
        assert_eq!(runs(), expected, "no cache without the option");
    }
}

#[test]
fn failure_is_not_cached() {
    let running = Running::start(|_| {});
    let runs = AtomicUsize::new(0);
    let _provider = Provider::builder(running.connect("provider"))
        .function("second", Options::default().cached(Duration::from_secs(60), 100).singleflight(), move |_, _| {
            match runs.fetch_add(1, Ordering::SeqCst) {
                0 => Err(Failure::new("NotYet", "the first time")),
                run => Ok(Value::Int(run as i64)),
            }
        })
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    assert_eq!(functions.call("second", &none()).unwrap_err().failure().unwrap().kind, "NotYet");
    assert_eq!((int(functions.call("second", &none())), int(functions.call("second", &none()))), (1, 1));
}

/// A counter that stays with its provider.
struct Counter(AtomicUsize, Arc<AtomicUsize>);

impl cotensor_functions::Managed for Counter {
    fn call(&self, method: &str, arguments: &Arguments, _: &cotensor_functions::Context) -> Result<Value, Failure> {
        match method {
            "add" => {
                let by = usize::try_from(arguments.get(0, "by")?.as_int()?).unwrap_or(0);
                Ok(Value::Int((self.0.fetch_add(by, Ordering::SeqCst) + by) as i64))
            }
            _ => Err(Failure::no_method(method)),
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

fn counting(running: &Running, live: &Arc<AtomicUsize>) -> Provider {
    use cotensor_functions::Object;
    let live = Arc::clone(live);
    Provider::builder(running.connect("provider"))
        .limits(Limits { objects_max: 3, ..Limits::default() })
        .function("counter", Options::default(), move |_, _| {
            live.fetch_add(1, Ordering::SeqCst);
            Ok(Object::new(Counter(AtomicUsize::new(0), Arc::clone(&live))).into())
        })
        .function("read", Options::default(), |arguments, _| {
            let counter = arguments.get(0, "counter")?.as_object::<Counter>()?;
            Ok(Value::Int(counter.0.load(Ordering::SeqCst) as i64))
        })
        .function("read.kept", Options::default().cached(Duration::from_secs(60), 9).singleflight(), |arguments, _| {
            let counters = arguments.get(0, "counters")?.as_list()?;
            let counter = counters[0].as_object::<Counter>()?;
            Ok(Value::Int(counter.0.load(Ordering::SeqCst) as i64))
        })
        .function("numbers", Options::default().managed(), |_, _| Ok(Value::List(vec![1.into(), 2.into()])))
        .function("length", Options::default(), |arguments, _| {
            Ok(Value::Int(arguments.get(0, "list")?.as_list()?.len() as i64))
        })
        .start()
        .unwrap()
}

#[test]
fn objects_stay_with_their_provider_and_are_released_once() {
    let running = Running::start(|_| {});
    let live = Arc::new(AtomicUsize::new(0));
    let provider = counting(&running, &live);
    let functions = Functions::new(running.connect("caller"));
    let remote = |value: &Value| match value {
        Value::Remote(object) => Arc::clone(object),
        other => panic!("{other:?}"),
    };
    let counter = functions.call("counter", &none()).unwrap();
    assert_eq!(int(remote(&counter).call("add", &none().arg(2))), 2);
    assert_eq!(int(remote(&counter).call("add", &none().named("by", 3))), 5);
    assert_eq!(int(functions.call("read", &none().arg(counter.clone()))), 5, "the object in its provider");
    assert_eq!(remote(&counter).call("drop", &none()).unwrap_err().failure().unwrap().kind, "no_method");
    let numbers = functions.call("numbers", &none()).unwrap();
    assert_eq!(int(functions.call("length", &none().arg(numbers.clone()))), 2, "a managed result becomes the value");
    assert_eq!(remote(&numbers).call("get", &none()).unwrap().as_list().unwrap().len(), 2);
    // A reference is valid for its caller only.
    let other = Functions::new(running.connect("another caller"));
    assert!(other.call("read", &none().arg(counter.clone())).is_err());
    remote(&counter).release().unwrap();
    until("the counter is dropped", || live.load(Ordering::SeqCst) == 0);
    assert_eq!(remote(&counter).release().unwrap_err().kind(), ErrorKind::NotFound, "a reference is released once");
    assert_eq!(remote(&counter).call("add", &none().arg(1)).unwrap_err().kind(), ErrorKind::NotFound);
    let kept: Vec<_> = (0..2).map(|_| functions.call("counter", &none()).unwrap()).collect();
    let error = functions.call("counter", &none()).unwrap_err();
    assert!(error.to_string().contains("objects"), "three references are the limit: {error}");
    until("the refused object is dropped", || live.load(Ordering::SeqCst) == 2);
    drop(kept);
    until("dropped references are released", || live.load(Ordering::SeqCst) == 0);
    let stale = functions.call("counter", &none()).unwrap();
    drop(provider);
    until("objects are dropped with their provider", || live.load(Ordering::SeqCst) == 0);
    until("the daemon forgets the provider", || {
        functions.call("counter", &none()).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    });
    let _again = counting(&running, &live);
    until("the next provider is found", || functions.call("counter", &none()).is_ok());
    let error = functions.call("read", &none().arg(stale.clone())).unwrap_err();
    assert!(error.to_string().contains("restarted"), "{error}");
    assert_eq!(remote(&stale).call("add", &none().arg(1)).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn results_of_calls_with_objects_are_not_cached() {
    let running = Running::start(|_| {});
    let live = Arc::new(AtomicUsize::new(0));
    let _provider = counting(&running, &live);
    let functions = Functions::new(running.connect("caller"));
    let counter = functions.call("counter", &none()).unwrap();
    let Value::Remote(object) = &counter else { panic!("{counter:?}") };
    let read = || int(functions.call("read.kept", &none().arg(Value::List(vec![counter.clone()]))));
    assert_eq!(read(), 0);
    object.call("add", &none().arg(2)).unwrap();
    assert_eq!(read(), 2, "the object changed");
}

#[test]
fn providers_beside_each_other_accept_objects() {
    let running = Running::start(|_| {});
    let live = Arc::new(AtomicUsize::new(0));
    let provider = counting(&running, &live);
    let read = |arguments: &Arguments, _: &cotensor_functions::Context| {
        Ok(Value::from(arguments.get(0, "counter")?.as_object::<Counter>()?.0.load(Ordering::SeqCst) as i64))
    };
    let _beside = Provider::builder(running.connect("beside"))
        .beside(&provider)
        .function("beside.read", Options::default(), read)
        .start()
        .unwrap();
    let _apart =
        Provider::builder(running.connect("apart")).function("apart.read", Options::default(), read).start().unwrap();
    let functions = Functions::new(running.connect("caller"));
    let counter = || functions.call("counter", &none()).unwrap();
    let first = counter();
    let Value::Remote(object) = &first else { panic!("{first:?}") };
    object.call("add", &none().arg(2)).unwrap();
    assert_eq!(int(functions.call("beside.read", &none().arg(first.clone()))), 2);
    let error = functions.call("apart.read", &none().arg(first.clone())).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("belongs to provider["), "{error}");
    // A reference is valid for its caller only.
    let others = Functions::new(running.connect("another caller"));
    assert!(others.call("beside.read", &none().arg(first.clone())).is_err());
    let error = {
        object.release().unwrap();
        functions.call("beside.read", &none().arg(first.clone())).unwrap_err()
    };
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let stale = counter();
    drop(provider);
    assert!(functions.call("beside.read", &none().arg(stale)).is_err());
}

#[test]
fn replaced_function_serves_later_calls() {
    let running = Running::start(|_| {});
    let door = Arc::new(Door::default());
    let at = Arc::clone(&door);
    let options = || Options::new("a number").cached(Duration::from_secs(60), 9).singleflight();
    let provider = Provider::builder(running.connect("provider"))
        .function("number", options(), move |_, _| {
            at.pass();
            Ok(1.into())
        })
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| int(functions.call("number", &none())));
        door.waits_for(1);
        provider.replace("number", options(), |_, _| Ok(2.into())).unwrap();
        assert_eq!(int(functions.call("number", &none())), 2, "it does not join the run of the function before");
        door.open();
        assert_eq!(running.join().unwrap(), 1);
    });
    provider.replace("number", Options::new("again").task(), |_, _| Ok(3.into())).unwrap();
    assert_eq!(int(functions.call("number", &none())), 3);
    let found = functions.list("number").unwrap().remove(0).function;
    assert!(found.task && found.summary == "again");
    let missing = provider.replace("no such", Options::default(), |_, _| Ok(Value::Null)).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn objects_are_released_on_disconnect() {
    let running = Running::start(|_| {});
    let live = Arc::new(AtomicUsize::new(0));
    let provider = counting(&running, &live);
    for _ in 0..5 {
        let functions = Functions::new(running.connect("caller"));
        let kept: Vec<_> = (0..3).map(|_| functions.call("counter", &none()).unwrap()).collect();
        std::mem::forget(kept.clone());
        assert_eq!(provider.callers(), 1);
        // The references are never dropped: the end of the connection releases them.
        for value in &kept {
            if let Value::Remote(object) = value {
                object.disconnect();
            }
        }
        until("all objects are released", || live.load(Ordering::SeqCst) == 0 && provider.callers() == 0);
    }
}
