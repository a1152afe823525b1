//! `put` and `get`: read tensors from files, and write them to files.

use super::connection::connect;
use crate::args::{GetArgs, PutArgs};
use crate::launch::Program;
use crate::output::{FileProgress, Tracked, print, print_json};
use crate::table::{plain, shape};
use cotensor::core::{DType, Error, ErrorKind, Kind, Result, size};
use cotensor::store::{Lease, Retention, TensorStore};
use cotensor_client::protocol::{List, ListOrder, ListParams};
use cotensor_formats::{FileTensor, Format, PublishOptions, TensorReader, file_error, replace, write};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// Maximum number of tensors of `get --all`.
const LIST_MAX: usize = 10_000;

#[derive(Serialize)]
struct Moved {
    tensors: Vec<Tensor>,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    version: u64,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: usize,
}

impl Tensor {
    fn of(lease: &Lease) -> Self {
        let layout = lease.layout();
        Self {
            name: lease.name().to_owned(),
            version: lease.id().version,
            dtype: lease.dtype().name(),
            shape: lease.shape().to_vec(),
            bytes: layout.size_bytes(),
        }
    }
}

fn report(tensors: Vec<Tensor>, json: bool, to_stderr: bool) -> Result<()> {
    if json {
        return print_json(&Moved { tensors });
    }
    let mut text = String::new();
    for Tensor { name, version, dtype, shape: dims, bytes } in &tensors {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} version {version}: {dtype} {}, {}", plain(name), shape(dims), size(*bytes as u64));
    }
    if to_stderr {
        eprint!("{text}");
        return Ok(());
    }
    print(&text)
}

pub(super) fn is_stream(file: &Path) -> bool {
    file == Path::new("-")
}

fn dims(text: &str) -> Result<Vec<usize>> {
    let invalid =
        |_| Error::invalid(format!("{text:?} is not a list of whole numbers such as 2,768")).in_field("--shape");
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(invalid)).collect()
}

pub(crate) fn put(args: &PutArgs, program: &Program) -> Result<()> {
    let format = args.format.map_or_else(|| Format::of(&args.file), |format| Ok(format.into()))?;
    let kind: Kind = args.kind.parse().map_err(|error: Error| error.in_field("--kind"))?;
    let raw = match (&args.dtype, &args.shape) {
        (Some(dtype), Some(shape)) => {
            let dtype: DType = dtype.parse().map_err(|error: Error| error.in_field("--dtype"))?;
            Some(FileTensor::raw(dtype, dims(shape)?))
        }
        _ => None,
    };
    let source: Box<dyn Read> = if is_stream(&args.file) {
        Box::new(std::io::stdin())
    } else {
        let io = |error: std::io::Error| file_error("cannot open", &error, &args.file);
        let file = File::open(&args.file).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        Box::new(Tracked { file, progress: FileProgress::new(len, format!("reading {}", args.file.display())) })
    };
    let in_file = |error: Error| if is_stream(&args.file) { error } else { error.in_file(&args.file) };
    let mut reader = TensorReader::open(source, format, raw).map_err(in_file)?;
    let chosen = choose(args, reader.entries()).map_err(in_file)?;
    let store = connect(&args.client, program, "cotensor put")?;
    let holder = store.holder("");
    let retention = Retention::Cached { recompute: args.recompute };
    let mut tensors = Vec::new();
    for (index, name) in chosen {
        let options = PublishOptions { name: &name, kind, producer: "cotensor put", retention, keep_for: args.keep };
        let lease = reader.put(index, &*store, &holder, &options).map_err(|error| match error.kind() {
            ErrorKind::Corrupt | ErrorKind::Unsupported => in_file(error),
            _ => error,
        })?;
        tensors.push(Tensor::of(&lease));
    }
    drop(reader);
    report(tensors, args.client.json, false)
}

/// Selects the tensors of the file to publish, as (index, name).
fn choose(args: &PutArgs, entries: &[FileTensor]) -> Result<Vec<(usize, String)>> {
    if args.all {
        let named = entries.iter().enumerate();
        return Ok(named.map(|(index, entry)| (index, format!("{}{}", args.name, entry.name))).collect());
    }
    let names = || {
        let names: Vec<_> = entries.iter().take(10).map(|entry| plain(&entry.name)).collect();
        format!("{} tensors ({}{})", entries.len(), names.join(", "), if entries.len() > 10 { ", …" } else { "" })
    };
    let index = match (&args.tensor, entries) {
        (Some(name), _) => entries.iter().position(|entry| entry.name == *name).ok_or_else(|| {
            Error::not_found(format!("no tensor is named {name:?} in the file, which has {}", names()))
                .in_field("--tensor")
        })?,
        (None, [_]) => 0,
        (None, _) => {
            let message = format!("the file has {}; select one, or publish all with --all", names());
            return Err(Error::invalid(message).in_field("--tensor"));
        }
    };
    Ok(vec![(index, args.name.clone())])
}

pub(crate) fn get(args: &GetArgs, program: &Program) -> Result<()> {
    let stream = is_stream(&args.file);
    let format = match args.format {
        Some(format) => format.into(),
        None if stream => Format::Npy,
        None => Format::of(&args.file)?,
    };
    if args.client.json && stream {
        return Err(
            Error::invalid("cannot be combined with `-`: standard output contains the tensor").in_field("--json")
        );
    }
    if args.all && format != Format::Safetensors {
        return Err(Error::invalid("only .safetensors files can contain several tensors").in_field("--all"));
    }
    let store = connect(&args.client, program, "cotensor get")?;
    let holder = store.holder("");
    let leases = if args.all {
        let params = ListParams { prefix: args.name.clone(), limit: LIST_MAX, order: ListOrder::Name };
        let found = store.request::<List>(&params)?;
        if found.tensors.is_empty() {
            return Err(Error::not_found(format!("no tensor's name starts with {:?}", args.name)));
        }
        if found.left_off > 0 {
            return Err(Error::invalid(format!(
                "more than {LIST_MAX} tensors start with this name; use longer prefixes"
            )));
        }
        let mut names: Vec<_> = found.tensors.into_iter().map(|tensor| tensor.spec.name).collect();
        names.dedup();
        names.iter().map(|name| store.get(name, &holder)).collect::<Result<Vec<_>>>()?
    } else {
        vec![store.get(&args.name, &holder)?]
    };
    let named = |lease| (name_in_file(lease, args), lease);
    let tensors: Vec<(&str, &Lease)> = leases.iter().map(named).collect();
    export(&args.file, format, &tensors)?;
    report(leases.iter().map(Tensor::of).collect(), args.client.json, stream)
}

/// A writer that discards all further bytes once the reader closes the pipe.
struct UntilClosed<W> {
    target: W,
    closed: bool,
}

impl<W: Write> Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        match self.target.write(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(bytes.len())
            }
            outcome => outcome,
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.closed { Ok(()) } else { self.target.flush() }
    }
}

fn name_in_file<'a>(lease: &'a Lease, args: &GetArgs) -> &'a str {
    let rest = if args.all { lease.name().strip_prefix(&args.name) } else { None };
    rest.filter(|rest| !rest.is_empty()).unwrap_or(lease.name())
}

/// Writes tensors to `file`, or to standard output for `-`. The names are used by formats with names.
pub(super) fn export(file: &Path, format: Format, tensors: &[(&str, &Lease)]) -> Result<()> {
    if is_stream(file) {
        write(&mut UntilClosed { target: std::io::stdout().lock(), closed: false }, format, tensors)
    } else {
        let len = tensors.iter().map(|(_, lease)| lease.layout().size_bytes() as u64).sum();
        let progress = FileProgress::new(len, format!("writing {}", file.display()));
        replace(file, |target| write(&mut Tracked { file: target, progress }, format, tensors))
    }
}
