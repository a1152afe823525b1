//! Provides functions to other processes until its standard input ends. Starts a daemon if none runs.
//! Build the command first, which runs the daemon: `cargo build`.
//!
//! ```sh
//! cargo run --example provider    # in one terminal
//! cargo run --example caller      # in another terminal
//! cotensor call mean @x.npy       # the same from the command line
//! ```

use cotensor::client::ClientStore;
use cotensor::functions::{Failure, Managed, Object, Options, Provider, Value};
use cotensor::{DType, Lease, Result};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

fn main() -> Result<()> {
    let socket = std::env::args_os().nth(1).map(PathBuf::from);
    let store = ClientStore::connect_or_start(socket.as_deref(), "provider")?;

    let _provider = Provider::builder(store)
        .function("mean", Options::new("The mean of a tensor's numbers."), |arguments, _| {
            let numbers = numbers(arguments.get(0, "tensor")?.as_tensor()?)?;
            Ok((numbers.iter().sum::<f32>() / numbers.len().max(1) as f32).into())
        })
        .function("scale", Options::new("Multiplies a tensor by a number."), |arguments, context| {
            let (tensor, by) = (arguments.get(0, "tensor")?.as_tensor()?, arguments.get(1, "by")?.as_float()?);
            let scaled: Vec<u8> = numbers(tensor)?.iter().flat_map(|n| (n * by as f32).to_ne_bytes()).collect();
            Ok(context.tensor("scaled", DType::F32, tensor.shape(), &scaled)?.into())
        })
        .function(
            "wait",
            Options::new("Waits for a number of seconds, unless it is cancelled.").task(),
            |arguments, context| {
                let end = std::time::Instant::now()
                    + Duration::from_secs_f64(arguments.get(0, "seconds")?.as_float()?.clamp(0.0, 3600.0));
                while std::time::Instant::now() < end {
                    context.check()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok("done".into())
            },
        )
        .function("counter", Options::new("Creates a counter with the method `add`."), |_, _| {
            Ok(Object::new(Counter(AtomicI64::new(0))).into())
        })
        .start()?;
    println!("ready");
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    Ok(())
}

/// The numbers, read in place in memory that all processes map.
fn numbers(tensor: &Lease) -> std::result::Result<&[f32], Failure> {
    Ok(tensor.typed::<f32>()?)
}

struct Counter(AtomicI64);

impl Managed for Counter {
    fn call(
        &self,
        method: &str,
        arguments: &cotensor::functions::Arguments,
        _: &cotensor::functions::Context,
    ) -> std::result::Result<Value, Failure> {
        match method {
            "add" => {
                let by = arguments.get(0, "by")?.as_int()?;
                Ok((self.0.fetch_add(by, Ordering::SeqCst) + by).into())
            }
            _ => Err(Failure::no_method(method)),
        }
    }
}
