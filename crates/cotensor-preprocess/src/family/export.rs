//! What makes the graphs of a model that has none, for error messages.

use super::config::ModelConfig;
use serde_json::Value;

/// The Python package with the command of optimum's exporter. Versions of optimum from 2.2 on do without the command.
pub const EXPORTER: &str = "\"optimum-onnx[onnxruntime]\"";
/// The task of a model that has no task of its own.
const OTHER: &str = "feature-extraction";
/// The program for encoders of texts that the exporter does not know.
const PROGRAM: &str = "examples/export_encoder.py";

impl ModelConfig<'_> {
    /// How a user exports the model in its folder.
    pub fn way_to_graphs(&self) -> String {
        let folder = self.folder.display();
        let model_type = self.values.get("model_type").and_then(Value::as_str).unwrap_or_default();
        if !self.family.unexported.iter().any(|known| known == model_type) {
            let task = self.export_task();
            return format!(
                "export the model by `optimum-cli export onnx --model {folder} --task {task} {folder}/onnx` \
                 (`pip install {EXPORTER}`)"
            );
        }
        let reason = format!("optimum's exporter does not know the model_type {model_type:?}");
        if self.family.code.is_empty() {
            format!("{reason}; a repository of the hub with ONNX graphs is needed")
        } else {
            format!("{reason}; export the model by `python {PROGRAM} {folder}` (in the sources of this program)")
        }
    }

    /// The task of optimum's exporter: that of the class that config.json names, or the first of the family for any class.
    fn export_task(&self) -> &'static str {
        let classes = self.values.get("architectures").and_then(Value::as_array);
        let has = |end: &String| {
            classes.into_iter().flatten().filter_map(Value::as_str).any(|class| class.ends_with(end.as_str()))
        };
        let mut tasks =
            self.family.tasks().filter(|task| task.architectures.is_empty() || task.architectures.iter().any(has));
        tasks.find_map(|task| task.export.as_deref()).unwrap_or(OTHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::family_of;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn command_has_the_task_of_the_class() {
        let way = |model_type: &str, class: &str| {
            let values = json!({"model_type": model_type, "architectures": [class]});
            ModelConfig { family: family_of(model_type).unwrap(), values: &values, folder: Path::new("/m") }
                .way_to_graphs()
        };
        for (model_type, class, task) in [
            ("bert", "BertModel", "feature-extraction"),
            ("xlm-roberta", "XLMRobertaForSequenceClassification", "text-classification"),
            ("bert", "BertForTokenClassification", "token-classification"),
            ("bert", "BertForMaskedLM", "feature-extraction"),
            ("gemma3_text", "Gemma3TextModel", "feature-extraction"),
            ("qwen3", "Qwen3ForCausalLM", "text-generation-with-past"),
            ("t5", "T5ForConditionalGeneration", "text2text-generation-with-past"),
            ("whisper", "WhisperForConditionalGeneration", "automatic-speech-recognition-with-past"),
            ("wav2vec2", "Wav2Vec2ForCTC", "automatic-speech-recognition"),
            ("vit", "ViTForImageClassification", "image-classification"),
            ("vit", "ViTModel", "feature-extraction"),
            ("clip", "CLIPModel", "zero-shot-image-classification"),
            ("detr", "DetrForObjectDetection", "object-detection"),
        ] {
            let command = format!("`optimum-cli export onnx --model /m --task {task} /m/onnx`");
            assert!(way(model_type, class).contains(&command), "{model_type} {class}: {}", way(model_type, class));
        }
        assert!(way("eurobert", "EuroBertModel").contains("`python examples/export_encoder.py /m`"));
        assert!(way("clap", "ClapModel").ends_with("with ONNX graphs is needed"));
    }
}
