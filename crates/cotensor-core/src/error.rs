use std::fmt;
use std::path::{Path, PathBuf};

/// The result of everything in Cotensor that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error. Kinds are stable between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input of the caller is invalid: a shape, a name, a field, an option.
    Invalid,
    /// A file is damaged, truncated, or violates its format.
    Corrupt,
    /// A tensor, file, model or holder does not exist.
    NotFound,
    /// The operation conflicts with the state: already published, not held, in use.
    Conflict,
    /// The memory budget is exceeded, even after eviction.
    OverBudget,
    /// The configuration refuses to share the tensor. The value may be computed privately.
    Refused,
    /// The operation is valid but not supported here.
    Unsupported,
    /// The operating system returned an error.
    Io,
    /// The engine failed on a valid graph and valid inputs.
    Engine,
    /// A wait exceeded its time limit.
    TimedOut,
    /// No process answers at this address.
    Unreachable,
}

impl ErrorKind {
    /// Whether the value of a field causes such errors, and not the thing that the message names.
    fn is_about_a_value(self) -> bool {
        !matches!(self, Self::NotFound | Self::Conflict | Self::Refused | Self::TimedOut)
    }
}

/// An error with its kind, and the file and the field that caused it if known.
///
/// Match on [`Error::kind`]; the text may change.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    file: Option<PathBuf>,
    field: Option<String>,
}

impl Error {
    /// An error of `kind`, explained by `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), file: None, field: None }))
    }

    /// Shorthand for [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Shorthand for [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Shorthand for [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// Shorthand for [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// An error of the operating system during `what`. A missing file becomes [`ErrorKind::NotFound`], a path of the
    /// wrong type [`ErrorKind::Invalid`].
    pub fn io(what: impl fmt::Display, source: &std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::NotADirectory
            | std::io::ErrorKind::IsADirectory
            | std::io::ErrorKind::InvalidFilename
            | std::io::ErrorKind::InvalidInput => ErrorKind::Invalid,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("{what}: {source}"))
    }

    /// Adds the file that caused the error, unless there is one.
    #[must_use]
    pub fn in_file(mut self, file: impl AsRef<Path>) -> Self {
        self.0.file.get_or_insert_with(|| file.as_ref().to_path_buf());
        self
    }

    /// Adds the field (of a file, a graph, a request) that caused the error, unless there is one. The text starts with it if its value
    /// is wrong. The message of a missing, conflicting, refused or late thing names the thing itself, and the field is for programs
    /// only: in a file it is shown all the same.
    #[must_use]
    pub fn in_field(mut self, field: impl Into<String>) -> Self {
        self.0.field.get_or_insert_with(|| field.into());
        self
    }

    /// Adds a text and a colon before the explanation.
    #[must_use]
    pub fn prefixed(mut self, text: impl fmt::Display) -> Self {
        self.0.message = format!("{text}: {}", self.0.message);
        self
    }

    /// The kind, for matching.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The explanation without file and field.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The file that caused the error.
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    /// The field that caused the error.
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.0.file {
            write!(f, "{}: ", file.display())?;
        }
        match &self.0.field {
            Some(field) if self.0.file.is_some() || self.0.kind.is_about_a_value() => write!(f, "{field}: ")?,
            _ => {}
        }
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_starts_with_the_thing() {
        let missing = || Error::not_found("no tensor is named \"x\"").in_field("name");
        assert_eq!((missing().to_string().as_str(), missing().field()), ("no tensor is named \"x\"", Some("name")));
        for kind in [ErrorKind::Conflict, ErrorKind::Refused, ErrorKind::TimedOut] {
            assert_eq!(Error::new(kind, "x is here").in_field("name").to_string(), "x is here");
        }
        let wrong = Error::invalid("at least 1 expected").in_field("--budget");
        assert_eq!(wrong.to_string(), "--budget: at least 1 expected");
        assert_eq!(missing().in_file("a.json").to_string(), "a.json: name: no tensor is named \"x\"");
    }
}
