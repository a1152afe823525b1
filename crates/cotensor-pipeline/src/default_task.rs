//! The task that inputs of some types mean.

use super::outputs::has_class_of;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{Family, Medium, ModelConfig, Task};

/// The task of a model that reads inputs of exactly the types `given`: that of the class in config.json, else the first of the
/// family that needs no head. `model` is the name of the model, for errors.
///
/// # Errors
/// `Invalid` when no task fits; the message lists the tasks of the model and their inputs.
pub fn default_task(config: &ModelConfig<'_>, model: &str, given: &[Medium]) -> Result<&'static Task> {
    let family = config.family;
    let begins = |task: &Task, medium| task.begins && medium == Medium::Text && given.contains(&medium);
    let reads_given = |task: &Task| {
        let reads = |medium| family.reads(task, medium) || begins(task, medium);
        Medium::ALL.into_iter().all(|medium| reads(medium) == given.contains(&medium))
    };
    let fitting = || family.tasks().filter(|task| reads_given(task));
    let of_class = fitting().find(|task| task.head && has_class_of(config, task));
    of_class.or_else(|| fitting().find(|task| !task.head)).ok_or_else(|| {
        let known: Vec<String> = family.tasks().map(|task| described(family, task)).collect();
        let names: Vec<&str> = given.iter().map(|medium| medium.name()).collect();
        let given = if names.is_empty() { "no input".to_owned() } else { names.join(" and ") };
        let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
        Error::invalid(format!("no task of {model} is meant by {given}; name one: {known}")).in_field("TASK")
    })
}

/// A task with the inputs that it reads.
fn described(family: &Family, task: &Task) -> String {
    let media = Medium::ALL.into_iter().filter(|medium| family.reads(task, *medium)).map(Medium::name);
    format!("{} ({})", task.name, media.collect::<Vec<_>>().join(", "))
}
