use crate::files::{ModelFiles, find_json};
use cotensor_core::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value as Variable};
use minijinja::{Environment, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The most bytes of a template. Those of models have up to 20 KB.
const TEMPLATE_BYTES_MAX: usize = 1 << 16;
/// The fuel of a template: about a hundred thousand steps. Templates of models take some hundred for a message.
const FUEL_MAX: u64 = 1 << 17;
/// The stack on which templates are read and rendered: enough for an expression as deep as the limits above allow.
#[cfg(not(target_arch = "wasm32"))]
const STACK_BYTES: usize = 512 << 20;
/// The most bytes that a template may join.
const JOINED_BYTES_MAX: usize = 16 << 20;
/// The most special tokens that a template can read.
const TOKENS_MAX: usize = 256;

const TEMPLATE_FILE: &str = "chat_template.jinja";
const JSON_FILE: &str = "chat_template.json";
const CONFIG_FILE: &str = "tokenizer_config.json";
const FIELD: &str = "chat_template";
/// The template that applies where tokenizer_config.json has several.
const DEFAULT: &str = "default";

/// The template of a model's prompts: from the message of a user to the text that the model was trained to answer, as
/// `apply_chat_template` of transformers with `add_generation_prompt`.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// The special tokens, by the names that templates use: `bos_token`.
    tokens: BTreeMap<String, String>,
    file: PathBuf,
}

impl ChatTemplate {
    /// Reads the template of a model: chat_template.jinja, else chat_template.json (of a processor), else `chat_template` of
    /// tokenizer_config.json. `None` for a model without one.
    ///
    /// # Errors
    /// `Corrupt` when a file is not JSON or not UTF-8, `Invalid` for something that is not a template, or that is too long; the
    /// error names file and field.
    pub fn open(files: &dyn ModelFiles) -> Result<Option<Self>> {
        let config = find_json(files, CONFIG_FILE)?.unwrap_or_default();
        let Some((source, file, field)) = template(files, &config)? else { return Ok(None) };
        let refused = |error: Error| match field {
            Some(field) => error.in_file(&file).in_field(field),
            None => error.in_file(&file),
        };
        if source.len() > TEMPLATE_BYTES_MAX {
            let message = format!("a template of {} bytes; at most {TEMPLATE_BYTES_MAX} are read", source.len());
            return Err(refused(Error::invalid(message)));
        }
        let environment = environment()?;
        let read =
            || environment.template_from_str(&source).map(drop).map_err(|error| Error::invalid(described(&error)));
        on_deep_stack(read).map_err(refused)?;
        let named = find_json(files, "special_tokens_map.json")?.unwrap_or_default();
        let entries = [&named, &config].into_iter().filter_map(Value::as_object).flatten();
        let token = |(name, token): (&String, &Value)| {
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            name.ends_with("_token").then(|| (name.clone(), text.to_owned()))
        };
        let tokens = entries.take(TOKENS_MAX).filter_map(token).collect();
        Ok(Some(Self { environment, source, tokens, file }))
    }

    /// The prompt for `text`, a message of a user. With `has_image`, the message is an image and the text.
    ///
    /// # Errors
    /// `Invalid` when the template refuses the message or takes too many steps; the error names the template's file.
    pub fn prompt(&self, text: &str, has_image: bool) -> Result<String> {
        let content = if has_image {
            let parts = [context! { type => "image" }, context! { type => "text", text => text }];
            Variable::from_iter(parts)
        } else {
            Variable::from(text)
        };
        self.rendered([context! { role => "user", content => content }].into_iter().collect(), true)
    }

    /// The prompt for a pair of texts to compare: messages with the roles `query` and `document`, after a message of the system
    /// with the instruction, as sentence-transformers gives them to the template. `begins_answer` is `add_generation_prompt`.
    ///
    /// # Errors
    /// As [`prompt`](Self::prompt).
    pub fn pair_prompt(&self, instruction: &str, query: &str, document: &str, begins_answer: bool) -> Result<String> {
        let message = |role: &str, content: &str| context! { role => role, content => content };
        let system = (!instruction.is_empty()).then(|| message("system", instruction));
        let messages = system.into_iter().chain([message("query", query), message("document", document)]);
        self.rendered(messages.collect(), begins_answer)
    }

    /// Checks that the prompt for a pair has both texts. The texts of the check are not part of each other, nor of a template.
    ///
    /// # Errors
    /// `Unsupported` for a template without messages of the roles `query` and `document`, and as [`prompt`](Self::prompt).
    pub fn check_pairs(&self) -> Result<()> {
        const TEXTS: [&str; 2] = ["zebra 5071", "quince 8264"];
        let prompt = self.pair_prompt("", TEXTS[0], TEXTS[1], true)?;
        if TEXTS.iter().all(|text| prompt.contains(text)) {
            Ok(())
        } else {
            Err(Error::unsupported("the template has no place for messages of the roles query and document")
                .in_file(&self.file)
                .in_field(FIELD))
        }
    }

    fn rendered(&self, messages: Variable, begins_answer: bool) -> Result<String> {
        let tokens: Kwargs =
            self.tokens.iter().map(|(name, token)| (name.as_str(), Variable::from(token.as_str()))).collect();
        let given = context! { messages, add_generation_prompt => begins_answer, tools => (), documents => (), ..Variable::from(tokens) };
        let render = || {
            let rendered = self.environment.render_str(&self.source, given);
            rendered.map_err(|error| Error::invalid(described(&error)))
        };
        on_deep_stack(render).map_err(|error| error.in_file(&self.file).in_field(FIELD))
    }

    /// Whether a prompt begins with the token that starts a text, so that the tokenizer must not add it.
    pub fn has_start(&self, prompt: &str) -> bool {
        self.tokens.get("bos_token").is_some_and(|start| prompt.starts_with(start.as_str()))
    }
}

/// The template with its file, and its field if the file is JSON.
fn template(files: &dyn ModelFiles, config: &Value) -> Result<Option<(String, PathBuf, Option<&'static str>)>> {
    if let Some(bytes) = files.read(TEMPLATE_FILE, TEMPLATE_BYTES_MAX as u64)? {
        let path = files.path(TEMPLATE_FILE);
        let source = String::from_utf8(bytes).map_err(|_| Error::corrupt("not UTF-8").in_file(&path))?;
        return Ok(Some((source, path, None)));
    }
    let of_processor = find_json(files, JSON_FILE)?;
    for (config, name) in [(of_processor.as_ref(), JSON_FILE), (Some(config), CONFIG_FILE)] {
        let Some(value) = config.and_then(|config| config.get(FIELD)).filter(|value| !value.is_null()) else {
            continue;
        };
        let of_list = |list: &Vec<Value>| {
            let named = list.iter().find(|each| each.get("name").and_then(Value::as_str) == Some(DEFAULT));
            named.and_then(|each| each.get("template")?.as_str()).map(str::to_owned)
        };
        let source = value.as_str().map(str::to_owned).or_else(|| value.as_array().and_then(of_list));
        let path = files.path(name);
        let source = source.ok_or_else(|| {
            let message = format!("a template, or a list of templates with one named {DEFAULT:?}, is required");
            Error::invalid(message).in_file(&path).in_field(FIELD)
        })?;
        return Ok(Some((source, path, Some(FIELD))));
    }
    Ok(None)
}

/// The environment in which transformers renders templates, with bounds.
fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| Error::invalid(described(&error)))?);
    environment.set_fuel(Some(FUEL_MAX));
    // Templates call methods of Python's strings, lists and dictionaries.
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        if let ("join", Some(separator), [list]) = (method, value.as_str(), arguments) {
            return joined(list, separator).map(Variable::from);
        }
        unknown_method_callback(state, value, method, arguments)
    });
    environment.add_filter("join", |list: Variable, separator: Option<String>| {
        joined(&list, separator.as_deref().unwrap_or_default())
    });
    environment.add_function("raise_exception", |message: String| {
        Err::<Variable, _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    Ok(environment)
}

/// The texts of a list with a separator between them; an error if the result is too long.
fn joined(list: &Variable, separator: &str) -> std::result::Result<String, minijinja::Error> {
    let mut text = String::new();
    for (index, item) in list.try_iter()?.enumerate() {
        if index > 0 {
            text.push_str(separator);
        }
        text.push_str(&item.to_string());
        if text.len() > JOINED_BYTES_MAX {
            let message = format!("a joined text has more than {JOINED_BYTES_MAX} bytes");
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(text)
}

/// Runs `work` on a stack that deep expressions do not exhaust.
#[cfg(not(target_arch = "wasm32"))]
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| Error::io("cannot start a thread", &error))?;
        thread.join().unwrap_or_else(|_| Err(Error::invalid("the template failed")))
    })
}

/// A browser ends the module, and not its process, when the stack is exhausted.
#[cfg(target_arch = "wasm32")]
fn on_deep_stack<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    work()
}

/// The line and the cause of an error.
fn described(error: &minijinja::Error) -> String {
    let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    error.line().map_or_else(|| text.clone(), |line| format!("line {line} of the template: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::HashMap;

    fn files(entries: &[(&str, &str)]) -> HashMap<String, Vec<u8>> {
        entries.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
    }

    fn open(entries: &[(&str, &str)]) -> Result<Option<ChatTemplate>> {
        ChatTemplate::open(&files(entries))
    }

    fn prompt(template: &str) -> Result<String> {
        open(&[(TEMPLATE_FILE, template)])?.expect("a template").prompt("Who  wakes? ", false)
    }

    #[test]
    fn templates_are_found_in_the_order_of_transformers() {
        let config = json!({"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "c"}],
            "bos_token": {"content": "<s>"}, "eos_token": "</s>"});
        let config = config.to_string();
        let text = |entries: &[(&str, &str)]| open(entries).unwrap().unwrap().prompt("x", false).unwrap();
        assert!(open(&[]).unwrap().is_none() && open(&[(CONFIG_FILE, "{}")]).unwrap().is_none());
        assert_eq!(text(&[(CONFIG_FILE, &config)]), "c");
        assert_eq!(text(&[(CONFIG_FILE, &config), (JSON_FILE, r#"{"chat_template": "p"}"#)]), "p");
        assert_eq!(text(&[(CONFIG_FILE, &config), (JSON_FILE, "{}"), (TEMPLATE_FILE, "f")]), "f");
        let special =
            [(TEMPLATE_FILE, "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"), (CONFIG_FILE, &config)];
        let template = open(&special).unwrap().unwrap();
        assert_eq!(template.prompt("x", false).unwrap(), "<s>x</s>");
        assert!(template.has_start("<s>x") && !template.has_start("x<s>"));
        for wrong in [json!(5), json!([]), json!([{"name": "tools", "template": "t"}])] {
            let error = open(&[(CONFIG_FILE, &json!({"chat_template": wrong}).to_string())]).err().unwrap();
            assert_eq!((error.file(), error.field()), (Some(CONFIG_FILE.as_ref()), Some(FIELD)), "{error}");
        }
    }

    #[test]
    fn methods_and_blocks_are_those_of_python() {
        let template = "{%- for message in messages %}\n  {% if loop.first and message['role'] == 'user' %}\n\
            {{ message['role'].upper() + ': ' + message['content'].strip() }}\n  {% endif %}\n{%- endfor %}\n\
            {%- set ns = namespace(found=false) %}{% for m in messages[::-1] %}{% set ns.found = true %}{% break %}{% endfor %}\
            {% if ns.found and not tools %}!{% endif %}{% if strftime_now is defined %}?{% endif %}\n";
        assert_eq!(prompt(template).unwrap(), "USER: Who  wakes?\n!");
        assert_eq!(prompt("{{ '<b>' }}{{ messages[0].content.split()[-1] }}").unwrap(), "<b>wakes?");
        let list = "{% for part in messages[0]['content'] | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}\
            {% for part in messages[0]['content'] | selectattr('type', 'equalto', 'text') %} {{ part['text'] }}{% endfor %}";
        let template = open(&[(TEMPLATE_FILE, list)]).unwrap().unwrap();
        assert_eq!(template.prompt("What?", true).unwrap(), "<image> What?");
    }

    // In a browser, the stack is not ours.
    #[cfg(not(target_arch = "wasm32"))]
    #[test]
    fn deep_templates_do_not_exhaust_the_stack() {
        let nests = "{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a | tojson }}";
        let deep = [format!("{{{{ {}1 }}}}", "1+".repeat(32000)), format!("{{{{ {}1 }}}}", "not ".repeat(16000))];
        for template in [nests, &deep[0], &deep[1]] {
            // Whether it is refused is of no importance: the process goes on.
            let _ = prompt(template);
        }
    }

    #[test]
    fn hostile_templates_are_errors() {
        let grows =
            "{% set ns = namespace(a='aaaaaaaa') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}";
        let loops = "{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}";
        let recurses = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        let joins = "{{ (['a' * 100000] * 100000) | join }}";
        let joins_by_method = "{{ ','.join(['a' * 100000] * 100000) }}";
        for template in [grows, loops, recurses, "{{ 'a' * 99999999999 }}", joins, joins_by_method] {
            let error = prompt(template).unwrap_err();
            assert_eq!((error.file(), error.field()), (Some(TEMPLATE_FILE.as_ref()), Some(FIELD)), "{error}");
        }
        let refused = prompt("\n{{ raise_exception('roles must alternate') }}").unwrap_err();
        assert!(
            refused.message().contains("line 2") && refused.message().contains("roles must alternate"),
            "{refused}"
        );
        for template in ["{% if %}", "{{", "{% generation %}", "{% include '/etc/passwd' %}"] {
            let error = open(&[(TEMPLATE_FILE, template)]).err().unwrap();
            assert_eq!(error.file(), Some(TEMPLATE_FILE.as_ref()), "{error}");
        }
        let long = " ".repeat(TEMPLATE_BYTES_MAX + 1);
        assert!(open(&[(TEMPLATE_FILE, &long)]).is_err());
        let config = json!({"chat_template": long}).to_string();
        assert_eq!(open(&[(CONFIG_FILE, &config)]).err().unwrap().field(), Some(FIELD));
        let deep = "{{ ".to_owned() + &"(".repeat(100_000) + "1" + &")".repeat(100_000) + " }}";
        assert!(open(&[(TEMPLATE_FILE, &deep)]).is_err());
    }
}
