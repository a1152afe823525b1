//! The layout of a PyTorch module in one tensor of bytes: a header, then its storages.
//!
//! ```text
//! "COTMODEL" | version, u32 | 0, u32 | length of the text, u64 | text, JSON | zeros | storages, each at a multiple of 64 bytes
//! ```
//!
//! All numbers are little-endian. The text lists storages (offset and length in bytes, from the first byte after the
//! header's padding) and tensors. Another process wrote the header, so [`ModuleManifest::parse`] validates all of it.

use cotensor_core::{DType, Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::HashSet;

const MAGIC: &[u8; 8] = b"COTMODEL";
const VERSION: u32 = 1;
/// Magic, version, zero, length: what [`ModuleManifest::header_bytes`] needs.
const PREFIX_BYTES: usize = 24;
const ALIGNMENT_BYTES: usize = 64;
const HEADER_BYTES_MAX: u64 = 100_000_000;
const TENSORS_MAX: usize = 1_000_000;
const DIMENSIONS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 4096;
/// Counts of elements and bytes stay below this, so that sums of a few counts fit into a signed 64-bit number.
const COUNT_MAX: u64 = 1 << 56;

/// The contents of a published module.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleManifest {
    /// The name of the module's class, for reports.
    pub module: String,
    /// Offset and length of each storage, in bytes; offsets count from the end of the header.
    pub storages: Vec<(u64, u64)>,
    /// The module's tensors.
    pub tensors: Vec<ModuleTensor>,
    /// The checkpoint that the module was loaded from: a JSON object.
    pub source: Box<RawValue>,
}

/// One tensor of a module: its view of a storage, and its places in the module.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleTensor {
    /// Name and role of every place. Tied weights have several places.
    pub places: Vec<(String, Role)>,
    /// Name of the element type.
    pub dtype: String,
    /// Dimensions, in elements.
    pub shape: Vec<u64>,
    /// Strides, in elements.
    pub stride: Vec<u64>,
    /// Index of the storage.
    pub storage: u64,
    /// Offset from the start of the storage, in elements.
    pub offset: u64,
    /// Whether the tensor requires gradients.
    pub requires_grad: bool,
}

/// The role of a tensor in its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A parameter.
    #[serde(rename = "parameter")]
    Parameter,
    /// A buffer.
    #[serde(rename = "buffer")]
    Buffer,
    /// A buffer that is not in the module's state dict.
    #[serde(rename = "non-persistent buffer")]
    Temporary,
    /// A tensor of a state dict or a file, which have no roles.
    #[serde(rename = "tensor")]
    Tensor,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 4] = [Role::Parameter, Role::Buffer, Role::Temporary, Role::Tensor];

    /// The role's name in a header.
    pub fn name(self) -> &'static str {
        match self {
            Role::Parameter => "parameter",
            Role::Buffer => "buffer",
            Role::Temporary => "non-persistent buffer",
            Role::Tensor => "tensor",
        }
    }
}

impl ModuleTensor {
    /// Elements from the first to the last, both included; 0 for an empty tensor.
    fn span(&self) -> u128 {
        if self.shape.contains(&0) {
            return 0;
        }
        let reach = |(size, step): (&u64, &u64)| u128::from(size - 1) * u128::from(*step);
        1 + self.shape.iter().zip(&self.stride).map(reach).sum::<u128>()
    }

    fn check<'a>(&'a self, storages: &[(u64, u64)], seen: &mut HashSet<&'a str>) -> Result<()> {
        for (name, _) in &self.places {
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !seen.insert(name) {
                return Err(Error::corrupt(format!(
                    "{:?}: names of 1 to {NAME_BYTES_MAX} bytes, once each",
                    start(name)
                )));
            }
        }
        if self.places.is_empty() {
            return Err(Error::corrupt("it has no name"));
        }
        let dtype: DType = self.dtype.parse().map_err(|_| Error::corrupt(format!("dtype {:?}", start(&self.dtype))))?;
        if self.shape.len() > DIMENSIONS_MAX || self.stride.len() != self.shape.len() {
            let (shape, stride) = (self.shape.len(), self.stride.len());
            return Err(Error::corrupt(format!("{shape} dimensions and {stride} strides; at most {DIMENSIONS_MAX}")));
        }
        let counts = self.shape.iter().chain(&self.stride).chain([&self.offset]);
        if counts.into_iter().any(|&count| count >= COUNT_MAX) {
            return Err(Error::corrupt("a number of more than 56 bits"));
        }
        let item = dtype.size_bytes() as u64;
        let bytes = self.shape.iter().try_fold(item, |bytes, &size| bytes.checked_mul(size));
        if !self.shape.contains(&0) && bytes.is_none_or(|bytes| bytes >= COUNT_MAX) {
            return Err(Error::corrupt(format!("shape {:?}", self.shape)));
        }
        let storage = usize::try_from(self.storage).ok().and_then(|number| storages.get(number));
        let Some(&(_, length)) = storage else {
            return Err(Error::corrupt(format!("storage {} of {}", self.storage, storages.len())));
        };
        if (u128::from(self.offset) + self.span()) * u128::from(item) > u128::from(length) {
            return Err(Error::corrupt(format!("it reaches past the {length} bytes of its storage")));
        }
        Ok(())
    }
}

impl ModuleManifest {
    /// Parses and validates the manifest at the start of `bytes`. Returns it with the offset of its storages in bytes.
    ///
    /// # Errors
    /// `Corrupt` with the reason.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize)> {
        let text = bytes.get(PREFIX_BYTES..Self::header_bytes(bytes, bytes.len())?).unwrap_or_default();
        // Copied before parsing: the writer may still write the memory.
        let text = text.to_vec();
        Self::parse_text(&text, bytes.len())
    }

    /// As [`parse`](Self::parse), for a module of `total` bytes whose memory cannot be addressed. `read` reads as many bytes of its start as
    /// the slice has.
    ///
    /// # Errors
    /// As [`parse`](Self::parse); those of `read`.
    pub fn parse_by(total: usize, mut read: impl FnMut(&mut [u8]) -> Result<()>) -> Result<(Self, usize)> {
        let mut prefix = vec![0; PREFIX_BYTES.min(total)];
        read(&mut prefix)?;
        let mut header = vec![0; Self::header_bytes(&prefix, total)?];
        read(&mut header)?;
        Self::parse_text(&header[PREFIX_BYTES..], total)
    }

    /// The length of prefix and text of a module of `total` bytes that begins with `start`.
    fn header_bytes(start: &[u8], total: usize) -> Result<usize> {
        let no_model = || Error::corrupt("this is not a model that cotensor.torch published");
        let prefix = start.get(..PREFIX_BYTES).ok_or_else(no_model)?;
        let (magic, numbers) = prefix.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(no_model());
        }
        let word = |at: usize| numbers[at..at + 4].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let (version, zero, length) = (word(0), word(4), word(12) << 32 | word(8));
        if version != u64::from(VERSION) || zero != 0 {
            return Err(Error::corrupt(format!("a model of format {version}, which this version does not know")));
        }
        let end = usize::try_from(length).ok().filter(|_| length <= HEADER_BYTES_MAX).map(|len| PREFIX_BYTES + len);
        let too_long = || Error::corrupt(format!("a header of {length} bytes in {total}"));
        end.filter(|end| *end <= total).ok_or_else(too_long)
    }

    fn parse_text(text: &[u8], total: usize) -> Result<(Self, usize)> {
        let data = aligned(PREFIX_BYTES + text.len());
        let manifest: Self = serde_json::from_slice(text)
            .map_err(|error| Error::corrupt(format!("the header is not a manifest: {error}")))?;
        manifest.check(total.saturating_sub(data) as u64)?;
        Ok((manifest, data))
    }

    fn check(&self, room: u64) -> Result<()> {
        if !self.source.get().starts_with('{') {
            return Err(Error::corrupt("source has to be an object"));
        }
        if self.tensors.len() > TENSORS_MAX || self.storages.len() > TENSORS_MAX {
            return Err(Error::corrupt(format!("at most {TENSORS_MAX} tensors and storages are expected")));
        }
        let mut end = 0;
        for (index, &(offset, length)) in self.storages.iter().enumerate() {
            let stop = offset.checked_add(length).filter(|stop| *stop <= room);
            let Some(stop) = stop.filter(|_| offset % ALIGNMENT_BYTES as u64 == 0 && offset >= end) else {
                let message = format!(
                    "storage {index}: {length} bytes from {offset} on, in {room}, where the one before ends at {end}"
                );
                return Err(Error::corrupt(message));
            };
            end = stop;
        }
        let mut seen = HashSet::with_capacity(self.tensors.len());
        for (index, tensor) in self.tensors.iter().enumerate() {
            let checked = tensor.check(&self.storages, &mut seen);
            checked.map_err(|error| Error::corrupt(format!("tensor {index}: {}", error.message())))?;
        }
        Ok(())
    }

    /// The header's bytes, padded to a multiple of the alignment.
    ///
    /// # Errors
    /// `Invalid` for a manifest whose header would be too long.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let text = serde_json::to_vec(self).map_err(|error| Error::invalid(error.to_string()))?;
        let length = text.len() as u64;
        if length > HEADER_BYTES_MAX {
            return Err(Error::invalid(format!("a header of {length} bytes; at most {HEADER_BYTES_MAX} are possible")));
        }
        let mut header = Vec::with_capacity(PREFIX_BYTES + text.len() + ALIGNMENT_BYTES);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&0u32.to_le_bytes());
        header.extend_from_slice(&length.to_le_bytes());
        header.extend_from_slice(&text);
        header.resize(aligned(header.len()), 0);
        Ok(header)
    }
}

/// The next multiple of the alignment.
fn aligned(size_bytes: usize) -> usize {
    size_bytes.next_multiple_of(ALIGNMENT_BYTES)
}

/// The start of a text, for an error message.
fn start(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn good() -> Value {
        json!({
            "module": "m",
            "storages": [[0, 16], [64, 8]],
            "tensors": [
                {"places": [["w", "parameter"], ["tied", "parameter"]], "dtype": "float32", "shape": [2, 2], "stride": [1, 2],
                 "storage": 0, "offset": 0, "requires_grad": true},
                {"places": [["b", "non-persistent buffer"]], "dtype": "int64", "shape": [], "stride": [], "storage": 1,
                 "offset": 0, "requires_grad": false},
            ],
            "source": {"file": {"x": 1}},
        })
    }

    fn published(text: &Value) -> Vec<u8> {
        let text = text.to_string();
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &[0; 4], &(text.len() as u64).to_le_bytes()].concat();
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(aligned(bytes.len()) + 72, 0);
        bytes
    }

    #[test]
    fn encoded_manifest_is_parsed_back() {
        let bytes = published(&good());
        let (manifest, data) = ModuleManifest::parse(&bytes).unwrap();
        assert_eq!(data + 72, bytes.len());
        assert_eq!(manifest.tensors[0].places[1], ("tied".to_owned(), Role::Parameter));
        let mut again = manifest.encode().unwrap();
        assert_eq!(again, bytes[..data]);
        again.extend_from_slice(&[0; 72]);
        assert_eq!(ModuleManifest::parse(&again).unwrap().0.source.get(), r#"{"file":{"x":1}}"#);
        for role in Role::ALL {
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
        }
    }

    #[test]
    fn invalid_manifests_name_the_field() {
        let wrong = |at: &str, value: Value| {
            let mut text = good();
            *text.pointer_mut(at).unwrap() = value;
            ModuleManifest::parse(&published(&text)).unwrap_err().to_string()
        };
        for (at, value, said) in [
            ("/source", json!([]), "source"),
            ("/storages/0", json!([4, 8]), "storage 0"),
            ("/storages/1", json!([0, 8]), "the one before ends at 16"),
            ("/storages/1", json!([64, 9]), "storage 1"),
            ("/storages/1", json!([u64::MAX - 63, 64]), "storage 1"),
            ("/tensors/0/places", json!([]), "tensor 0: it has no name"),
            ("/tensors/1/places", json!([["w", "buffer"]]), "tensor 1: \"w\""),
            ("/tensors/0/places/0/1", json!("module"), "unknown variant"),
            ("/tensors/0/dtype", json!("object"), "dtype \"object\""),
            ("/tensors/0/shape", json!([2, 3]), "reaches past the 16 bytes"),
            ("/tensors/0/stride", json!([1]), "2 dimensions and 1 strides"),
            ("/tensors/0/shape", json!([COUNT_MAX, 1]), "56 bits"),
            ("/tensors/0/shape", json!([1u64 << 40, 1u64 << 40]), "shape"),
            ("/tensors/0/storage", json!(2), "storage 2 of 2"),
            ("/tensors/0/offset", json!(1), "reaches past"),
            ("/tensors/0/offset", json!(-1), "invalid value"),
            ("/tensors/0/shape", json!([2.0, 2]), "invalid type"),
        ] {
            let message = wrong(at, value);
            assert!(message.contains(said), "{at}: {message}");
        }
    }

    #[test]
    fn flipped_bytes_never_panic() {
        let bytes = published(&good());
        for position in 0..bytes.len() - 72 {
            for change in [0x01, 0x20, 0x80] {
                let mut wrong = bytes.clone();
                wrong[position] ^= change;
                if let Ok((manifest, data)) = ModuleManifest::parse(&wrong) {
                    assert!(
                        manifest.storages.iter().all(|(offset, length)| offset + length <= (bytes.len() - data) as u64)
                    );
                }
            }
        }
        for length in 0..bytes.len() - 1 {
            assert!(ModuleManifest::parse(&bytes[..length]).is_err());
        }
    }
}
