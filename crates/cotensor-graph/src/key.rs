//! The keys of results, the space of a stage and the identity of its inputs. Every language and the browser compute them with
//! this code, so that equal keys are equal results.

use cotensor_core::{ContentHash, DType, Hasher, Result, Space};

/// An engine that runs a graph, and how. Two engines may round differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution<'a> {
    /// The engine's name.
    pub engine: &'a str,
    /// The engine's version.
    pub version: &'a str,
    /// The precision in which the engine computes.
    pub precision: DType,
    /// The engine's kernels, if it has several; else empty.
    pub variant: &'a str,
}

/// What identifies the results of a stage beside its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageIdentity<'a> {
    /// The space of the stage.
    pub space: Space,
    /// What runs the stage.
    pub execution: Execution<'a>,
}

impl StageIdentity<'_> {
    /// The key of the outputs `outputs` for inputs by name and identity, in any order. `before` is what runs the stage whose
    /// result this one reads, if one call runs both: the space holds that stage, but not its engine.
    pub fn key(&self, before: Option<Execution<'_>>, inputs: &[(&str, ContentHash)], outputs: &[&str]) -> ContentHash {
        let mut hasher = self.hasher("cotensor stage v1");
        if let Some(before) = before {
            hasher.field(before.engine.as_bytes()).field(before.version.as_bytes());
            hasher.field(before.precision.name().as_bytes());
            if !before.variant.is_empty() {
                hasher.field(before.variant.as_bytes());
            }
        }
        let mut inputs = inputs.to_vec();
        inputs.sort_by_key(|(name, _)| *name);
        hasher.number(inputs.len() as u64);
        for (name, identity) in inputs {
            hasher.field(name.as_bytes()).field(identity.as_bytes());
        }
        for output in outputs {
            hasher.field(output.as_bytes());
        }
        hasher.finish()
    }

    /// The key of a result that takes several runs, such as a decoding: of its label and of what it depends on.
    pub fn key_once(&self, label: &str, extra: &[ContentHash]) -> ContentHash {
        let mut hasher = self.hasher(label);
        for part in extra {
            hasher.field(part.as_bytes());
        }
        hasher.finish()
    }

    fn hasher(&self, domain: &str) -> Hasher {
        let Execution { engine, version, precision, variant } = self.execution;
        let mut hasher = Hasher::new(domain);
        hasher.field(self.space.0.as_bytes()).field(engine.as_bytes()).field(version.as_bytes());
        hasher.field(precision.name().as_bytes());
        if !variant.is_empty() {
            hasher.field(variant.as_bytes());
        }
        hasher
    }
}

/// The space of a stage: the fingerprint of its graph with weights, and of the preprocessing of its inputs.
pub fn space_of(fingerprint: ContentHash, preprocessing: &[ContentHash]) -> Space {
    let mut hasher = Hasher::new("cotensor space v1");
    hasher.field(fingerprint.as_bytes());
    for part in preprocessing {
        hasher.field(part.as_bytes());
    }
    Space(hasher.finish())
}

/// The identity of an array: of its type, its dimensions in elements, and its row-major little-endian elements.
pub fn array_identity(dtype: DType, shape: &[usize], bytes: &[u8]) -> ContentHash {
    array_hasher(dtype, shape).field(bytes).finish()
}

/// As [`array_identity`], of `len` bytes that are read piece by piece. `read` gets the offset of each piece and the buffer for
/// it.
///
/// # Errors
/// Those of `read`.
pub fn array_identity_of_pieces(
    dtype: DType,
    shape: &[usize],
    len: usize,
    read: impl FnMut(usize, &mut [u8]) -> Result<()>,
) -> Result<ContentHash> {
    Ok(array_hasher(dtype, shape).field_of_pieces(len, read)?.finish())
}

fn array_hasher(dtype: DType, shape: &[usize]) -> Hasher {
    let mut hasher = Hasher::new("cotensor array v1");
    hasher.field(dtype.name().as_bytes()).number(shape.len() as u64);
    for &dim in shape {
        hasher.number(dim as u64);
    }
    hasher
}

/// The identity of output number `index` of the result with this key.
pub fn output_identity(key: ContentHash, index: usize) -> ContentHash {
    Hasher::new("cotensor output v1").field(key.as_bytes()).number(index as u64).finish()
}

/// The key of a preprocessed file: of the input's name, of the fingerprint of its preprocessing, and of its content.
pub fn input_key(label: &str, preprocessing: ContentHash, content: ContentHash) -> ContentHash {
    let mut hasher = Hasher::new("cotensor input v1");
    hasher.field(label.as_bytes()).field(preprocessing.as_bytes()).field(content.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTEN: Execution<'_> = Execution { engine: "rten", version: "1", precision: DType::F32, variant: "" };

    #[test]
    fn engine_precision_and_kernels_are_part_of_the_key() {
        let identity = |execution| StageIdentity { space: Space(ContentHash::of(b"space")), execution };
        let keys = |execution, before| {
            let identity = identity(execution);
            [identity.key(before, &[], &["out"]), identity.key_once("stage", &[])]
        };
        let rten = keys(RTEN, None);
        assert_eq!(rten, keys(RTEN, None));
        for other in [
            Execution { precision: DType::F16, ..RTEN },
            Execution { version: "2", ..RTEN },
            Execution { engine: "ort", ..RTEN },
            Execution { variant: "prepacked", ..RTEN },
        ] {
            let other = keys(other, None);
            assert!(rten.iter().zip(other).all(|(rten, other)| *rten != other));
        }
        let before = |version| keys(RTEN, Some(Execution { version, ..RTEN }))[0];
        assert_ne!(before("1"), rten[0]);
        assert_ne!(before("1"), before("2"));
    }

    #[test]
    fn order_of_inputs_does_not_change_the_key_and_their_values_do() {
        let identity = StageIdentity { space: Space(ContentHash::of(b"space")), execution: RTEN };
        let (a, b) = (ContentHash::of(b"a"), ContentHash::of(b"b"));
        let key = |inputs: &[(&str, ContentHash)]| identity.key(None, inputs, &["out"]);
        assert_eq!(key(&[("x", a), ("y", b)]), key(&[("y", b), ("x", a)]));
        assert_ne!(key(&[("x", a), ("y", b)]), key(&[("x", b), ("y", a)]));
        assert_ne!(identity.key(None, &[], &["out"]), identity.key(None, &[], &["other"]));
    }

    #[test]
    fn identity_depends_on_dtype_shape_and_content() {
        let a = array_identity(DType::F32, &[2, 2], &[0; 16]);
        assert_eq!(a, array_identity(DType::F32, &[2, 2], &[0; 16]));
        assert_ne!(a, array_identity(DType::F32, &[4], &[0; 16]));
        assert_ne!(a, array_identity(DType::I32, &[2, 2], &[0; 16]));
        assert_ne!(a, array_identity(DType::F32, &[2, 2], &[1; 16]));
        let pieces = array_identity_of_pieces(DType::F32, &[2, 2], 16, |_, piece| {
            piece.fill(1);
            Ok(())
        });
        assert_eq!(pieces.unwrap(), array_identity(DType::F32, &[2, 2], &[1; 16]));
    }
}
