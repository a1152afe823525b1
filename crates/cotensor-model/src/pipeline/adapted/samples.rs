//! Samples on which an adapter is fitted: texts, or files with images or audio.

use crate::folder::read_bounded;
use crate::pipeline::inputs::Inputs;
use cotensor_core::{Error, Hasher, Result};
use cotensor_preprocess::family::Medium;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most samples.
const SAMPLES_MAX: usize = 100_000;
/// The most bytes of a file of texts.
const TEXTS_BYTES_MAX: u64 = 256 << 20;
/// The most bytes of a file with one text.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Samples of one medium.
pub struct Samples {
    medium: Medium,
    samples: Vec<Sample>,
}

enum Sample {
    Text(String),
    /// A file with a text, an image or audio. It is read when it is needed.
    File(PathBuf),
}

impl Samples {
    /// Texts.
    pub fn of_texts(texts: impl IntoIterator<Item = String>) -> Self {
        Self { medium: Medium::Text, samples: texts.into_iter().map(Sample::Text).collect() }
    }

    /// Files with a text, an image or audio each.
    pub fn of_files(medium: Medium, files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { medium, samples: files.into_iter().map(Sample::File).collect() }
    }

    /// The samples at `path`: a folder of text, image or audio files with the extension of their type; a `.txt`
    /// file with a text on each line; or a `.jsonl` file with the text in the field `text` of each line.
    ///
    /// # Errors
    /// `NotFound` without the path, `Invalid` for a folder without samples or with samples of several media, for a file
    /// of another type and for too many samples; `Corrupt` for a line that is not JSON or has no text.
    pub fn open(path: &Path) -> Result<Self> {
        let read = if path.is_dir() { Self::of_folder(path) } else { Self::of_lines(path) };
        let samples = read.map_err(|error| error.in_file(path))?;
        if samples.samples.is_empty() {
            return Err(Error::invalid("no samples: text, image or audio files are expected").in_file(path));
        }
        Ok(samples)
    }

    fn of_folder(folder: &Path) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("reading the folder", &error);
        let mut files: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
        let mut count = 0;
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let Some(medium) = medium_of(&path).filter(|_| path.is_file()) else { continue };
            files.entry(medium.name()).or_default().push(path);
            count += 1;
            check_count(count)?;
        }
        if files.len() > 1 {
            let found: Vec<&str> = files.keys().copied().collect();
            return Err(Error::invalid(format!("the folder has files of several media: {}", found.join(", "))));
        }
        let mut files = files.into_values().next().unwrap_or_default();
        files.sort_unstable();
        let medium = files.first().and_then(|file| medium_of(file)).unwrap_or(Medium::Text);
        Ok(Self::of_files(medium, files))
    }

    fn of_lines(file: &Path) -> Result<Self> {
        let is_json = match file.extension().and_then(|extension| extension.to_str()) {
            Some("txt") => false,
            Some("jsonl") => true,
            _ => return Err(Error::invalid("pass a folder, a .txt file or a .jsonl file")),
        };
        let bytes = read_bounded(file, TEXTS_BYTES_MAX)?;
        let text = String::from_utf8(bytes).map_err(|_| Error::corrupt("not UTF-8"))?;
        let mut texts = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            texts.push(if is_json {
                let value: Option<serde_json::Value> = serde_json::from_str(line).ok();
                let text = value.as_ref().and_then(|value| value.get("text")?.as_str());
                let damaged =
                    || Error::corrupt("not a JSON object with a text").in_field(format!("line {}", number + 1));
                text.ok_or_else(damaged)?.to_owned()
            } else {
                line.to_owned()
            });
            check_count(texts.len())?;
        }
        Ok(Self::of_texts(texts))
    }

    /// The medium of all samples.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// The number of samples, equal ones included.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The positions of different samples, in the order of the hashes of their content, which has nothing to do with
    /// their meaning.
    ///
    /// # Errors
    /// As [`inputs`](Self::inputs).
    pub(crate) fn distinct(&self) -> Result<Vec<usize>> {
        let mut by_content = BTreeMap::new();
        for index in 0..self.samples.len() {
            by_content.entry(self.inputs(index)?.identity()).or_insert(index);
        }
        Ok(by_content.into_values().collect())
    }

    /// Adds the content of all samples, in any order.
    ///
    /// # Errors
    /// As [`inputs`](Self::inputs).
    pub(crate) fn add_to(&self, hasher: &mut Hasher) -> Result<()> {
        for index in self.distinct()? {
            hasher.field(self.inputs(index)?.identity().to_string().as_bytes());
        }
        Ok(())
    }

    /// The sample at a position, as the input of a model.
    ///
    /// # Errors
    /// `NotFound`, `Io`, or `Invalid` for a file beyond the size limit.
    pub(crate) fn inputs(&self, index: usize) -> Result<Inputs> {
        match (&self.samples[index], self.medium) {
            (Sample::Text(text), _) => Ok(Inputs::default().with_text(text)),
            (Sample::File(file), Medium::Text) => {
                let text = String::from_utf8(read_bounded(file, TEXT_BYTES_MAX)?);
                let text = text.map_err(|_| Error::corrupt("not UTF-8").in_file(file))?;
                Ok(Inputs::default().with_text(text))
            }
            (Sample::File(file), Medium::Image) => Inputs::default().with_image(file),
            (Sample::File(file), Medium::Audio) => Inputs::default().with_audio(file),
        }
    }
}

/// The medium of a file, by its extension.
fn medium_of(file: &Path) -> Option<Medium> {
    match file.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "txt" => Some(Medium::Text),
        "png" | "jpg" | "jpeg" | "webp" | "bmp" => Some(Medium::Image),
        "wav" | "flac" | "mp3" | "ogg" => Some(Medium::Audio),
        _ => None,
    }
}

fn check_count(count: usize) -> Result<()> {
    if count <= SAMPLES_MAX { Ok(()) } else { Err(Error::invalid(format!("more than {SAMPLES_MAX} samples"))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;
    use std::fs::write;

    #[test]
    fn samples_are_read_from_folders_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert_eq!(Samples::open(folder.path()).err().unwrap().kind(), ErrorKind::Invalid);
        for (name, text) in [("a.txt", "one"), ("b.txt", "two"), ("c.txt", "one"), ("notes.md", "")] {
            write(path(name), text).unwrap();
        }
        let samples = Samples::open(folder.path()).unwrap();
        assert_eq!((samples.medium(), samples.len(), samples.distinct().unwrap().len()), (Medium::Text, 3, 2));
        write(path("lines.jsonl"), "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n").unwrap();
        let lines = Samples::open(&path("lines.jsonl")).unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines.inputs(1).unwrap().text().unwrap(), "two");
        write(path("d.PNG"), "").unwrap();
        let error = Samples::open(folder.path()).err().unwrap();
        assert!(error.to_string().contains("image, text"), "{error}");
    }

    #[test]
    fn damaged_files_are_named_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        for (name, content, kind, part) in [
            ("a.jsonl", &b"{\"text\": \"one\"}\n{\"txt\": 1}"[..], ErrorKind::Corrupt, "line 2"),
            ("b.txt", b"\xff\xfe", ErrorKind::Corrupt, "UTF-8"),
            ("c.csv", b"a,b", ErrorKind::Invalid, ".jsonl"),
        ] {
            let file = folder.path().join(name);
            write(&file, content).unwrap();
            let error = Samples::open(&file).err().unwrap();
            assert!(error.kind() == kind && error.to_string().contains(part), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
        let missing = Samples::open(&folder.path().join("missing.txt")).err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
