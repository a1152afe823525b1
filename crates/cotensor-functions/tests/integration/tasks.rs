//! Tasks: states, limits, and cancellation of abandoned runs.

use crate::support::{Door, int, none, put, until};
use cotensor_client::protocol::provider::TaskState;
use cotensor_core::{DType, ErrorKind};
use cotensor_daemon::testing::Running;
use cotensor_functions::{Arguments, Failure, Functions, Limits, Options, Provider, Value};
use cotensor_store::{ManualClock, StoreReports, TensorStore};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn ten_thousand_tasks_pass_through_their_states() {
    let running = Running::start(|_| {});
    let (door, sum) = (Arc::new(Door::default()), Arc::new(AtomicUsize::new(0)));
    let (at, added) = (Arc::clone(&door), Arc::clone(&sum));
    let _provider = Provider::builder(running.connect("provider"))
        .limits(Limits { workers: 3, ..Limits::default() })
        .function("gate", Options::default(), move |_, _| {
            at.pass();
            Ok(Value::Null)
        })
        .function("add", Options::default(), move |arguments, _| {
            let number = arguments.get(0, "number")?.as_int()?;
            added.fetch_add(usize::try_from(number).unwrap_or(0), Ordering::SeqCst);
            if number == 13 { Err(Failure::new("Unlucky", "13")) } else { Ok(number.into()) }
        })
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    let gates: Vec<_> = (0..3).map(|_| functions.submit("gate", &none()).unwrap()).collect();
    door.waits_for(3);
    let tasks: Vec<_> = (0..10_000i64).map(|number| functions.submit("add", &none().arg(number)).unwrap()).collect();
    let state = |task: usize| tasks[task].status().unwrap().state;
    assert_eq!(
        (gates[0].status().unwrap().state, state(0), state(9999)),
        (TaskState::Running, TaskState::Pending, TaskState::Pending)
    );
    assert_eq!(tasks[5].result().unwrap_err().kind(), ErrorKind::Conflict, "the task has not ended");
    assert_eq!(tasks[5].wait(Some(Duration::from_millis(1))).unwrap().state, TaskState::Pending, "the wait timed out");
    assert_eq!(tasks[17].cancel().unwrap().state, TaskState::Cancelled);
    let listed = functions.tasks(Some(TaskState::Running)).unwrap();
    assert_eq!(listed.iter().map(|(_, task)| &*task.function).collect::<Vec<_>>(), ["gate"; 3]);
    std::thread::scope(|scope| {
        // 200 waits occupy no worker: there are three.
        let waits: Vec<_> = tasks[..200].iter().map(|task| scope.spawn(|| task.wait(None).unwrap().state)).collect();
        door.open();
        for (number, wait) in waits.into_iter().enumerate() {
            let wanted = match number {
                13 => TaskState::Failed,
                17 => TaskState::Cancelled,
                _ => TaskState::Completed,
            };
            assert_eq!(wait.join().unwrap(), wanted, "{number}");
        }
    });
    for (number, task) in tasks.iter().enumerate().filter(|(number, _)| ![13, 17].contains(number)) {
        assert_eq!(task.wait(None).unwrap().state, TaskState::Completed);
        assert_eq!(int(task.result()), number as i64);
    }
    assert_eq!(sum.load(Ordering::SeqCst), (0..10_000).sum::<usize>() - 17, "the cancelled one did not run");
    assert_eq!(tasks[13].result().unwrap_err().failure().unwrap().kind, "Unlucky");
    assert!(tasks[17].result().unwrap_err().to_string().contains("cancelled"));
    let other = Functions::new(running.connect("another caller"));
    let found = other.task(tasks[13].epoch(), tasks[13].number()).unwrap();
    assert_eq!(found.status().unwrap().error.as_deref(), Some("Unlucky: 13"));
}

#[test]
fn ended_tasks_are_removed_by_age_and_number() {
    let running = Running::start(|_| {});
    let (clock, door) = (Arc::new(ManualClock::default()), Arc::new(Door::default()));
    let at = Arc::clone(&door);
    let _provider = Provider::builder(running.connect("provider"))
        .limits(Limits {
            workers: 2,
            tasks_max: 4,
            task_ttl: Duration::from_secs(10),
            waiting_max: 3,
            ..Limits::default()
        })
        .clock(clock.clone())
        .function("tensor", Options::default(), |_, context| {
            Ok(context.tensor("t", DType::U8, &[1 << 20], &vec![1; 1 << 20])?.into())
        })
        .function("gate", Options::default(), move |_, _| {
            at.pass();
            Ok(Value::Null)
        })
        .start()
        .unwrap();
    let functions = Functions::new(running.connect("caller"));
    let tensors = || running.daemon.store().stats().total_tensors;
    let first = functions.submit("tensor", &none()).unwrap();
    assert_eq!(first.wait(None).unwrap().state, TaskState::Completed);
    assert_eq!(first.result().unwrap().as_tensor().unwrap().bytes().unwrap()[9], 1);
    assert_eq!(tensors(), 1, "the task keeps its result");
    clock.advance(Duration::from_secs(11));
    assert_eq!(first.status().unwrap_err().kind(), ErrorKind::NotFound);
    until("the result is released with its task", || tensors() == 0);
    // One after the other: four that have not started would exceed `waiting_max`.
    let ended = (0..4).map(|_| functions.submit("tensor", &none()).unwrap());
    let ended: Vec<_> = ended.inspect(|task| drop(task.wait(None).unwrap())).collect();
    let newer = functions.submit("tensor", &none()).unwrap();
    assert_eq!(newer.wait(None).unwrap().state, TaskState::Completed);
    let removed: Vec<_> = ended.iter().filter_map(|task| task.status().err()).map(|error| error.kind()).collect();
    assert_eq!(removed, [ErrorKind::NotFound], "the provider keeps four tasks");
    let mut gates: Vec<_> = (0..2).map(|_| functions.submit("gate", &none()).unwrap()).collect();
    // Both workers run a gate: before that, two more could exceed `waiting_max`.
    door.waits_for(2);
    gates.extend((0..2).map(|_| functions.submit("gate", &none()).unwrap()));
    let error = functions.submit("gate", &none()).err().unwrap();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("have not ended"), "{error}");
    door.waits_for(2);
    // Two runs wait and one more may. Calls that time out leave the queue.
    let short_call = || functions.call_within("gate", &none(), Some(Duration::from_millis(10))).unwrap_err();
    for _ in 0..5 {
        assert_eq!(short_call().kind(), ErrorKind::TimedOut);
    }
    std::thread::scope(|scope| {
        let retried_call = || loop {
            match functions.call("gate", &none()) {
                Err(error) if error.to_string().contains("try again later") => {}
                outcome => return outcome,
            }
        };
        let calls = [scope.spawn(retried_call), scope.spawn(retried_call)];
        until("the queue is full", || short_call().kind() == ErrorKind::Conflict);
        door.open();
        calls.into_iter().for_each(|call| drop(call.join().unwrap().unwrap()));
    });
    gates.iter().for_each(|task| assert_eq!(task.wait(None).unwrap().state, TaskState::Completed));
}

#[test]
fn abandoned_runs_are_cancelled() {
    let running = Running::start(|_| {});
    let (started, stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (starts, stops) = (Arc::clone(&started), Arc::clone(&stopped));
    let endless = move |_: &Arguments, context: &cotensor_functions::Context| loop {
        if starts.fetch_add(1, Ordering::SeqCst) > 1 << 40 {
            return Ok(Value::Null);
        }
        if let Err(cancelled) = context.check() {
            stops.fetch_add(1, Ordering::SeqCst);
            return Err(cancelled);
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let limited = endless.clone();
    let _provider = Provider::builder(running.connect("provider"))
        .limits(Limits { workers: 2, ..Limits::default() })
        .function("endless", Options::default(), endless)
        .function("limited", Options::default().timeout(Duration::from_millis(30)).task(), limited)
        .start()
        .unwrap();
    let store = running.connect("caller");
    let functions = Functions::new(store.clone());
    let stops = |count: usize| until(&format!("{count} stopped"), || stopped.load(Ordering::SeqCst) == count);
    let error = functions.call_within("endless", &none(), Some(Duration::from_millis(30))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "the caller's limit: {error}");
    stops(1);
    assert_eq!(functions.call("limited", &none()).unwrap_err().kind(), ErrorKind::TimedOut, "the function's limit");
    stops(2);
    assert_eq!(functions.tasks(Some(TaskState::Failed)).unwrap().len(), 1, "a call of this one is a task");
    let task = functions.submit_within("endless", &none(), Some(Duration::from_millis(30))).unwrap();
    assert_eq!(task.wait(None).unwrap().state, TaskState::Failed, "the task's limit");
    stops(3);
    let task = functions.submit("endless", &none()).unwrap();
    until("the task runs", || task.status().unwrap().state == TaskState::Running);
    assert_eq!(task.cancel().unwrap().state, TaskState::Cancelled);
    stops(4);
    // The task of a caller that disconnects continues. Its arguments are released at its end.
    let argument = put(&*store, "argument", &vec![1; 1 << 20]);
    let other = Functions::new(running.connect("other"));
    let theirs = Arc::new(Mutex::new(None));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let store = running.connect("submitting");
            let argument = store.get("argument", &store.holder("")).unwrap();
            let functions = Functions::new(store);
            let call = functions.submit("endless", &none().arg(argument)).unwrap();
            *theirs.lock().unwrap() = Some((call.epoch(), call.number()));
        });
    });
    let (epoch, number) = theirs.lock().unwrap().unwrap();
    let task = other.task(epoch, number).unwrap();
    until("a task outlives its caller", || task.status().unwrap().state == TaskState::Running);
    task.cancel().unwrap();
    stops(5);
    drop(argument);
    until("the argument is released", || running.daemon.store().stats().total_tensors == 0);
}
