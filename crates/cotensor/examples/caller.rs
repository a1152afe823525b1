//! Calls the functions of the example `provider`: directly, as a task, and through an object that stays with the
//! provider.
//!
//! `cargo run --example caller`, while `provider` runs

use cotensor::client::ClientStore;
use cotensor::functions::{Arguments, CallError, Functions, Value};
use cotensor::store::{CopyReason, Retention, TensorSpec};
use cotensor::{DType, Kind, Lease, TensorStore};
use std::path::PathBuf;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args_os().nth(1).map(PathBuf::from);
    let store = ClientStore::connect(socket.as_deref(), "caller")?;
    let functions = Functions::new(Arc::clone(&store));
    for found in functions.list("")? {
        println!("{} of {}: {}", found.function.name, found.provider.client, found.function.summary);
    }

    // The call sends the tensor's handle, and the provider maps the same pages.
    let tensor = Arc::new(publish(&store, "numbers", &[1.0, 2.0, 3.0, 6.0])?);
    let mean = functions.call("mean", &Arguments::new().arg(Arc::clone(&tensor)))?;
    println!("mean: {}", mean.as_float()?);
    let scaled = functions.call("scale", &Arguments::new().arg(tensor).named("by", 10.0))?;
    println!("scaled: {:?}", scaled.as_tensor()?.typed::<f32>()?);

    // Any process can wait for a task, list it and cancel it.
    let task = functions.submit("wait", &Arguments::new().arg(0.01))?;
    println!("the task has {}", task.wait(None)?.state.name());
    println!("its result: {}", task.result()?.as_str()?);
    let long = functions.submit("wait", &Arguments::new().arg(3600.0))?;
    println!("the long task is {}", long.cancel()?.state.name());

    // An object stays with its provider until its reference is dropped.
    let Value::Remote(counter) = functions.call("counter", &Arguments::new())? else {
        return Err("the counter is not an object".into());
    };
    counter.call("add", &Arguments::new().arg(40))?;
    println!("counted: {}", counter.call("add", &Arguments::new().arg(2))?.as_int()?);

    match functions.call("mean", &Arguments::new().arg("no tensor")) {
        Err(CallError::Failed(failure)) => println!("expected error: {failure}"),
        other => return Err(format!("an error is expected, not {other:?}").into()),
    }
    Ok(())
}

/// Publishes numbers. The tensor is freed with its last lease.
fn publish(store: &ClientStore, name: &str, numbers: &[f32]) -> cotensor::Result<Lease> {
    let spec = TensorSpec {
        device: cotensor_core::Device::Cpu,
        name: name.to_owned(),
        dtype: DType::F32,
        shape: vec![numbers.len()],
        kind: Kind::Other,
        space: None,
        producer: "caller".to_owned(),
        retention: Retention::WhileLeased,
        provenance: None,
        keep_for: None,
        metadata: None,
        members: None,
    };
    let mut reservation = store.reserve(spec, &store.holder(""))?;
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    reservation.write(&bytes, CopyReason::Put)?;
    reservation.publish()
}
