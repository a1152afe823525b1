//! OpenRPC documents, made from the lists of methods.

use super::{FoundFunction, METHODS, MethodDescription, NOTIFICATIONS, NotificationDescription, provider};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The field of a document that lists the functions that are provided now: an
/// [extension](https://spec.open-rpc.org/#specification-extensions), since they are called at their providers.
pub const FUNCTIONS: &str = "x-functions";

/// The field of a document that lists the notifications that a client gets: OpenRPC knows methods only.
const NOTIFICATIONS_FIELD: &str = "x-notifications";

/// The [OpenRPC](https://spec.open-rpc.org) description of the daemon's methods, with its notifications.
pub fn openrpc() -> Value {
    document("Cotensor", "One copy of every tensor per machine.", METHODS, NOTIFICATIONS)
}

/// As [`openrpc`], with the functions that are provided now.
pub fn openrpc_with(functions: &[FoundFunction]) -> Value {
    let mut document = openrpc();
    document[FUNCTIONS] = json!(functions);
    document
}

/// The description of what a provider answers, on the socket that `function.lookup` gives.
pub fn openrpc_of_provider() -> Value {
    document("Cotensor provider", "Calls one process's functions from another.", provider::METHODS, &[])
}

fn document(
    title: &str,
    description: &str,
    methods: &[MethodDescription],
    notices: &[NotificationDescription],
) -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let described: Vec<_> = methods
        .iter()
        .map(|method| (method, (method.params)(&mut generator), (method.result)(&mut generator)))
        .collect();
    let told: Vec<_> = notices.iter().map(|notice| (notice, (notice.params)(&mut generator))).collect();
    let schemas = Value::Object(generator.take_definitions(true));
    let described = described.into_iter().map(|(method, params, result)| {
        json!({
            "name": method.name,
            "summary": method.summary,
            "paramStructure": "by-name",
            "params": parameters(&json!(params), &schemas),
            "result": {"name": "result", "schema": result},
        })
    });
    let told = told.into_iter().map(|(notice, params)| {
        let params = parameters(&json!(params), &schemas);
        json!({"name": notice.name, "summary": notice.summary, "paramStructure": "by-name", "params": params})
    });
    let told: Vec<_> = told.collect();
    let mut document = json!({
        "openrpc": "1.3.2",
        "info": {"title": title, "version": env!("CARGO_PKG_VERSION"), "description": description},
        "methods": described.collect::<Vec<_>>(),
        "components": {"schemas": schemas},
    });
    if !told.is_empty() {
        document[NOTIFICATIONS_FIELD] = told.into();
    }
    document
}

/// A method's parameters, each by its name: the fields of the schema that they have together.
fn parameters(schema: &Value, schemas: &Value) -> Vec<Value> {
    let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    let schema = name.map_or(schema, |name| &schemas[name]);
    let required = |field: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|name| name == field));
    let fields = schema["properties"].as_object().into_iter().flatten();
    // What has to be said comes first, as OpenRPC wants it.
    let (mut parameters, optional): (Vec<_>, Vec<_>) = fields
        .map(|(name, field)| {
            let mut parameter = json!({"name": name, "required": required(name), "schema": field});
            if let Some(description) = field.get("description") {
                parameter["description"] = description.clone();
            }
            parameter
        })
        .partition(|parameter| parameter["required"] == true);
    parameters.extend(optional);
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_and_every_reference_is_there() {
        for (document, methods) in [(openrpc(), METHODS), (openrpc_of_provider(), provider::METHODS)] {
            check(&document, methods);
        }
    }

    #[test]
    fn parameters_are_described_one_by_one() {
        let document = openrpc();
        let method = |name: &str| {
            let all = document["methods"].as_array().unwrap();
            all.iter().find(|method| method["name"] == name).unwrap()["params"].as_array().unwrap().clone()
        };
        assert!(method("ping").is_empty());
        let hello = method("session.hello");
        let named: Vec<_> = hello.iter().map(|parameter| (&parameter["name"], &parameter["required"])).collect();
        assert_eq!(
            named,
            [(&json!("protocol"), &json!(true)), (&json!("client"), &json!(true)), (&json!("resume"), &json!(false))]
        );
        assert!(hello[1]["description"].as_str().unwrap().contains("name"));
    }

    fn check(document: &Value, methods: &[MethodDescription]) {
        assert_eq!(document["methods"].as_array().unwrap().len(), methods.len());
        let text = document.to_string();
        let references: Vec<&str> =
            text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.len() > methods.len());
        for name in references {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
