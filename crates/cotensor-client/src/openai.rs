//! Errors in the form of OpenAI's API. The daemon and its model process answer requests below `/v1` with them.

use serde::Serialize;

/// The body of an answer that is an error.
#[derive(Serialize)]
pub struct OpenAiError<'a> {
    error: Described<'a>,
}

#[derive(Serialize)]
struct Described<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl<'a> OpenAiError<'a> {
    /// The body of an answer with the HTTP status `status`. `param` names a field of the request, `code` is for programs.
    pub fn new(status: u16, message: &'a str, param: Option<&'a str>, code: Option<&'static str>) -> Self {
        let r#type = if status >= 500 { "server_error" } else { "invalid_request_error" };
        Self { error: Described { message, r#type, param, code } }
    }
}
