use std::fmt;
use std::path::{Path, PathBuf};

/// The result of everything in Cotensor that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in words that stay the same between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input is wrong: a shape, a name, a field, an option.
    Invalid,
    /// A file's bytes are damaged, truncated or not what their format says.
    Corrupt,
    /// No tensor, file, model or holder of that name.
    NotFound,
    /// The operation clashes with the present state: already published, not held, in use.
    Conflict,
    /// The memory budget does not allow it, even after eviction.
    OverBudget,
    /// Sharing is refused by configuration; the value may still be made privately.
    Refused,
    /// Valid, but nothing here can do it.
    Unsupported,
    /// The operating system said no.
    Io,
    /// The engine failed on a valid graph and valid inputs.
    Engine,
    /// Waiting took longer than allowed.
    TimedOut,
    /// No process answers at this address.
    Unreachable,
}

/// An error that says where: the file and the field, when there are such.
///
/// Match on [`Error::kind`]; the text is for people and may change.
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

    /// An operating-system error met while doing `what`; a missing file becomes [`ErrorKind::NotFound`], a path that
    /// cannot be what it has to be [`ErrorKind::Invalid`].
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

    /// Names the file that the error is about, unless one is named already.
    #[must_use]
    pub fn in_file(mut self, file: impl AsRef<Path>) -> Self {
        self.0.file.get_or_insert_with(|| file.as_ref().to_path_buf());
        self
    }

    /// Names the field (of a file, a graph, a request) that the error is about, unless one is named already.
    #[must_use]
    pub fn in_field(mut self, field: impl Into<String>) -> Self {
        self.0.field.get_or_insert_with(|| field.into());
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

    /// The file that the error is about.
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    /// The field that the error is about.
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.0.file {
            write!(f, "{}: ", file.display())?;
        }
        if let Some(field) = &self.0.field {
            write!(f, "{field}: ")?;
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
