use std::fmt;

/// Bytes that are read at a time, so that they are in the cache of the core when they are hashed.
const PIECE_BYTES: usize = 256 << 10;

/// The BLAKE3 hash of some content: 32 bytes, shown as hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// Hashes `bytes` on the calling thread.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Hashes `len` bytes piece by piece. `read` gets the offset of each piece and the buffer for it.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn of_pieces(len: usize, read: impl FnMut(usize, &mut [u8]) -> crate::Result<()>) -> crate::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        update_by_pieces(&mut hasher, len, read)?;
        Ok(Self(*hasher.finalize().as_bytes()))
    }

    /// A hash from its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads 64 hexadecimal digits.
    pub fn from_hex(hex: &str) -> Option<Self> {
        blake3::Hash::from_hex(hex).ok().map(|hash| Self(*hash.as_bytes()))
    }

    /// The first 12 hexadecimal digits, for messages.
    pub fn short(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex()[..12].to_owned()
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.short())
    }
}

/// The encoder of a tensor: the fingerprint of its graph, weights and preprocessing. Tensors of equal spaces are
/// interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Space(pub ContentHash);

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.short())
    }
}

/// Hashes a sequence of fields so that no two different sequences collide:
/// every field is preceded by its length.
#[derive(Clone)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// A hasher for one purpose; different `domain`s never collide.
    pub fn new(domain: &str) -> Self {
        Self(blake3::Hasher::new_derive_key(domain))
    }

    /// Adds one field.
    pub fn field(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// Adds one field of `len` bytes piece by piece. `read` gets the offset of each piece and the buffer for it.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn field_of_pieces(
        &mut self,
        len: usize,
        read: impl FnMut(usize, &mut [u8]) -> crate::Result<()>,
    ) -> crate::Result<&mut Self> {
        self.0.update(&(len as u64).to_le_bytes());
        update_by_pieces(&mut self.0, len, read)?;
        Ok(self)
    }

    /// Adds one number.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.field(&number.to_le_bytes())
    }

    /// The hash of all fields so far.
    pub fn finish(&self) -> ContentHash {
        ContentHash(*self.0.finalize().as_bytes())
    }
}

fn update_by_pieces(
    hasher: &mut blake3::Hasher,
    len: usize,
    mut read: impl FnMut(usize, &mut [u8]) -> crate::Result<()>,
) -> crate::Result<()> {
    let mut piece = vec![0; len.min(PIECE_BYTES)];
    let mut at = 0;
    while at < len {
        let part = piece.get_mut(..PIECE_BYTES.min(len - at)).unwrap_or_default();
        read(at, part)?;
        hasher.update(part);
        at += part.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_boundaries_change_the_hash() {
        let hash = |fields: &[&str]| {
            let mut hasher = Hasher::new("test");
            for field in fields {
                hasher.field(field.as_bytes());
            }
            hasher.finish()
        };
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_eq!(hash(&["ab", "c"]), hash(&["ab", "c"]));
        assert_ne!(Hasher::new("a").finish(), Hasher::new("b").finish());
    }

    #[test]
    fn pieces_hash_like_the_whole() {
        for len in [0, 1, PIECE_BYTES, 2 * PIECE_BYTES + 7] {
            let bytes: Vec<u8> = (0..len).map(|index| index as u8).collect();
            let read = |at: usize, piece: &mut [u8]| {
                piece.copy_from_slice(&bytes[at..at + piece.len()]);
                Ok(())
            };
            assert_eq!(ContentHash::of_pieces(len, read).unwrap(), ContentHash::of(&bytes), "{len}");
            let [mut pieces, mut whole] = [(); 2].map(|()| Hasher::new("test"));
            assert_eq!(pieces.field_of_pieces(len, read).unwrap().finish(), whole.field(&bytes).finish(), "{len}");
        }
        let failing = |_: usize, _: &mut [u8]| Err(crate::Error::corrupt("unreadable"));
        assert!(ContentHash::of_pieces(1, failing).is_err());
    }

    #[test]
    fn hex_parses_back() {
        let hash = ContentHash::of(b"tensor");
        assert_eq!(ContentHash::from_hex(&hash.to_string()), Some(hash));
        assert!(hash.to_string().starts_with(&hash.short()));
        assert_eq!(ContentHash::from_hex("xyz"), None);
    }
}
