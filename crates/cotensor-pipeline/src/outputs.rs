//! The meaning of a graph's outputs, from their names and from config.json.

use super::ports::StagePorts;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{CONFIG_FILE, LOGITS, ModelConfig, StageDef, Task};

/// The name of a model's own head.
pub const OWN_HEAD: &str = "head";

/// The output of a stage that a task reads: the answer itself if the graph has it, the logits of the model's own head,
/// or the result of the trunk.
///
/// # Errors
/// `Unsupported` when the graph has none of them.
pub fn output_of<'a>(task: &'a Task, def: &'a StageDef, stage: StagePorts<'_>, own_head: bool) -> Result<&'a str> {
    if let Some(result) = task.result.as_deref().filter(|result| stage.has_output(result)) {
        return Ok(result);
    }
    if task.head && own_head && def.encoder.is_some() && stage.has_output(LOGITS) {
        return Ok(LOGITS);
    }
    trunk_output(&task.name, def, stage)
}

/// The output with the result of a stage. `reader` is the name of the task or stage that reads it, for errors.
///
/// # Errors
/// `Unsupported` for a graph without that output.
pub fn trunk_output<'a>(reader: &str, def: &'a StageDef, stage: StagePorts<'_>) -> Result<&'a str> {
    def.trunk_output(|name| stage.has_output(name)).ok_or_else(|| lacks(reader, def, stage))
}

/// The error for a graph without the output that a task or a stage reads.
pub fn lacks(reader: &str, def: &StageDef, stage: StagePorts<'_>) -> Error {
    let (wanted, given) = (def.outputs.first().map_or("", String::as_str), stage.output_names());
    Error::unsupported(format!("{reader} cannot be answered: the graph gives {given} and no {wanted}")).in_field(wanted)
}

/// The output of a head with the logits: the output of this name, or the only output of a head in a separate file.
///
/// # Errors
/// `Unsupported` for a head with several outputs, none of which is the logits.
pub fn head_output(stage: StagePorts<'_>) -> Result<String> {
    match stage.outputs {
        [only] if stage.role != OWN_HEAD => Ok(only.name.clone()),
        _ if stage.has_output(LOGITS) => Ok(LOGITS.to_owned()),
        _ => Err(Error::unsupported(format!("a head gives logits; this one gives {}", stage.output_names()))
            .in_field(stage.role)),
    }
}

/// The classes of the checkpoint, according to config.json.
fn architectures<'a>(config: &ModelConfig<'a>) -> Vec<&'a str> {
    let named = config.values.get("architectures").and_then(serde_json::Value::as_array);
    named.into_iter().flatten().filter_map(serde_json::Value::as_str).collect()
}

/// Whether a class of the checkpoint has a head for the task.
pub fn has_class_of(config: &ModelConfig<'_>, task: &Task) -> bool {
    let fits = |name: &str| task.architectures.iter().any(|end| name.ends_with(end.as_str()));
    architectures(config).into_iter().any(fits)
}

/// Refuses a checkpoint whose own head is for another task, according to config.json.
///
/// # Errors
/// `Invalid`; the error names the classes.
pub fn check_architecture(config: &ModelConfig<'_>, task: &Task) -> Result<()> {
    let named = architectures(config);
    // The class of a trunk does not describe the head in the graph.
    let is_trunk = |name: &&str| name.ends_with("Model") && !name.ends_with("LMHeadModel");
    if named.iter().all(is_trunk) || has_class_of(config, task) {
        return Ok(());
    }
    let message = format!("the head of {} is for another task than {}", named.join(", "), task.name);
    Err(Error::invalid(message).in_file(config.folder.join(CONFIG_FILE)).in_field("architectures"))
}
