use super::adapted::Medium;
use super::outputs::has_class_of;
use crate::model::Model;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::Task;

/// The task of `model` that reads inputs of exactly the types `given` (`text`, `image`, `audio`): that of the class in
/// config.json, else the first of the family that needs no head.
///
/// # Errors
/// `Invalid` when no task fits; the message lists the tasks of the model and their inputs.
pub fn default_task(model: &Model, given: &[&str]) -> Result<&'static Task> {
    let family = model.family();
    let reads_given = |task: &Task| {
        let reads = |medium| family.reads(task, medium) || task.begins && medium == "text" && given.contains(&"text");
        media().all(|medium| reads(medium) == given.contains(&medium))
    };
    let fitting = || family.tasks().filter(|task| reads_given(task));
    let of_class = fitting().find(|task| task.head && has_class_of(model, task));
    of_class.or_else(|| fitting().find(|task| !task.head)).ok_or_else(|| {
        let known: Vec<String> = family.tasks().map(|task| described(model, task)).collect();
        let given = if given.is_empty() { "no input".to_owned() } else { given.join(" and ") };
        let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
        Error::invalid(format!("no task of {} is meant by {given}; name one: {known}", model.name())).in_field("TASK")
    })
}

/// The types of inputs.
fn media() -> impl Iterator<Item = &'static str> {
    Medium::ALL.into_iter().map(Medium::name)
}

/// A task with the inputs that it reads.
fn described(model: &Model, task: &Task) -> String {
    let media: Vec<&str> = media().filter(|medium| model.family().reads(task, medium)).collect();
    format!("{} ({})", task.name, media.join(", "))
}
