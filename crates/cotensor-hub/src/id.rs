use cotensor_core::{Error, Result};
use std::fmt;

/// The most characters of a model's name on the hub.
const NAME_CHARS_MAX: usize = 96;
/// The most characters of a revision.
const REVISION_CHARS_MAX: usize = 255;
/// The revision of an id that names none.
const DEFAULT_REVISION: &str = "main";

/// The id of a model on the hub: `gpt2` or `openai/whisper-base`, and a branch, a tag or a commit after `@`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelId {
    name: String,
    revision: Option<String>,
}

impl ModelId {
    /// The id that `text` states.
    ///
    /// # Errors
    /// `Invalid` for a text that cannot be an id, such as a path with `./`.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, revision) = text.split_once('@').map_or((text, None), |(name, revision)| (name, Some(revision)));
        let wrong = |message: &str| Error::invalid(format!("{text:?} is not an id of a model: {message}"));
        if name.is_empty() || name.len() > NAME_CHARS_MAX {
            return Err(wrong(&format!("a name has 1 to {NAME_CHARS_MAX} characters")));
        }
        if name.split('/').count() > 2 || !name.split('/').all(is_name_part) {
            return Err(wrong("the form is NAME or OWNER/NAME, of letters, digits, `-`, `_` and `.`"));
        }
        if name.contains("--") || name.contains("..") || name.ends_with(".git") {
            return Err(wrong("`--`, `..` and the ending `.git` are not allowed"));
        }
        let id = Self { name: name.to_owned(), revision: None };
        revision.map_or(Ok(id.clone()), |revision| id.at(revision))
    }

    /// The same model at another revision.
    ///
    /// # Errors
    /// `Invalid` for a text that cannot be a branch, a tag or a commit.
    pub fn at(self, revision: &str) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
        let is_part = |part: &str| !part.is_empty() && !part.starts_with(['.', '-']) && part.chars().all(plain);
        if revision.len() > REVISION_CHARS_MAX || revision.contains("..") || !revision.split('/').all(is_part) {
            return Err(Error::invalid(format!("{revision:?} is not a branch, tag or commit")).in_field("revision"));
        }
        Ok(Self { name: self.name, revision: Some(revision.to_owned()) })
    }

    /// The name without the revision.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The revision: a branch, a tag or a commit.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// The commit, if the revision is one.
    pub(crate) fn commit(&self) -> Option<&str> {
        self.revision.as_deref().filter(|revision| is_commit(revision))
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

fn is_name_part(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_edge = |c: char| c == '-' || c == '.';
    !part.is_empty() && part.chars().all(plain) && !part.starts_with(is_edge) && !part.ends_with(is_edge)
}

/// Whether `text` is the hash of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_a_name_and_a_revision() {
        let id = |text: &str| ModelId::parse(text).unwrap();
        assert_eq!((id("gpt2").name(), id("gpt2").revision()), ("gpt2", "main"));
        let tagged = id("openai/whisper-base@refs/pr/4");
        assert_eq!((tagged.name(), tagged.revision()), ("openai/whisper-base", "refs/pr/4"));
        assert_eq!(tagged.to_string(), "openai/whisper-base@refs/pr/4");
        assert_eq!(id("a/b.c_d-e").at("v1.0").unwrap().to_string(), "a/b.c_d-e@v1.0");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!((id("a/b").at(commit).unwrap().commit(), id("a/b").commit()), (Some(commit), None));
    }

    #[test]
    fn paths_are_no_ids() {
        let long = "a".repeat(NAME_CHARS_MAX + 1);
        for text in [
            "",
            ".",
            "..",
            "./bert",
            "../bert",
            "/bert",
            "bert/",
            "a/b/c",
            "a//b",
            "a--b",
            "a..b",
            "a/b.git",
            "-a",
            "a.",
            "a b",
            "models\\bert",
            "a/b@",
            "a@../x",
            "a@x..y",
            "a@-x",
            "a@/x",
            "a@x//y",
            "~/bert",
            "\u{fc}",
            &long,
        ] {
            assert!(ModelId::parse(text).is_err(), "{text:?}");
        }
    }
}
