//! The prompt of a text that a decoder continues.

use cotensor_core::{Error, Result};
use cotensor_preprocess::ChatTemplate;
use cotensor_preprocess::family::ModelConfig;

/// A text as a decoder reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    /// The text that is tokenized.
    pub(super) text: String,
    /// Whether the tokens that the tokenizer adds to a text are left out.
    pub(super) is_plain: bool,
    /// Whether the text is a message of a chat. Without its end, the model would not answer.
    pub(super) is_chat: bool,
}

/// The prompt for a text: the text itself, or a chat with the text as the message of a user. `chat` is the user's choice, and
/// `field` names it in errors. A text about an image that does not have the image's token (`image`) is a message. `template` is
/// the model's chat template, if it has one.
///
/// # Errors
/// `Invalid` for a chat without a template, the errors of `template` and of [`ChatTemplate::prompt`].
pub(super) fn prompt_of<'t>(
    text: &str,
    image: Option<&str>,
    (chat, field): (Option<bool>, &str),
    config: &ModelConfig<'_>,
    template: impl FnOnce() -> Result<Option<&'t ChatTemplate>>,
) -> Result<Prompt> {
    let template = match (chat, image) {
        (Some(true), _) => Some(template()?.ok_or_else(|| {
            let message =
                "the model has no chat template, neither in this file nor as chat_template in tokenizer_config.json";
            Error::invalid(message).in_file(config.folder.join("chat_template.jinja")).in_field(field)
        })?),
        (None, Some(token)) if !text.contains(token) => template()?,
        _ => None,
    };
    let Some(template) = template else {
        return Ok(Prompt { text: text.to_owned(), is_plain: false, is_chat: false });
    };
    let text = template.prompt(text, image.is_some())?;
    // As processors of transformers do, unlike its tokenizers.
    let is_plain = image.is_none() || template.has_start(&text);
    Ok(Prompt { text, is_plain, is_chat: true })
}

/// The error for a message whose end the model does not read.
pub(super) fn cut_message() -> Error {
    Error::invalid("the message is longer than the model reads").in_field("text")
}
