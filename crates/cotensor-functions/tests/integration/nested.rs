//! Cancellation and deadlines of calls, and of the calls that functions make.

use crate::support::{Door, int, none, until};
use cotensor_client::protocol::provider::TaskState;
use cotensor_core::ErrorKind;
use cotensor_daemon::testing::Running;
use cotensor_functions::{
    Arguments, CallError, Completion, Context, Failure, Functions, Limits, Options, Provider, Value,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Counts the runs of a function that ends only when it is cancelled.
#[derive(Default)]
struct Endless {
    started: AtomicUsize,
    cancelled: AtomicUsize,
}

impl Endless {
    fn run(&self, context: &Context) -> Result<Value, Failure> {
        self.started.fetch_add(1, Ordering::SeqCst);
        while !context.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.cancelled.fetch_add(1, Ordering::SeqCst);
        context.check().map(|()| Value::Null)
    }

    fn is_started(&self, count: usize) {
        until("the function runs", || self.started.load(Ordering::SeqCst) == count);
    }

    fn is_cancelled(&self, count: usize) {
        until("the function is cancelled", || self.cancelled.load(Ordering::SeqCst) == count);
    }
}

fn endless(running: &Running, name: &str, workers: usize) -> (Provider, Arc<Endless>) {
    let endless = Arc::new(Endless::default());
    let run = Arc::clone(&endless);
    let provider = Provider::builder(running.connect(name))
        .limits(Limits { workers, ..Limits::default() })
        .function(&format!("{name}.endless"), Options::default(), move |_, context| run.run(context))
        .function(&format!("{name}.one"), Options::default(), |_, _| Ok(1.into()))
        .start()
        .unwrap();
    (provider, endless)
}

fn is_cancellation(error: &CallError) -> bool {
    error.failure().is_some_and(|failure| failure.kind == "cancelled")
}

#[test]
fn cancelled_calls_free_their_workers() {
    let running = Running::start(|_| {});
    let (_provider, endless) = endless(&running, "provider", 2);
    let functions = Functions::new(running.connect("caller"));
    let queue = functions.completion_queue("provider.endless").unwrap();
    for number in 1..=3 {
        queue.call(number, "provider.endless", none(), None).unwrap();
    }
    queue.call(4, "provider.one", none(), None).unwrap();
    endless.is_started(2);
    // The third waits for a worker, and never starts.
    [3, 1, 2].into_iter().for_each(|number| queue.cancel(number));
    let done = queue.wait(&|| true);
    assert!(matches!(&done[..], [(4, Completion::Call(Ok(Value::Int(1))))]));
    endless.is_cancelled(2);
    assert_eq!((endless.started.load(Ordering::SeqCst), queue.count()), (2, 0));
    queue.cancel(4);
    // A caller that stops waiting cancels its call as well.
    let wanted = || endless.started.load(Ordering::SeqCst) < 3;
    let error = functions.call_while("provider.endless", &none(), None.into(), &wanted).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    endless.is_cancelled(3);
}

#[test]
fn cancelled_wait_leaves_its_task_and_cancelled_call_of_a_task_ends_it() {
    let running = Running::start(|_| {});
    let endless = Arc::new(Endless::default());
    let (run, tracked) = (Arc::clone(&endless), Arc::clone(&endless));
    let _provider = Provider::builder(running.connect("provider"))
        .function("endless", Options::default(), move |_, context| run.run(context))
        .function("tracked", Options::default().task(), move |_, context| tracked.run(context))
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    let task = functions.submit("endless", &none()).unwrap();
    let queue = functions.completion_queue_of(&task);
    queue.add_task(1, &task, None).unwrap();
    endless.is_started(1);
    queue.cancel(1);
    assert_eq!((task.status().unwrap().state, queue.count()), (TaskState::Running, 0));
    queue.call(2, "tracked", none(), None).unwrap();
    endless.is_started(2);
    queue.cancel(2);
    endless.is_cancelled(1);
    task.cancel().unwrap();
    endless.is_cancelled(2);
}

/// Calls the function that the argument names, and keeps how that ended.
fn outer(
    functions: &Arc<Functions>,
    ended: &Arc<Door>,
) -> impl Fn(&Arguments, &Context) -> Result<Value, Failure> + use<> {
    let (functions, ended) = (Arc::clone(functions), Arc::clone(ended));
    move |arguments, context| {
        let error = functions.call(arguments.get(0, "name")?.as_str()?, &none()).unwrap_err();
        // The call ends with the run, not before.
        let is_over = context.is_cancelled() || context.scope().time_left().is_some_and(|left| left.is_zero());
        if is_over && (is_cancellation(&error) || error.kind() == ErrorKind::TimedOut) {
            // A further call fails without being sent.
            assert!(functions.call("no such function", &none()).is_err_and(|error| error.failure().is_some()));
            ended.open();
        }
        // The nested call may time out first.
        until("the function is cancelled", || context.is_cancelled());
        Ok(Value::Null)
    }
}

#[test]
fn nested_calls_end_with_the_call_of_their_function() {
    let running = Running::start(|_| {});
    let (_inner, endless) = endless(&running, "inner", 4);
    let nested = Arc::new(Functions::new(running.connect("nested")));
    let functions = Functions::new(running.connect("caller"));
    let (late, cancelled, limited) = (Arc::<Door>::default(), Arc::<Door>::default(), Arc::<Door>::default());
    let _outer = Provider::builder(running.connect("outer"))
        .function("late", Options::default(), outer(&nested, &late))
        .function("cancelled", Options::default(), outer(&nested, &cancelled))
        .function("limited", Options::default().timeout(Duration::from_millis(100)), outer(&nested, &limited))
        .start()
        .unwrap();
    let name = || none().arg("inner.endless");
    // The caller's deadline.
    let error = functions.call_within("late", &name(), Some(Duration::from_millis(100))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    late.pass();
    endless.is_cancelled(1);
    // The function's own.
    assert_eq!(functions.call("limited", &name()).unwrap_err().kind(), ErrorKind::TimedOut);
    limited.pass();
    endless.is_cancelled(2);
    // A cancellation.
    let queue = functions.completion_queue("cancelled").unwrap();
    queue.call(1, "cancelled", name(), None).unwrap();
    endless.is_started(3);
    queue.cancel(1);
    cancelled.pass();
    endless.is_cancelled(3);
}

#[test]
fn deadline_of_a_nested_call_is_the_earlier_one() {
    let running = Running::start(|_| {});
    let left = |context: &Context| {
        let left = context.scope().time_left().map(|left| i64::try_from(left.as_millis()).unwrap());
        left.map_or(Value::Null, Value::Int)
    };
    let nested = Arc::new(Functions::new(running.connect("nested")));
    let _provider = Provider::builder(running.connect("provider"))
        .function("left", Options::default(), move |_, context| Ok(left(context)))
        .function("outer", Options::default(), move |arguments, _| {
            let timeout = arguments.get(0, "timeout")?.as_int()?.unsigned_abs();
            nested.call_within("left", &none(), Some(Duration::from_secs(timeout))).map_err(|error| match error {
                CallError::Failed(failure) => failure,
                CallError::NotCalled(error) => error.into(),
            })
        })
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    assert!(matches!(functions.call("left", &none()).unwrap(), Value::Null));
    let hour = Some(Duration::from_secs(3600));
    let left = |inner: i64| int(functions.call_within("outer", &none().arg(inner), hour));
    assert!(left(7200) <= 3_600_000);
    assert!(left(60) <= 60_000);
}

#[test]
fn background_calls_of_a_function_are_not_bounded_after_its_end() {
    let running = Running::start(|_| {});
    let scope = Arc::new(std::sync::Mutex::new(None));
    let kept = Arc::clone(&scope);
    let _provider = Provider::builder(running.connect("provider"))
        .function("keep", Options::default(), move |_, context| {
            *kept.lock().unwrap() = Some(Arc::clone(context.scope()));
            Ok(Value::Null)
        })
        .function("one", Options::default(), |_, _| Ok(1.into()))
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    functions.call_within("keep", &none(), Some(Duration::from_secs(1))).unwrap();
    let scope = scope.lock().unwrap().take();
    until("the time is over", || scope.as_ref().unwrap().time_left().unwrap().is_zero());
    let called = cotensor_functions::Scope::within(scope, || functions.call("one", &none()));
    assert_eq!(int(called), 1);
}

/// A provider with one worker whose functions call each other.
fn recursive(running: &Running) -> Provider {
    let functions = Arc::new(Functions::new(running.connect("nested")));
    let call = move |name: &'static str, minus: i64| {
        let functions = Arc::clone(&functions);
        move |arguments: &Arguments, _: &Context| {
            let number = arguments.get(0, "number")?.as_int()?;
            if number == 0 {
                return Ok(Value::Int(0));
            }
            match functions.call(name, &none().arg(number - minus)) {
                Ok(sum) => Ok(Value::Int(sum.as_int()? + 1)),
                Err(CallError::Failed(failure)) => Err(failure),
                Err(CallError::NotCalled(error)) => Err(error.into()),
            }
        }
    };
    Provider::builder(running.connect("provider"))
        .limits(Limits { workers: 1, waiting_max: 1, ..Limits::default() })
        .function("depth", Options::default(), call("depth", 1))
        .function("endless", Options::default(), call("endless", 0))
        .function("once", Options::default().serialized(), call("once", 1))
        .function("equal", Options::default().singleflight(), call("equal", 0))
        .start()
        .unwrap()
}

#[test]
fn recursion_needs_no_further_worker() {
    let running = Running::start(|_| {});
    let _provider = recursive(&running);
    let functions = Functions::new(running.connect("caller"));
    assert_eq!(int(functions.call("depth", &none().arg(100))), 100);
    for (name, said) in [
        ("endless", "more than 128 calls wait for one another"),
        ("once", "once runs once at a time, and its run waits for this call"),
        ("equal", "equal calls itself with equal arguments"),
    ] {
        let error = functions.call(name, &none().arg(3)).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
    assert_eq!(int(functions.call("depth", &none().arg(3))), 3, "all workers are free again");
}

#[test]
fn two_chains_of_calls_do_not_block_each_other() {
    let running = Running::start(|_| {});
    let nested = Arc::new(Functions::new(running.connect("nested")));
    let (door, runs) = (Arc::new(Door::default()), AtomicBool::new(false));
    let at = Arc::clone(&door);
    let _provider = Provider::builder(running.connect("provider"))
        .limits(Limits { workers: 2, ..Limits::default() })
        .function("outer", Options::default(), move |_, _| {
            at.pass();
            nested.call("inner", &none()).map_err(|error| Failure::new("nested", error.to_string()))
        })
        .function("inner", Options::default(), move |_, _| {
            runs.store(true, Ordering::SeqCst);
            Ok(1.into())
        })
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    let queue = functions.completion_queue("outer").unwrap();
    (1..=4).for_each(|number| queue.call(number, "outer", none(), None).unwrap());
    // Both workers have a function that is about to call another one.
    door.waits_for(2);
    door.open();
    let mut done = 0;
    while done < 4 {
        for (_, outcome) in queue.wait(&|| true) {
            assert!(matches!(outcome, Completion::Call(Ok(Value::Int(1)))));
            done += 1;
        }
    }
}
