//! The task that inputs of some types mean.

use super::outputs::has_class_of;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{AnswerKind, Family, Medium, ModelConfig, Task};

/// The task of a model that reads inputs of exactly the types `given`: that of the class in config.json, else the first of the
/// family that needs no head. `has_pairs`: there are texts to compare with the text, which only a task of scores does. `model` is the
/// name of the model, for errors.
///
/// # Errors
/// `Invalid` when no task fits; the message lists the tasks of the model and their inputs.
pub fn default_task(config: &ModelConfig<'_>, model: &str, given: &[Medium], has_pairs: bool) -> Result<&'static Task> {
    let family = config.family;
    let begins = |task: &Task, medium| task.begins && medium == Medium::Text && given.contains(&medium);
    let reads_given = |task: &Task| {
        let reads = |medium| family.reads(task, medium) || begins(task, medium);
        has_pairs == (task.answer == AnswerKind::Scores)
            && Medium::ALL.into_iter().all(|medium| reads(medium) == given.contains(&medium))
    };
    let fitting = || family.tasks().filter(|task| reads_given(task));
    let of_class = fitting().find(|task| task.head && has_class_of(config, task));
    // Nothing but a head gives scores, also where config.json does not name its class.
    of_class.or_else(|| fitting().find(|task| has_pairs || !task.head)).ok_or_else(|| {
        let known: Vec<String> = family.tasks().map(|task| described(family, task)).collect();
        let names: Vec<&str> = given.iter().map(|medium| medium.name()).collect();
        let given = if names.is_empty() { "no input".to_owned() } else { names.join(" and ") };
        let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
        Error::invalid(format!("no task of {model} is meant by {given}; name one: {known}"))
    })
}

/// A task with the inputs that it reads.
fn described(family: &Family, task: &Task) -> String {
    let media = Medium::ALL.into_iter().filter(|medium| family.reads(task, *medium)).map(Medium::name);
    format!("{} ({})", task.name, media.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Medium::{Audio, Image, Text};
    use cotensor_preprocess::family::family_of;
    use serde_json::json;
    use std::path::Path;

    fn named(model_type: &str, class: &str, given: &[Medium], has_pairs: bool) -> Result<&'static str> {
        let values = json!({ "model_type": model_type, "architectures": [class] });
        let config = ModelConfig { family: family_of(model_type)?, values: &values, folder: Path::new("") };
        default_task(&config, "m", given, has_pairs).map(|task| task.name.as_str())
    }

    #[test]
    fn inputs_class_and_pairs_decide() {
        for (model_type, class, given, has_pairs, expected) in [
            ("bert", "BertModel", &[Text][..], false, "sentence-embedding"),
            ("bert", "BertForSequenceClassification", &[Text], false, "text-classification"),
            ("bert", "BertForSequenceClassification", &[Text], true, "rerank"),
            ("bert", "BertModel", &[Text], true, "rerank"),
            ("vit", "ViTModel", &[Image], false, "image-embedding"),
            ("vit", "ViTForImageClassification", &[Image], false, "image-classification"),
            ("clip", "CLIPModel", &[Image, Text], false, "zero-shot-image-classification"),
            ("blip", "BlipForConditionalGeneration", &[Image], false, "image-to-text"),
            ("blip", "BlipForConditionalGeneration", &[Image, Text], false, "image-to-text"),
            ("clap", "ClapModel", &[Audio, Text], false, "zero-shot-audio-classification"),
            ("wav2vec2", "Wav2Vec2ForCTC", &[Audio], false, "transcription"),
            ("t5", "T5ForConditionalGeneration", &[Text], false, "text2text-generation"),
        ] {
            assert_eq!(named(model_type, class, given, has_pairs).unwrap(), expected, "{class} {given:?} {has_pairs}");
        }
        for (model_type, given, has_pairs) in
            [("bert", &[Image][..], false), ("bert", &[], false), ("vit", &[Text], true)]
        {
            let error = named(model_type, "", given, has_pairs).unwrap_err().to_string();
            assert!(error.contains("name one: "), "{error}");
        }
    }
}
