//! Arguments of `quantize`.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use cotensor::model::quantize::Activations;
use cotensor::quant::Scheme;
use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;

/// Write a copy of a model whose weights have few bits.
///
/// Reads the graphs of full precision and writes them with codes of 2, 3, 4 or 8 bits in the place of the float32 matrices that products
/// and tables read, into a new folder with the model's configuration. onnxruntime opens the folder without Cotensor; codes of 3 bits
/// are the exception. Prints the error of each matrix; the same report is in quantization.json of the folder.
///
/// With --from, the codes are those of a file that another program quantized, such as of GGUF or GPTQ.
#[derive(Args)]
pub(crate) struct QuantizeArgs {
    /// Model: a folder, or a name on the hub.
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Write the model to this folder, which must not exist.
    #[arg(long, short, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Take the codes of this quantized copy of the model, unchanged: a .gguf file (Q8_0, Q4_0, Q4_K, Q6_K), or a checkpoint of GPTQ or
    /// AWQ, which is a folder or a .safetensors file. Its tensors are found in the graph by name, else by their elements.
    #[arg(long, value_name = "FILE|DIR",
        conflicts_with_all = ["bits", "group", "scheme", "rotate", "calibrate", "mixed", "target_bits", "max_error"])]
    pub(crate) from: Option<PathBuf>,
    /// Bits of a weight.
    #[arg(long, default_value = "4", value_name = "N", value_parser = one_of::<u32>(&["2", "3", "4", "8"]))]
    pub(crate) bits: u32,
    /// Weights that share a scale; fewer where the columns of a matrix are not a multiple.
    #[arg(long, default_value = "32", value_name = "N", value_parser = one_of::<usize>(&["16", "32", "64", "128", "256"]))]
    pub(crate) group: usize,
    /// How scales are fitted: round (the largest magnitude), search (least squares), or affine (least squares, with an offset).
    #[arg(long, default_value = "search", value_name = "NAME", value_parser = scheme())]
    pub(crate) scheme: Scheme,
    /// Rotate the rows of each matrix in blocks of at most 128 by Hadamard's matrix, and the other factor of each product in the same
    /// way: outliers are spread over a block, and codes have smaller errors.
    #[arg(long)]
    pub(crate) rotate: bool,
    /// The other factor of products: float32; int8, which is faster and rounds it; or auto, which is int8 for 2 and 8 bits, since
    /// onnxruntime expands these for each run otherwise.
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = one_of::<Activations>(&["auto", "float32", "int8"]))]
    pub(crate) activations: Activations,
    /// Run the model on these samples first, and choose codes whose errors compensate each other for the inputs of each product. One of
    /// five is held out, and measures the error of outputs. At least 16 samples, about 500 are used: a folder of text, image or audio files; a .txt file with a text on each line; or a
    /// .jsonl file with the text in the field "text".
    #[arg(long, value_name = "DIR|FILE")]
    pub(crate) calibrate: Option<PathBuf>,
    /// Give each matrix a width and groups of its own, of --group to 128 weights, by what each costs the outputs on the samples. Where one
    /// width for all has no larger error of outputs, or of a single decoder graph no larger divergence of next tokens, that is written.
    #[arg(long, requires = "calibrate")]
    pub(crate) mixed: bool,
    /// The most bits for a weight, with scales, of mixed widths [default: those of --bits].
    #[arg(long, value_name = "N", requires = "calibrate")]
    pub(crate) target_bits: Option<f64>,
    /// In place of --bits: the smallest number of bits with which the outputs of each graph have at most this relative error on
    /// held-out samples, such as 0.05.
    #[arg(long, value_name = "E", requires = "calibrate", conflicts_with_all = ["bits", "mixed", "target_bits"])]
    pub(crate) max_error: Option<f64>,
    /// Leave weights whose names contain this text as they are; repeatable. With --from, also tensors of the file.
    #[arg(long, value_name = "TEXT")]
    pub(crate) keep: Vec<String>,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `two_level` is parsed, so that the command can give the reason why it is not possible.
fn scheme() -> impl TypedValueParser<Value = Scheme> {
    let names = ["round", "search", "affine"].map(PossibleValue::new);
    let known = PossibleValue::new(Scheme::TwoLevel.name()).hide(true);
    PossibleValuesParser::new(names.into_iter().chain([known])).try_map(|text| text.parse())
}

/// A value with one of these texts.
fn one_of<T>(texts: &[&'static str]) -> impl TypedValueParser<Value = T> + use<T>
where
    T: FromStr<Err: Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(texts.iter().copied()).try_map(|text| text.parse())
}
