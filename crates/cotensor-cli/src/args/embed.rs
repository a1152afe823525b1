//! Arguments of `embed`.

use super::Client;
use clap::Args;
use std::path::PathBuf;

/// Embed texts with a model that all processes of this user share.
///
/// The daemon's model process loads the model once, for all callers, and unloads it after a time without requests. Texts that
/// were embedded before are not computed again. Prints one JSON object for each text.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor embed sentence-transformers/all-MiniLM-L6-v2 \"a text\" \"another\"\n  \
    cotensor embed ./model --stdin -o embeddings.npy < texts.txt")]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Folder of the model, or its name on the hub.
    pub(crate) model: String,
    /// Texts.
    #[arg(value_name = "TEXT", required_unless_present = "stdin", conflicts_with = "stdin")]
    pub(crate) texts: Vec<String>,
    /// Read texts from standard input, one on each line; of a line that is a JSON object, its field `text`.
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Write a matrix (.npy), or one JSON object on each line (.jsonl), instead of printing.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Prompt of the model that is put before each text, such as query or document.
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt_name: Option<String>,
    /// Refuse texts that are longer than the model reads, instead of cutting their end off.
    #[arg(long)]
    pub(crate) no_truncate: bool,
    /// How the vectors of tokens become that of a text: mean, cls, max, mean_sqrt_len_tokens, weightedmean, lasttoken [default: as the
    /// model's files state].
    #[arg(long, value_name = "NAME")]
    pub(crate) pooling: Option<String>,
}
