use super::logit_scale::scale_of;
use super::stage_loader::StageLoader;
use crate::engine::{Engines, FileMode};
use crate::folder::{FolderStamp, ModelFolder, changed};
use crate::quantized::{QuantizeReport, QuantizedWeights};
use crate::stage::Stage;
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result};
use cotensor_pipeline::{AnswerFiles, LABELS_FILE, Labels, LogitScale};
use cotensor_preprocess::family::{CONFIG_FILE, Family, ModelConfig, Variant, family_of_model, variant};
use cotensor_preprocess::generation::{self, GenerationConfig};
use cotensor_preprocess::{
    AudioProcessor, ChatTemplate, CtcDecoder, ImageProcessor, LogitScore, ScoreFunction, SentenceProcessor,
    TextProcessor, find_json,
};
use cotensor_store::Store;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

/// How a model loads its stages.
pub enum StageSource {
    /// With weights and results in the store of a [`Runtime`](super::Runtime).
    Shared(Arc<StageLoader>),
    /// As a private copy, like a program without Cotensor. Measurements compare against it.
    Private(Engines, FileMode),
}

/// A model: its family, its preprocessing and its stages. Each part is opened at its first use. An open model never
/// mixes files of different times: after a change of the folder, it refuses to open further parts.
pub struct Model {
    pub(super) folder: PathBuf,
    /// The state of the files when the model was opened.
    stamp: FolderStamp,
    pub(super) family: &'static Family,
    pub(super) config: serde_json::Value,
    pub(super) variant: Option<&'static Variant>,
    pub(super) source: StageSource,
    pub(super) stages: Mutex<HashMap<String, Arc<Stage>>>,
    text: OnceLock<TextProcessor>,
    chat: OnceLock<Option<ChatTemplate>>,
    image: OnceLock<ImageProcessor>,
    audio: OnceLock<AudioProcessor>,
    ctc: OnceLock<CtcDecoder>,
    logit_scale: OnceLock<LogitScale>,
    sentence: OnceLock<(SentenceProcessor, TextProcessor)>,
    quantization: OnceLock<Option<QuantizeReport>>,
    json: Mutex<HashMap<String, Option<Arc<serde_json::Value>>>>,
}

impl Model {
    /// Opens a folder: reads config.json and finds the family. Loads no graph.
    ///
    /// # Errors
    /// `NotFound` without a config.json, `Corrupt` when it is not a JSON object, `Invalid` without a `model_type`,
    /// `Unsupported` for an unknown family.
    pub fn open(folder: &Path, source: StageSource) -> Result<Self> {
        Self::open_variant(folder, source, None)
    }

    /// As [`open`](Self::open), with the graphs of one [variant](cotensor_preprocess::family::variants), such as `fp16`.
    /// `None`, and a stage that the folder does not have in this variant, use the first variant whose file exists.
    ///
    /// # Errors
    /// As [`open`](Self::open); `Invalid` for an unknown variant, `NotFound` for one in which the folder has no graph.
    pub fn open_variant(folder: &Path, source: StageSource, name: Option<&str>) -> Result<Self> {
        let variant = name.map(variant).transpose()?;
        let path = folder.join(CONFIG_FILE);
        let stamp = FolderStamp::of(folder)?;
        let config = find_json(&ModelFolder::new(folder), CONFIG_FILE)?;
        let config = config.ok_or_else(|| Error::not_found("a model needs this file").in_file(&path))?;
        let model_type = config.get("model_type").and_then(serde_json::Value::as_str);
        let model_type =
            model_type.ok_or_else(|| Error::invalid("a string is required").in_file(&path).in_field("model_type"))?;
        let family = family_of_model(model_type, |file| folder.join(file).is_file());
        let family = family.map_err(|error| error.in_file(&path).in_field("model_type"))?;
        let checked = family.check_variant(variant, |file| folder.join(file).is_file());
        checked.map_err(|error| error.in_file(folder))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            stamp,
            family,
            config,
            variant,
            source,
            stages: Mutex::default(),
            text: OnceLock::new(),
            chat: OnceLock::new(),
            image: OnceLock::new(),
            audio: OnceLock::new(),
            ctc: OnceLock::new(),
            logit_scale: OnceLock::new(),
            sentence: OnceLock::new(),
            quantization: OnceLock::new(),
            json: Mutex::default(),
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// An error that names the folder, unless it names a file.
    pub(crate) fn at_folder(&self, error: Error) -> Error {
        if error.file().is_some() { error } else { error.in_file(&self.folder) }
    }

    fn files(&self) -> ModelFolder<'_> {
        ModelFolder::new(&self.folder)
    }

    /// The display name: the name on the hub, for a folder of its cache; else the name of the folder.
    pub fn name(&self) -> String {
        let of_folder = || self.folder.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = cotensor_hub::name_of_snapshot(&self.folder).or_else(of_folder);
        name.unwrap_or_else(|| self.folder.display().to_string())
    }

    /// The family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// The name of the variant that was chosen for the graphs.
    pub fn variant(&self) -> Option<&'static str> {
        self.variant.map(|variant| variant.name.as_str())
    }

    /// The content of config.json.
    pub fn config(&self) -> &serde_json::Value {
        &self.config
    }

    /// config.json, read as the family says.
    pub(crate) fn model_config(&self) -> ModelConfig<'_> {
        ModelConfig { family: self.family, values: &self.config, folder: &self.folder }
    }

    /// A value of config.json, which may be in an inner object: `vision_config.hidden_size`.
    pub(crate) fn config_at(&self, path: &str) -> Option<&serde_json::Value> {
        self.model_config().at(path)
    }

    /// Whether the files declare that the first `count` dimensions of an embedding are an embedding: `matryoshka_dimensions`
    /// or `is_matryoshka` in config.json.
    pub fn declares_dimensions(&self, count: usize) -> bool {
        match self.config_at("matryoshka_dimensions").and_then(serde_json::Value::as_array) {
            Some(known) => known.iter().any(|known| known.as_u64() == Some(count as u64)),
            None => self.config_at("is_matryoshka").and_then(serde_json::Value::as_bool) == Some(true),
        }
    }

    /// The parameters of generation for a task.
    ///
    /// # Errors
    /// As [`GenerationConfig::of`].
    pub(crate) fn generation(&self, task: &str) -> Result<GenerationConfig> {
        GenerationConfig::of(&self.model_config(), self.json(generation::FILE)?.as_deref(), task)
    }

    /// Whether the files are unchanged since the model was opened.
    ///
    /// # Errors
    /// `Io` when the folder cannot be read.
    pub(crate) fn is_current(&self) -> Result<bool> {
        Ok(FolderStamp::of(&self.folder)?.continues(&self.stamp))
    }

    /// Refuses to read further files after a change of the folder.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        if FolderStamp::of(&self.folder)?.same_files(&self.stamp) { Ok(()) } else { Err(changed(&self.folder)) }
    }

    /// How the model loads its stages.
    pub fn source(&self) -> &StageSource {
        &self.source
    }

    /// The store of the runtime.
    ///
    /// # Errors
    /// `Invalid` for a private copy, which has no store.
    pub(crate) fn store(&self) -> Result<&dyn Store> {
        match &self.source {
            StageSource::Shared(loader) => Ok(&**loader.store()),
            StageSource::Private(..) => Err(Error::invalid("a private copy of a model has no store")),
        }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// As [`TextProcessor::open_for`].
    pub fn text(&self) -> Result<&TextProcessor> {
        self.opened(&self.text, || TextProcessor::open_for(&self.files(), &self.model_config()))
    }

    /// The template of chats, if the model has one.
    ///
    /// # Errors
    /// As [`ChatTemplate::open`].
    pub(crate) fn chat(&self) -> Result<Option<&ChatTemplate>> {
        self.opened(&self.chat, || ChatTemplate::open(&self.files())).map(Option::as_ref)
    }

    /// The configuration of sentence embeddings, and the tokenizer with its limits.
    ///
    /// # Errors
    /// As [`SentenceProcessor::open`] and [`TextProcessor::open`].
    pub(crate) fn sentence(&self) -> Result<&(SentenceProcessor, TextProcessor)> {
        self.opened(&self.sentence, || {
            let sentence = SentenceProcessor::open(&self.files(), &self.config, &self.name())?;
            let text = self.text()?;
            let text = text.for_sentences(sentence.max_tokens(text.max_tokens()), sentence.lowercases())?;
            Ok((sentence, text))
        })
    }

    /// The configuration of sentence embeddings with the pooling that a user chose, or with that of the files.
    ///
    /// # Errors
    /// As [`sentence`](Self::sentence) and [`SentenceProcessor::with_pooling`]; errors name the folder.
    pub(crate) fn sentence_pooled(&self, pooling: Option<&str>) -> Result<SentenceProcessor> {
        let (sentence, _) = self.sentence()?;
        pooling.map_or_else(|| Ok(sentence.clone()), |name| sentence.clone().with_pooling(name))
    }

    /// How the weights were quantized: what [`quantize_folder`](crate::quantize::quantize_folder) reported. `None` for graphs that
    /// another program wrote.
    ///
    /// # Errors
    /// `Corrupt` for a report that is damaged, `Io`.
    pub fn quantization(&self) -> Result<Option<&QuantizeReport>> {
        self.opened(&self.quantization, || QuantizeReport::read(&self.folder)).map(Option::as_ref)
    }

    /// What is known of the quantized weights of a loaded stage of this model. `None` for a stage without weights of few bits in the store.
    ///
    /// # Errors
    /// As [`quantization`](Self::quantization).
    pub fn quantized(&self, stage: &Stage) -> Result<Option<QuantizedWeights>> {
        let Some(codes) = stage.codes() else { return Ok(None) };
        Ok(Some(QuantizedWeights::of(&codes, self.quantization()?, self.relative(stage.path()))))
    }

    /// A path in the folder, relative to it.
    pub(super) fn relative<'p>(&self, path: &'p Path) -> &'p Path {
        path.strip_prefix(&self.folder).unwrap_or(path)
    }

    /// The function from the logit of a reranker to its score.
    ///
    /// # Errors
    /// As [`ScoreFunction::open`].
    pub(crate) fn score_function(&self) -> Result<ScoreFunction> {
        self.check_unchanged()?;
        ScoreFunction::open(&self.files(), &self.config)
    }

    /// What a causal language model scores texts by.
    ///
    /// # Errors
    /// As [`LogitScore::open`].
    pub(crate) fn logit_score(&self) -> Result<LogitScore> {
        self.check_unchanged()?;
        LogitScore::open(&self.files())
    }

    /// The image preprocessing.
    ///
    /// # Errors
    /// As [`ImageProcessor::open`].
    pub fn image(&self) -> Result<&ImageProcessor> {
        let model_type = self.config.get("model_type").and_then(serde_json::Value::as_str).unwrap_or_default();
        let class = self.family.image_processors.get(model_type);
        self.opened(&self.image, || ImageProcessor::open(&self.files(), class.map(String::as_str)))
    }

    /// The audio preprocessing.
    ///
    /// # Errors
    /// As [`AudioProcessor::open`].
    pub fn audio(&self) -> Result<&AudioProcessor> {
        self.opened(&self.audio, || AudioProcessor::open(&self.files(), self.family.audio_processor.as_deref()))
    }

    /// Another JSON file of the folder, if it exists. It is read once.
    ///
    /// # Errors
    /// `Corrupt` when it is not JSON, `Conflict` when the folder changed since the model was opened.
    pub fn json(&self, file: &str) -> Result<Option<Arc<serde_json::Value>>> {
        let mut read = lock(&self.json);
        if let Some(known) = read.get(file) {
            return Ok(known.clone());
        }
        self.check_unchanged()?;
        let found = find_json(&self.files(), file)?.map(Arc::new);
        read.insert(file.to_owned(), found.clone());
        Ok(found)
    }

    fn opened<'a, T>(&self, cell: &'a OnceLock<T>, open: impl FnOnce() -> Result<T>) -> Result<&'a T> {
        if let Some(value) = cell.get() {
            return Ok(value);
        }
        self.check_unchanged()?;
        let value = open()?;
        Ok(cell.get_or_init(|| value))
    }
}

impl AnswerFiles for Model {
    fn config(&self) -> ModelConfig<'_> {
        self.model_config()
    }

    fn labels(&self, head: &str, count: usize) -> Result<Labels> {
        Labels::of(&self.model_config(), self.json(LABELS_FILE)?.as_deref(), head, count)
    }

    fn tokenizer(&self) -> Result<&TextProcessor> {
        self.text()
    }

    fn sentence(&self) -> Result<&SentenceProcessor> {
        Model::sentence(self).map(|(sentence, _)| sentence)
    }

    fn ctc(&self) -> Result<&CtcDecoder> {
        self.opened(&self.ctc, || CtcDecoder::open(&self.files()))
    }

    fn logit_scale(&self) -> Result<&LogitScale> {
        self.opened(&self.logit_scale, || scale_of(&self.folder, &self.config, self.family, self.variant))
    }
}
