//! The OpenRPC document, made from the list of methods.

use super::METHODS;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The [OpenRPC](https://spec.open-rpc.org) description of every method.
pub fn openrpc() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let methods: Vec<Value> = METHODS
        .iter()
        .map(|method| {
            let params = (method.params)(&mut generator);
            let result = (method.result)(&mut generator);
            json!({
                "name": method.name,
                "summary": method.summary,
                "paramStructure": "either",
                "params": [{"name": "params", "description": "its fields are the parameters", "schema": params}],
                "result": {"name": "result", "schema": result},
            })
        })
        .collect();
    json!({
        "openrpc": "1.3.2",
        "info": {"title": "Cotensor", "version": env!("CARGO_PKG_VERSION"), "description": "One copy of every tensor per machine."},
        "methods": methods,
        "components": {"schemas": generator.take_definitions(true)},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_and_every_reference_is_there() {
        let document = openrpc();
        assert_eq!(document["methods"].as_array().unwrap().len(), METHODS.len());
        let text = document.to_string();
        let references: Vec<&str> =
            text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.len() > METHODS.len());
        for name in references {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
