//! The engine of the model process in words.

use crate::table::plain;
use cotensor_client::protocol::ModelEngine;

/// Name, version, library, and why a better engine is not used.
pub(super) fn engine_text(engine: &ModelEngine) -> String {
    let ModelEngine { name, version, library, absent } = engine;
    let library = library.as_ref().map_or_else(|| "part of cotensor".to_owned(), |path| path.display().to_string());
    let mut text = format!("{name} {version} ({library})");
    for reason in absent {
        text += &format!("; not {reason}");
    }
    plain(&text)
}
