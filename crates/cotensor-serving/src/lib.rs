//! Models for all processes of a machine: one process opens a model, and every process can run it, by functions
//! ([`model_functions`]) and by HTTP ([`v1`]).
//!
//! | function | arguments | result |
//! |---|---|---|
//! | `model.open` | `folder`, `variant` | a reference, which keeps the model open |
//! | `model.run` | `model`, `variant`, `task`; depending on the task: `text`, `image`, `audio`, and the options of a [`User`](cotensor_model::pipeline::User) | `answer`, `outputs` (tensors by name), `tensors` (outputs of the stages, by kind), `stages`, `notices` |
//! | `model.stage` | `model`, `variant`, `role`, `inputs` (tensors by name) | the stage's outputs (tensors by name) |
//! | `model.embed` | `model`, `texts`, `prompt_name`, `variant`, `pooling`, `dimensions`, `truncate` (false refuses a text that is too long), `first_index` (of the first text in the caller's list, for errors) | `embeddings` (a tensor: one row for each text), `tokens` (counts), `truncated` (positions of the texts that were cut), `notices` |
//! | `model.load` | `model`, `variant`, `ttl_s`, `pinned` | the entry of `model.list` |
//! | `model.unload` | `model`, or `all` | `unloaded` (names) |
//! | `model.list` | | `models`: each with `name`, `folder`, `family`, `stages`, `engines`, `weights_bytes`, `shared_bytes`, `requests`, `in_use`, `idle_s`, `pinned`, `unload_in_s`; `engine`: `name`, `version`, `library`, `absent` (why a better one cannot be used) |
//!
//! `model` is a reference, the absolute path of a folder, or the name of a model on the hub. A folder whose files changed
//! is opened again; a reference keeps its version. `variant` (`fp16`) chooses the graphs of a folder or a name.
//! `image` and `audio` are the absolute path of a file, its bytes, or a `uint8` tensor of its bytes.

mod arguments;
mod functions;
mod loaded;
pub mod v1;

pub use functions::model_functions;
pub use loaded::{EmbedOptions, Embedded, LoadedModels, ServingOptions, TextsError};
