use serde::{Deserialize, Serialize};

/// What a user of a model can request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The name in pipelines.
    pub name: String,
    /// The families that perform the task this way.
    pub family: Vec<String>,
    /// The roles of the stages that run, in order.
    pub stages: Vec<String>,
    /// Whether a head graph runs on the output of the last stage.
    #[serde(default)]
    pub head: bool,
    /// Suffixes of the names in `architectures` of config.json. A checkpoint with such a name has a head for this
    /// task.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// Whether the decoder's prompt is the text itself. Otherwise the prompt has only the tokens that start a decoding.
    #[serde(default)]
    pub prompt: bool,
    /// Whether a text of the user is the beginning of the text that the decoder writes: its tokens, without those that the
    /// tokenizer adds, follow the token that starts a decoding.
    #[serde(default)]
    pub begins: bool,
    /// The output of the last stage that is the answer itself, in graphs that have it.
    #[serde(default)]
    pub result: Option<String>,
    /// The task of optimum's exporter that makes the graphs.
    #[serde(default)]
    pub export: Option<String>,
    /// How the last output becomes an answer.
    pub answer: AnswerKind,
}

/// How a task reads the last output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerKind {
    /// Logits `[1, labels]`: labels with probabilities, or the numbers of a regression.
    Label,
    /// Logits `[1, tokens, labels]`: the best label of each token.
    LabelPerToken,
    /// Logits `[1, 1]` of each pair of the input text and a text of the user: scores.
    Scores,
    /// Hidden states `[1, tokens, width]`, pooled as the sentence-transformers files of the model specify.
    Sentence,
    /// Hidden states `[1, tokens, width]`: the first token's.
    FirstToken,
    /// `[1, width]`, scaled to length 1.
    Embedding,
    /// Embeddings of an image, or of a sound, and of texts: cosine similarities and their probabilities.
    Similarity,
    /// Logits `[1, frames, tokens]` of connectionist temporal classification: text.
    Ctc,
    /// Logits `[1, queries, labels + 1]` and boxes `[1, queries, 4]`: objects in an image.
    Objects,
    /// Decoded text.
    Text,
    /// Greedy decoding of speech to text.
    Transcript,
    /// The language whose token has the highest logit.
    Language,
}

impl AnswerKind {
    /// Whether a decoder writes the answer.
    pub fn is_decoded(self) -> bool {
        matches!(self, AnswerKind::Text | AnswerKind::Transcript)
    }
}

/// The number of texts that a user of a task may specify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextLimit {
    /// The task reads no text.
    None,
    /// At most one text.
    One,
    /// Any number of texts.
    Many,
}
