//! Generates OpenRPC documents from the lists of methods.

use super::{FoundFunction, METHODS, MethodDescription, NOTIFICATIONS, NotificationDescription, provider};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The field that lists the functions of all providers. It is an
/// [extension](https://spec.open-rpc.org/#specification-extensions), because callers call functions at their providers.
pub const FUNCTIONS: &str = "x-functions";

/// The field that lists the notifications to a client. OpenRPC has no notifications.
const NOTIFICATIONS_FIELD: &str = "x-notifications";

/// The [OpenRPC](https://spec.open-rpc.org) description of the daemon's methods, with its notifications.
pub fn openrpc() -> Value {
    document("Cotensor", "One copy of every tensor per machine.", METHODS, NOTIFICATIONS)
}

/// As [`openrpc`], with the functions of all providers.
pub fn openrpc_with(functions: &[FoundFunction]) -> Value {
    let mut document = openrpc();
    document[FUNCTIONS] = json!(functions);
    document
}

/// The OpenRPC description of a provider's methods, which callers use on the socket from `function.lookup`.
pub fn openrpc_of_provider() -> Value {
    document("Cotensor provider", "Calls one process's functions from another.", provider::METHODS, &[])
}

fn document(
    title: &str,
    description: &str,
    methods: &[MethodDescription],
    notifications: &[NotificationDescription],
) -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let described: Vec<_> = methods
        .iter()
        .map(|method| (method, (method.params)(&mut generator), (method.result)(&mut generator)))
        .collect();
    let notifications: Vec<_> =
        notifications.iter().map(|notification| (notification, (notification.params)(&mut generator))).collect();
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
    let notifications = notifications.into_iter().map(|(notification, params)| {
        json!({
            "name": notification.name,
            "summary": notification.summary,
            "paramStructure": "by-name",
            "params": parameters(&json!(params), &schemas),
        })
    });
    let notifications: Vec<_> = notifications.collect();
    let mut document = json!({
        "openrpc": "1.3.2",
        "info": {"title": title, "version": env!("CARGO_PKG_VERSION"), "description": description},
        "methods": described.collect::<Vec<_>>(),
        "components": {"schemas": schemas},
    });
    if !notifications.is_empty() {
        document[NOTIFICATIONS_FIELD] = notifications.into();
    }
    document
}

/// The named parameters of a method: the fields of its parameters' schema.
fn parameters(schema: &Value, schemas: &Value) -> Vec<Value> {
    let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    let schema = name.map_or(schema, |name| &schemas[name]);
    let required = |field: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|name| name == field));
    let fields = schema["properties"].as_object().into_iter().flatten();
    // OpenRPC requires that required parameters precede optional ones.
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
    fn document_has_every_method_and_every_referenced_schema() {
        for (document, methods) in [(openrpc(), METHODS), (openrpc_of_provider(), provider::METHODS)] {
            check(&document, methods);
        }
    }

    #[test]
    fn parameters_have_names_required_flags_and_descriptions() {
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
            [
                (&json!("protocol"), &json!(true)),
                (&json!("client"), &json!(true)),
                (&json!("resume"), &json!(false)),
                (&json!("lock"), &json!(false))
            ]
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
