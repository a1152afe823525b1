//! `embed`: embeddings of texts.

use super::call::model_error;
use super::connection::connect;
use crate::args::EmbedArgs;
use crate::launch::Program;
use crate::output::{Steps, json_line, print_json, report as warn, write_out};
use cotensor::core::{DType, Error, Result};
use cotensor::hub::{ModelId, no_folder};
use cotensor::model::engine::installed_library;
use cotensor::store::{CopyReason, LocalStore, TensorSpec, TensorStore};
use cotensor_client::ClientStore;
use cotensor_demo::Progress;
use cotensor_formats::file_error;
use cotensor_formats::{Format, write};
use cotensor_functions::{Arguments, Functions, Value};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most texts of one call.
const CALL_TEXTS_MAX: usize = 256;
/// The most bytes of a line of standard input.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// The most texts of standard input.
const TEXTS_MAX: usize = 10_000_000;
/// The most positions of texts in a line on standard error.
const TEXTS_SHOWN_MAX: usize = 10;
const FUNCTION: &str = "model.embed";

/// The line of one text.
#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    text: &'a str,
    tokens: i64,
    /// Whether the end of the text was cut off.
    #[serde(rename = "truncated", skip_serializing_if = "std::ops::Not::not")]
    is_truncated: bool,
    embedding: &'a [f32],
}

/// The JSON object of `--json`.
#[derive(Serialize)]
struct Embedded<'a> {
    model: &'a str,
    dimensions: usize,
    texts: usize,
    tokens: i64,
    /// The positions of the texts whose end was cut off.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    truncated: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a Path>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    embeddings: Vec<&'a [f32]>,
}

/// The rows of all texts so far.
#[derive(Default)]
struct Rows {
    width: usize,
    values: Vec<f32>,
    tokens: Vec<i64>,
    /// The positions of the texts whose end was cut off, in ascending order.
    truncated: Vec<usize>,
    notices: BTreeSet<String>,
}

pub(crate) fn embed(args: &EmbedArgs, program: &Program) -> Result<()> {
    let format = args.output.as_deref().map(|path| output_format(path).map(|format| (path, format))).transpose()?;
    let stdin;
    let texts = if args.stdin {
        stdin = lines()?;
        &stdin
    } else {
        &args.texts
    };
    let model = &*model_name(&args.model)?;
    let models = ModelFunctions::new(connect(&args.client, program, "cotensor embed")?);
    let mut rows = Rows::default();
    let steps = (texts.len() > CALL_TEXTS_MAX).then(Steps::new);
    for part in texts.chunks(CALL_TEXTS_MAX) {
        rows.add(&models, model, part, args)?;
        if let Some(steps) = &steps {
            steps.step(rows.tokens.len() as u64, texts.len() as u64, "embedding");
        }
    }
    drop(steps);
    if !rows.truncated.is_empty() {
        warn(&cut(&rows.truncated));
    }
    rows.notices.iter().for_each(|notice| warn(&format!("notice: {notice}")));
    match format {
        Some((path, OutputFormat::Matrix)) => rows.write_matrix(path)?,
        Some((path, OutputFormat::Lines)) => rows.write_lines(path, texts)?,
        None => {}
    }
    if args.client.json {
        let embeddings = if format.is_none() { rows.rows().collect() } else { Vec::new() };
        return print_json(&Embedded {
            model,
            dimensions: rows.width,
            texts: texts.len(),
            tokens: rows.tokens.iter().sum(),
            truncated: &rows.truncated,
            output: args.output.as_deref(),
            embeddings,
        });
    }
    if format.is_none() {
        for line in rows.lines(texts) {
            write_out(&line?)?;
        }
    }
    Ok(())
}

/// The functions of the model process, which the daemon starts at the first call, and again after its end.
pub(super) struct ModelFunctions {
    store: Arc<ClientStore>,
    functions: Functions,
}

impl ModelFunctions {
    pub(super) fn new(store: Arc<ClientStore>) -> Self {
        Self { functions: Functions::new(Arc::clone(&store)), store }
    }

    /// Calls a function that has no effect but its result.
    ///
    /// # Errors
    /// As `models.start` of the daemon; the function's.
    pub(super) fn call(&self, name: &str, arguments: &Arguments) -> Result<Value> {
        offer_library(&self.store);
        let start = || self.store.start_models().map(drop);
        self.functions.call_starting(name, arguments, &start).map_err(|error| model_error(error, name))
    }
}

/// Lets the model process use the fast engine of this installation, if it has one.
pub(super) fn offer_library(store: &ClientStore) {
    if let Some(library) = installed_library() {
        store.offer_library(library);
    }
}

/// The name of a model for another process: the absolute path of a folder, or a name on the hub.
///
/// # Errors
/// `NotFound` for a path without a folder that can be no name on the hub; `Invalid` for a path that is not UTF-8.
pub(super) fn model_name(model: &str) -> Result<String> {
    let folder = Path::new(model);
    if !folder.is_dir() {
        return ModelId::parse(model).map(|_| model.to_owned()).map_err(|_| no_folder(folder));
    }
    let path = std::path::absolute(folder).map_err(|error| Error::io("finding the model", &error))?;
    // Without a slash at the end.
    let path: PathBuf = path.components().collect();
    path.into_os_string().into_string().map_err(|_| Error::invalid("the path is not UTF-8").in_field("MODEL"))
}

#[derive(Clone, Copy)]
enum OutputFormat {
    Matrix,
    Lines,
}

fn output_format(path: &Path) -> Result<OutputFormat> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy") => Ok(OutputFormat::Matrix),
        Some("jsonl") => Ok(OutputFormat::Lines),
        _ => Err(Error::invalid("the name of the file ends neither in .npy nor in .jsonl")
            .in_file(path)
            .in_field("--output")),
    }
}

/// The line on standard error about texts that were cut.
fn cut(texts: &[usize]) -> String {
    let shown: Vec<String> = texts.iter().take(TEXTS_SHOWN_MAX).map(usize::to_string).collect();
    let rest = if texts.len() > shown.len() { ", …" } else { "" };
    format!(
        "{} longer than the model reads and cut at the end: {}{rest} (counted from 0; --no-truncate refuses)",
        if texts.len() == 1 { "1 text is".to_owned() } else { format!("{} texts are", texts.len()) },
        shown.join(", ")
    )
}

/// The texts of standard input.
fn lines() -> Result<Vec<String>> {
    let mut input = std::io::stdin().lock();
    let mut texts = Vec::new();
    loop {
        let number = texts.len() + 1;
        let io = |error| Error::io("reading standard input", &error);
        let mut line = Vec::new();
        let count = std::io::Read::take(&mut input, LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(io)?;
        if count as u64 == LINE_BYTES_MAX || number > TEXTS_MAX {
            let message = format!("line {number}: at most {TEXTS_MAX} lines of {LINE_BYTES_MAX} bytes are read");
            return Err(Error::invalid(message).in_field("--stdin"));
        }
        if count == 0 {
            break;
        }
        let line = String::from_utf8(line).map_err(|error| {
            let at = error.utf8_error().valid_up_to() + 1;
            Error::invalid(format!("line {number}: byte {at} is not UTF-8")).in_field("--stdin")
        })?;
        let text = line.trim_end_matches(['\n', '\r']);
        texts.push(if text.trim_start().starts_with('{') {
            match serde_json::from_str::<serde_json::Value>(text)
                .ok()
                .and_then(|mut line| line.get_mut("text").map(serde_json::Value::take))
            {
                Some(serde_json::Value::String(text)) => text,
                _ => {
                    return Err(Error::invalid(format!("line {number} is not a JSON object with a field text"))
                        .in_field("--stdin"));
                }
            }
        } else {
            text.to_owned()
        });
    }
    if texts.is_empty() { Err(Error::invalid("standard input has no text").in_field("--stdin")) } else { Ok(texts) }
}

/// The line of standard input with the text that an error of the model process names: `texts[3]: …`.
fn line_of(error: &Error) -> Option<usize> {
    let (position, _) = error.message().strip_prefix("texts[")?.split_once(']')?;
    Some(position.parse::<usize>().ok()? + 1)
}

impl Rows {
    /// Embeds further texts.
    fn add(&mut self, models: &ModelFunctions, model: &str, texts: &[String], args: &EmbedArgs) -> Result<()> {
        let list: Vec<Value> = texts.iter().map(|text| text.as_str().into()).collect();
        let mut arguments = Arguments::new().named("model", model).named("texts", list);
        for (name, value) in [("prompt_name", &args.prompt_name), ("pooling", &args.pooling)] {
            if let Some(value) = value {
                arguments = arguments.named(name, value.as_str());
            }
        }
        if args.no_truncate {
            arguments = arguments.named("truncate", false);
        }
        let before = self.tokens.len();
        if before > 0 {
            arguments = arguments.named("first_index", before as i64);
        }
        let answer = models.call(FUNCTION, &arguments).map_err(|error| match line_of(&error) {
            // Each line of standard input is a text.
            Some(line) if args.stdin => error.prefixed(format_args!("line {line}")),
            _ => error,
        })?;
        let answer = answer.as_map()?;
        let corrupt = || Error::corrupt("the answer of the model process has no embeddings");
        let lease = answer.get("embeddings").ok_or_else(corrupt)?.as_tensor()?;
        let &[count, width] = lease.shape() else { return Err(corrupt()) };
        if count != texts.len() || (self.width != 0 && width != self.width) {
            return Err(corrupt());
        }
        self.width = width;
        self.values.extend_from_slice(lease.typed::<f32>()?);
        for tokens in answer.get("tokens").ok_or_else(corrupt)?.as_list()? {
            self.tokens.push(tokens.as_int()?);
        }
        // Model processes of former versions answer no such lists.
        for at in answer.get("truncated").map(Value::as_list).transpose()?.unwrap_or_default() {
            self.truncated.push(before + usize::try_from(at.as_int()?).map_err(|_| corrupt())?);
        }
        for notice in answer.get("notices").map(Value::as_list).transpose()?.unwrap_or_default() {
            self.notices.insert(notice.as_str()?.to_owned());
        }
        Ok(())
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }

    fn lines<'a>(&'a self, texts: &'a [String]) -> impl Iterator<Item = Result<String>> + 'a {
        let rows = self.rows().zip(texts).zip(&self.tokens).enumerate();
        rows.map(|(index, ((embedding, text), &tokens))| {
            let is_truncated = self.truncated.binary_search(&index).is_ok();
            json_line(&Line { index, text, tokens, is_truncated, embedding })
        })
    }

    fn write_lines(&self, path: &Path, texts: &[String]) -> Result<()> {
        let io = |error: std::io::Error| file_error("writing", &error, path);
        let mut file = BufWriter::new(File::create(path).map_err(io)?);
        for line in self.lines(texts) {
            file.write_all(line?.as_bytes()).map_err(io)?;
        }
        file.flush().map_err(io)
    }

    fn write_matrix(&self, path: &Path) -> Result<()> {
        let store = LocalStore::builder().build();
        let spec = TensorSpec::new("embeddings", DType::F32, &[self.tokens.len(), self.width]);
        let mut reservation = store.reserve(spec, &store.holder("cotensor embed"))?;
        let bytes: Vec<u8> = self.values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        reservation.write(&bytes, CopyReason::Put)?;
        let lease = reservation.publish()?;
        let io = |error: std::io::Error| file_error("writing", &error, path);
        let mut file = BufWriter::new(File::create(path).map_err(io)?);
        write(&mut file, Format::Npy, &[("", &lease)]).map_err(|error| error.in_file(path))?;
        file.flush().map_err(io)
    }
}
