//! Tasks of models without stores, engines, files, threads and clocks.
//!
//! A [`User`] has a model and a task. This crate knows what lies between its inputs and its [`Answer`]: which values the graphs
//! of a task read, and what their outputs mean. It opens and runs no graph; the programs around it do, on a machine or in a
//! browser (it builds for wasm32): a [`Host`] runs the stages of a task, and a [`DecoderHost`] the graphs of a decoder.

mod answer;
mod attention;
mod decode;
mod decoder;
mod decoding;
mod default_task;
mod definition;
mod generate;
mod host;
mod image_tokens;
mod input_file;
mod input_image;
mod inputs;
mod labels;
mod long_sound;
mod numbers;
mod objects;
mod options;
mod outputs;
mod ports;
mod prompt;
mod read_answer;
mod report;
mod scores;
mod sentence;
mod settings;
mod similarity;
mod text_batches;
mod texts;
mod transcript;
mod vocabulary;
mod write;

pub use answer::{Answer, Object, Output, StageOutput};
pub use attention::AttentionMemory;
pub use decode::{Decoder, DecoderHost, Half, at_once, decode, first_inputs, kept_by};
pub use decoder::{Cached, DecoderPorts, empty_cache, last_row, shape_of_one};
pub use decoding::{Decoding, Writing, WritingConfig};
pub use default_task::default_task;
pub use definition::{EncoderOf, Pipeline, User};
pub use generate::decoded_answer;
pub use host::{DecoderTask, Host};
pub use image_tokens::image_token;
pub use input_file::{INPUT_BYTES_MAX, InputFile, check_length};
pub use input_image::{InputImage, image_mask};
pub use inputs::InputData;
pub use labels::{LABELS_FILE, Labels, Problem};
pub use long_sound::LongSound;
pub use numbers::{argmax, best, check_numbers, row_width, sigmoid, softmax};
pub use options::{field_names, read_options};
pub use outputs::{OWN_HEAD, check_architecture, has_class_of, head_output, lacks, output_of, trunk_output};
pub use ports::StagePorts;
pub use read_answer::{AnswerFiles, Answered, Question, outputs_read, read_answer};
pub use report::{Constant, StageReport, UserReport};
pub use scores::{pair_logit, scored};
pub use sentence::{SENTENCE_LABEL, SentenceOutput, SentencePrompt, tokens_key};
pub use similarity::LogitScale;
pub use text_batches::run_length;
pub use texts::{Text, filled_length, task_value, text_values, truncations};
pub use transcript::{SpeechSegment, transcribe_window};
pub use vocabulary::{check_logits, check_vocabulary, vocabulary};
