//! The programs that run the stages of a task.

use super::decoding::{Writing, WritingConfig};
use super::definition::User;
use cotensor_core::Result;
use cotensor_preprocess::family::{ModelConfig, Task};
use cotensor_preprocess::{Array, ChatTemplate, TextProcessor};
use std::borrow::Borrow;
use std::rc::Rc;

/// A task that a decoder answers, for one user.
pub struct DecoderTask<'a> {
    /// The model.
    pub model: ModelConfig<'a>,
    /// The parameters by which it writes.
    pub config: &'a WritingConfig,
    /// Gives the model's chat template, if it has one. Called when a chat is wanted.
    pub chat: Box<dyn Fn() -> Result<Option<&'a ChatTemplate>> + 'a>,
    /// The task.
    pub task: &'static Task,
    /// The stages of the task, in the form in which the model has its decoder.
    pub roles: Vec<&'a str>,
    /// The user.
    pub user: &'a User,
    /// The name of the option `chat` in errors.
    pub chat_option: &'a str,
    /// What the decoder continues: the text, behind the prefix of the task, or the beginning that the user gives.
    pub text: Option<String>,
}

/// Runs the stages of a task, and keeps their results. A native host answers at once ([`at_once`](super::at_once)); a page waits for
/// its engine. A failure of a page, and an abort, end the future without a result.
#[allow(async_fn_in_trait, reason = "a host is used on the thread that polls it")]
pub trait Host {
    /// The tokenizer of the model.
    type Tokenizer: Borrow<TextProcessor> + Clone;

    /// The tokenizer.
    fn tokenizer(&mut self) -> Result<Self::Tokenizer>;

    /// The tokens of a text, without those that the tokenizer adds if it is `plain`; and whether its end was cut off.
    fn tokens(&mut self, text: &str, plain: bool) -> Result<(Vec<i64>, bool)>;

    /// Adds a notice, once.
    fn notice(&mut self, notice: String);

    /// Gives the user a piece of the text.
    async fn give(&mut self, piece: &str) -> Result<()>;

    /// Lets other work of the thread run.
    async fn turn(&mut self);

    /// Sets the features of a part of a sound, in place of the user's inputs. Releases the results of the stages for the part
    /// before.
    fn set_part(&mut self, features: Array);

    /// Runs a stage on the inputs, unless the tensor of another model replaces its result. Returns the shape of the result, which
    /// later stages read.
    async fn encode(&mut self, role: &str) -> Result<Vec<usize>>;

    /// The scores of all tokens after `tokens`, which the decoder reads first.
    async fn scores(&mut self, tokens: &[i64]) -> Result<Vec<f32>>;

    /// Decodes, unless the tokens are known. Returns them, and whether this call decoded. It gives the pieces of the text
    /// meanwhile.
    async fn decode(&mut self, writing: &Rc<Writing<Self::Tokenizer>>) -> Result<(Vec<i64>, bool)>;
}
