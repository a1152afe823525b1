//! The sound of a stream: a thread reads it ahead.

use crate::args::StreamArgs;
use cotensor::core::{Error, Result};
use cotensor::model::preprocess::{AudioBytes, ByteFormat, SoundReader};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// The most seconds that are read at a time.
const SECONDS_AT_ONCE: f64 = 0.25;
/// The bytes that are read at a time before the rate is known.
const HEADER_BYTES: usize = 4096;
/// The most bytes of a compressed file.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// A part of a sound.
pub(super) enum Part {
    /// The samples per second; comes first.
    Rate(u32),
    /// Samples of one channel.
    Samples(Vec<f32>),
    /// The end.
    End,
    /// The sound cannot be read further.
    Failed(Error),
}

/// An error about an argument, with the name of the command's option.
pub(super) fn option(error: Error) -> Error {
    const OPTIONS: [&str; 5] = ["rate", "format", "window", "text_task", "audio_model"];
    match error.field().filter(|field| OPTIONS.contains(field)) {
        Some(field) => Error::new(error.kind(), error.message()).in_field(format!("--{}", field.replace('_', "-"))),
        None => error,
    }
}

/// The way from the reader to the models.
struct Parts {
    parts: SyncSender<Part>,
    stopped: Arc<AtomicBool>,
}

impl Parts {
    /// Waits while a window of sound is ahead. Returns whether more is wanted.
    fn send(&self, part: Part) -> bool {
        self.parts.send(part).is_ok() && !self.stopped.load(Ordering::Relaxed)
    }
}

/// Where the sound comes from.
pub(super) enum Source {
    /// Bytes of this format.
    Bytes(Box<dyn Read + Send>, ByteFormat, Option<PathBuf>),
    /// A file in a compressed format.
    File(PathBuf),
}

impl Source {
    /// Opens the sound that the arguments name.
    ///
    /// # Errors
    /// As [`ByteFormat::parse`]; `NotFound` or `Io` for a file.
    pub(super) fn open(args: &StreamArgs) -> Result<Self> {
        let format = |name: &str| ByteFormat::parse(name, args.rate).map_err(option);
        if args.audio == Path::new("-") {
            let format = match (&args.format, args.rate) {
                (Some(name), _) => format(name)?,
                (None, Some(_)) => {
                    return Err(Error::invalid("raw samples need a format (s16le, f32le)").in_field("--format"));
                }
                (None, None) => ByteFormat::Wav,
            };
            return Ok(Self::Bytes(Box::new(std::io::stdin()), format, None));
        }
        let path = &args.audio;
        let open = || File::open(path).map_err(|error| Error::io("opening", &error).in_file(path));
        let found = std::fs::metadata(path).map_err(|error| Error::io("opening", &error).in_file(path))?;
        let format = match (&args.format, args.rate) {
            (Some(name), _) => Some(format(name)?),
            // What is read from a named pipe does not come again.
            (None, None) if !found.is_file() => Some(ByteFormat::Wav),
            (None, Some(_)) => return Err(Error::invalid("only raw samples have a rate option").in_field("--rate")),
            (None, None) => {
                let mut start = Vec::new();
                let read = open()?.take(12).read_to_end(&mut start);
                read.map_err(|error| Error::io("reading", &error).in_file(path))?;
                start.starts_with(b"RIFF").then_some(ByteFormat::Wav)
            }
        };
        Ok(match format {
            Some(format) => Self::Bytes(Box::new(open()?), format, Some(path.clone())),
            None => Self::File(path.clone()),
        })
    }

    /// Reads the sound on a thread, at most `seconds` ahead, until it ends or `stopped` is true. A compressed file is
    /// resampled to `rate_hz`.
    ///
    /// # Errors
    /// `Io` when no thread can be started.
    pub(super) fn read_ahead(self, seconds: f64, rate_hz: u32, stopped: Arc<AtomicBool>) -> Result<Receiver<Part>> {
        let (parts, receiver) = sync_channel((seconds / SECONDS_AT_ONCE).ceil().max(1.0) as usize);
        let parts = Parts { parts, stopped };
        let read = move || {
            let last = match self.read(&parts, rate_hz) {
                Ok(()) => Part::End,
                Err(error) => Part::Failed(error),
            };
            // The receiver is gone after the end of the command.
            let _ = parts.parts.send(last);
        };
        let thread = std::thread::Builder::new().name("sound".to_owned()).spawn(read);
        thread.map_err(|error| Error::io("starting a thread", &error))?;
        Ok(receiver)
    }

    fn read(self, parts: &Parts, rate_hz: u32) -> Result<()> {
        match self {
            Self::Bytes(source, format, path) => {
                let in_file = |error: Error| match &path {
                    Some(path) => error.in_file(path),
                    None => error,
                };
                read_bytes(source, format, parts).map_err(in_file)
            }
            Self::File(path) => read_file(&path, rate_hz, parts).map_err(|error| error.in_file(&path)),
        }
    }
}

fn read_bytes(mut source: Box<dyn Read + Send>, format: ByteFormat, parts: &Parts) -> Result<()> {
    let mut decoder = AudioBytes::new(format);
    let (mut rate, mut bytes) = (None, vec![0; HEADER_BYTES]);
    loop {
        let read = fill(&mut source, &mut bytes)?;
        let samples = decoder.push(&bytes[..read])?;
        if let (None, Some(known)) = (rate, decoder.sample_rate_hz()) {
            rate = Some(known);
            bytes.resize((f64::from(known) * SECONDS_AT_ONCE) as usize * 2, 0);
            if !parts.send(Part::Rate(known)) {
                return Ok(());
            }
        }
        if !samples.is_empty() && !parts.send(Part::Samples(samples)) {
            return Ok(());
        }
        if read == 0 {
            return decoder.finish();
        }
    }
}

/// Reads until `bytes` is full or the sound ends.
fn fill(source: &mut impl Read, bytes: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match source.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("reading the sound", &error)),
        }
    }
    Ok(filled)
}

fn read_file(path: &Path, rate_hz: u32, parts: &Parts) -> Result<()> {
    let io = |error: std::io::Error| Error::io("reading", &error);
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::invalid("a compressed file of more than 1 GiB"));
    }
    let mut reader = SoundReader::open(&bytes, rate_hz)?;
    if !parts.send(Part::Rate(rate_hz)) {
        return Ok(());
    }
    let samples_max = (f64::from(rate_hz) * SECONDS_AT_ONCE) as usize;
    while let Some(samples) = reader.read()? {
        for part in samples.chunks(samples_max) {
            if !parts.send(Part::Samples(part.to_vec())) {
                return Ok(());
            }
        }
    }
    Ok(())
}
