//! Everything besides model and prompt that decides the tokens: a user's options, and the parameters of the model's files.

use super::definition::{NEW_TOKENS_MAX, User};
use cotensor_core::{Error, Result};
use cotensor_preprocess::generation::{GenerationConfig, Sampling, Settings};
use serde_json::Value;

/// The most new tokens when neither the user nor the model sets a limit: the default of transformers' text generation.
const DEFAULT_NEW_TOKENS: usize = 256;

/// The settings of a decoding after a prompt of `prompt` tokens, and the origin of the maximum. `positions` is the most tokens that
/// the model reads.
///
/// # Errors
/// `Invalid` for a value out of range; the error names the user's option, or file and field.
pub(crate) fn settings(
    user: &User,
    config: &GenerationConfig,
    prompt: usize,
    positions: Option<usize>,
) -> Result<(Settings, String)> {
    let room = positions.map_or(usize::MAX, |positions| positions.saturating_sub(prompt)).min(NEW_TOKENS_MAX);
    // `max_length` and `min_length` include the prompt; they count only without the others.
    let new = |whole: usize| whole.saturating_sub(prompt);
    let file = config.file_name();
    let configured_max = match (config.length("max_new_tokens")?, config.length("max_length")?) {
        (Some(max), _) => Some((max, format!("max_new_tokens = {max} in {file}"))),
        (None, Some(whole)) => Some((new(whole), format!("max_length = {whole} with the prompt in {file}"))),
        (None, None) => None,
    };
    let configured_min = config.length("min_new_tokens")?.or(config.length("min_length")?.map(new));
    let (max, reason) = match (user.max_new_tokens, configured_max) {
        (Some(max), _) => (max, "max_new_tokens".to_owned()),
        (None, Some((max, origin))) if max <= room => (max, origin),
        (None, None) if DEFAULT_NEW_TOKENS <= room => {
            (DEFAULT_NEW_TOKENS.max(user.min_new_tokens.unwrap_or(0)).min(room), "the default length".to_owned())
        }
        (None, _) => (room, "the model's positions".to_owned()),
    };
    let min = user.min_new_tokens.unwrap_or_else(|| configured_min.unwrap_or(0).min(max));
    if max > room || min > max || max == 0 {
        let limit = match positions {
            _ if max < room && user.max_new_tokens.is_none() => format!("the limit is {reason}: give max_new_tokens"),
            Some(positions) => format!("the model has room for {room}, as it reads {positions} tokens"),
            None => format!("at most {room} are decoded"),
        };
        let message = format!("{min} to {max} tokens after a prompt of {prompt}; {limit}");
        return Err(Error::invalid(message).in_field(format!("{}.max_new_tokens", user.name)));
    }
    let repetition_penalty = config.number("repetition_penalty")?.unwrap_or(1.0) as f32;
    if !(repetition_penalty > 0.0 && repetition_penalty.is_finite()) {
        return Err(config.invalid("repetition_penalty", "a number above 0 is required"));
    }
    let settings = Settings {
        min,
        max,
        ends: config.tokens("eos_token_id")?,
        forced_first: config.token("forced_bos_token_id")?,
        forced_last: config.tokens("forced_eos_token_id")?,
        suppressed: config.tokens("suppress_tokens")?,
        suppressed_first: config.tokens("begin_suppress_tokens")?,
        repetition_penalty,
        no_repeat_ngram: config.length("no_repeat_ngram_size")?.unwrap_or(0),
        timestamps: config.timestamps(),
        sampling: sampling(user, config)?,
    };
    Ok((settings, reason))
}

/// How tokens are drawn. A user who gives a parameter of sampling wants it.
fn sampling(user: &User, config: &GenerationConfig) -> Result<Option<Sampling>> {
    let refuse = |option: &str, message: &str| Err(Error::invalid(message).in_field(format!("{}.{option}", user.name)));
    match (user.do_sample, user.sampling_option()) {
        (Some(false), Some(option)) => return refuse(option, "it has no effect without sampling (do_sample)"),
        (Some(false), None) => return Ok(None),
        (None, None) if config.get("do_sample").and_then(Value::as_bool) != Some(true) => return Ok(None),
        _ => {}
    }
    let default = Sampling::default();
    let number = |name: &str, default: f32| Ok::<_, Error>(config.number(name)?.map_or(default, |n| n as f32));
    let sampling = Sampling {
        temperature: user.temperature.map_or_else(|| number("temperature", default.temperature), Ok)?,
        top_k: user.top_k.map_or_else(|| Ok(config.length("top_k")?.unwrap_or(default.top_k)), Ok::<_, Error>)?,
        top_p: user.top_p.map_or_else(|| number("top_p", default.top_p), Ok)?,
        min_p: number("min_p", default.min_p)?,
        seed: user.seed.unwrap_or(default.seed),
    };
    if !(sampling.temperature > 0.0 && sampling.temperature.is_finite()) {
        return refuse("temperature", "a number above 0 is required; without sampling, the likeliest token is chosen");
    }
    if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
        return refuse("top_p", "a number above 0 and at most 1 is required");
    }
    if !(0.0..=1.0).contains(&sampling.min_p) {
        return Err(config.invalid("min_p", "a number from 0 to 1 is required"));
    }
    Ok(Some(sampling))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_preprocess::family::{ModelConfig, family_of};
    use serde_json::json;
    use std::path::Path;

    fn settings_after(prompt: usize, values: Value, user: User) -> Result<Settings> {
        let family = family_of("llama").unwrap();
        let model = ModelConfig { family, values: &json!({}), folder: Path::new("") };
        let config = GenerationConfig::of(&model, Some(&values), "text-generation").unwrap();
        super::settings(&user, &config, prompt, Some(100)).map(|(settings, _)| settings)
    }

    fn settings(values: Value, user: User) -> Result<Settings> {
        settings_after(4, values, user)
    }

    fn user() -> User {
        User { name: "u".into(), ..User::default() }
    }

    #[test]
    fn lengths_of_the_user_come_before_those_of_the_model() {
        let lengths = |values, max_new_tokens| {
            let settings = settings(values, User { max_new_tokens, ..user() })?;
            Ok::<_, Error>((settings.min, settings.max))
        };
        // The default does not fit the positions.
        assert_eq!(lengths(json!({}), None).unwrap(), (0, 96));
        assert_eq!(lengths(json!({"max_length": 20, "min_length": 6}), None).unwrap(), (2, 16));
        assert_eq!(lengths(json!({"max_length": 20, "max_new_tokens": 9}), None).unwrap(), (0, 9));
        assert_eq!(lengths(json!({"max_length": 20, "min_length": 30}), Some(5)).unwrap(), (5, 5));
        assert_eq!(lengths(json!({}), Some(97)).unwrap_err().field(), Some("u.max_new_tokens"));
        assert_eq!(lengths(json!({"max_length": -1}), None).unwrap_err().field(), Some("max_length"));
        let error = lengths(json!({"max_length": 3}), None).unwrap_err().to_string();
        assert!(
            error.contains("max_length = 3 with the prompt in generation_config.json: give max_new_tokens"),
            "{error}"
        );
        let error = lengths(json!({"max_length": 3}), Some(97)).unwrap_err().to_string();
        assert!(error.contains("room for 96, as it reads 100 tokens") && !error.contains("max_length"), "{error}");
    }

    #[test]
    fn prompt_beyond_the_positions_is_refused_with_their_number() {
        let error = settings_after(101, json!({"max_length": 20}), user()).unwrap_err().to_string();
        assert!(error.contains("room for 0, as it reads 100 tokens"), "{error}");
    }

    #[test]
    fn sampling_is_on_if_the_model_or_the_user_wants_it() {
        let sampling = |values, user| settings(values, user).map(|settings| settings.sampling);
        assert_eq!(sampling(json!({"temperature": 0.5}), user()).unwrap(), None);
        let llama = json!({"do_sample": true, "temperature": 0.5, "top_p": 0.75, "eos_token_id": [7, 8]});
        let expected = Sampling { temperature: 0.5, top_p: 0.75, ..Sampling::default() };
        assert_eq!(sampling(llama.clone(), user()).unwrap(), Some(expected));
        assert_eq!(settings(llama.clone(), user()).unwrap().ends, [7, 8]);
        assert_eq!(sampling(llama.clone(), User { do_sample: Some(false), ..user() }).unwrap(), None);
        let own = User { top_k: Some(0), seed: Some(3), ..user() };
        assert_eq!(sampling(llama.clone(), own).unwrap(), Some(Sampling { top_k: 0, seed: 3, ..expected }));
        let own = User { do_sample: Some(false), seed: Some(1), ..user() };
        assert_eq!(sampling(llama, own).unwrap_err().field(), Some("u.seed"));
        for (user, field) in [
            (User { temperature: Some(0.0), ..user() }, "u.temperature"),
            (User { temperature: Some(f32::NAN), ..user() }, "u.temperature"),
            (User { top_p: Some(0.0), ..user() }, "u.top_p"),
            (User { top_p: Some(1.5), ..user() }, "u.top_p"),
        ] {
            assert_eq!(sampling(json!({}), user).unwrap_err().field(), Some(field));
        }
        assert_eq!(sampling(json!({"do_sample": true, "min_p": 2}), user()).unwrap_err().field(), Some("min_p"));
    }
}
