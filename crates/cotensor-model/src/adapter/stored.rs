//! An adapter as a tensor: a group of the weights, the bias and a description.

use super::fit::Quality;
use super::map::LinearMap;
use super::patches::Patches;
use cotensor_core::{ContentHash, DType, Error, Hasher, Kind, Result, Space};
use cotensor_store::{CopyReason, Holder, Lease, Members, Retention, Store, TensorSpec};
use serde::{Deserialize, Serialize};

/// The names of the members.
const WEIGHT: &str = "weight";
const BIAS: &str = "bias";
const INFO: &str = "info";

/// The version of the description.
const VERSION: u32 = 2;

/// The most bytes of the description.
const INFO_BYTES_MAX: usize = 64 << 10;

/// The most elements of the weights.
const WEIGHTS_MAX: usize = 1 << 28;

/// A stage of a model, as an end of an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encoder {
    /// The display name of the model.
    pub model: String,
    /// The role of the stage.
    pub stage: String,
    /// The space of its output.
    #[serde(with = "hex")]
    pub space: Space,
    /// Whether its output is one row for the whole input, `[1, width]`.
    pub pooled: bool,
}

/// How the rows of the source become rows of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type", deny_unknown_fields)]
pub enum Rows {
    /// By the characters that tokens cover.
    Tokens,
    /// By the position of patches in an image.
    Patches {
        /// The patches of the source.
        source: Patches,
        /// The patches of the target.
        target: Patches,
    },
    /// By time.
    Frames {
        /// The number of rows of the target.
        target: usize,
    },
}

impl Rows {
    /// The alignment that serves samples with both; `None` if none does.
    pub fn of_both(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Patches { source, target }, Self::Patches { source: other_source, target: other_target }) => {
                Some(Self::Patches { source: source.of_both(other_source)?, target: target.of_both(other_target)? })
            }
            _ => (self == other).then_some(*self),
        }
    }
}

/// The description of an adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterInfo {
    version: u32,
    /// The stage whose tensors the adapter reads.
    pub source: Encoder,
    /// The stage whose tensors the adapter predicts.
    pub target: Encoder,
    /// The alignment of the rows.
    pub rows: Rows,
    /// The number of samples.
    pub samples: usize,
    /// The error on held-out samples.
    pub quality: Quality,
}

impl AdapterInfo {
    /// The map and its error in words.
    pub fn described(&self) -> String {
        let Quality { r2, cosine, baseline_r2, baseline_cosine, .. } = self.quality;
        let end = |end: &Encoder| format!("{} of {} (space {})", end.stage, end.model, end.space);
        format!(
            "{} is approximated from {} by a linear map; held-out R² {r2:.3} and cosine {cosine:.3}, of a mean prediction \
             {baseline_r2:.3} and {baseline_cosine:.3}",
            end(&self.target),
            end(&self.source)
        )
    }
}

/// A tensor of an adapter: its name, element type, shape and bytes.
pub type Member = (&'static str, DType, Vec<usize>, Vec<u8>);

/// A map from the space of one stage to the space of another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The description.
    pub info: AdapterInfo,
    /// The map.
    pub map: LinearMap,
}

impl Adapter {
    /// An adapter of a fitted map.
    pub fn new(source: Encoder, target: Encoder, rows: Rows, samples: usize, map: LinearMap, quality: Quality) -> Self {
        Self { info: AdapterInfo { version: VERSION, source, target, rows, samples, quality }, map }
    }

    /// The name under which an adapter between two spaces is published.
    pub fn tensor_name(source: &Space, target: &Space) -> String {
        format!("adapter/{}/{}", source.0.short(), target.0.short())
    }

    /// The space of its results. It differs from the target's space: the numbers are approximations.
    pub fn space(&self) -> Space {
        let mut hasher = Hasher::new("cotensor adapted space v1");
        hasher.field(self.info.source.space.0.as_bytes()).field(self.identity().as_bytes());
        Space(hasher.finish())
    }

    /// The hash of the map and the alignment.
    pub fn identity(&self) -> ContentHash {
        let mut hasher = Hasher::new("cotensor adapter v1");
        hasher.number(self.map.inputs() as u64).number(self.map.outputs() as u64);
        hasher.field(bytemuck::cast_slice(self.map.weight())).field(bytemuck::cast_slice(self.map.bias()));
        hasher.field(format!("{:?}", self.info.rows).as_bytes()).finish()
    }

    /// The members of the group.
    ///
    /// # Errors
    /// `Invalid` for names that make the description too long.
    pub fn members(&self) -> Result<[Member; 3]> {
        let info = serde_json::to_vec(&self.info).map_err(|error| Error::invalid(error.to_string()))?;
        if info.len() > INFO_BYTES_MAX {
            return Err(Error::invalid(format!("a description of {} bytes", info.len())).in_field(INFO));
        }
        let bytes = |values: &[f32]| bytemuck::cast_slice(values).to_vec();
        Ok([
            (WEIGHT, DType::F32, vec![self.map.inputs(), self.map.outputs()], bytes(self.map.weight())),
            (BIAS, DType::F32, vec![self.map.outputs()], bytes(self.map.bias())),
            (INFO, DType::U8, vec![info.len()], info),
        ])
    }

    /// Reads an adapter from its members. `member` returns the element type, the shape and the bytes of a member.
    ///
    /// # Errors
    /// `Corrupt` with the name of the member when it has another type, shape or content; the errors of `member`.
    pub fn from_members<'a>(
        member: impl Fn(&str) -> Result<(DType, Vec<usize>, std::borrow::Cow<'a, [u8]>)>,
    ) -> Result<Self> {
        let read = |name: &str, dtype: DType, limit: usize| {
            let (found, shape, bytes) = member(name)?;
            if found != dtype || shape.iter().product::<usize>() > limit {
                return Err(Error::corrupt(format!("{found} {shape:?} is not a member of an adapter")).in_field(name));
            }
            Ok((shape, bytes))
        };
        let (_, info) = read(INFO, DType::U8, INFO_BYTES_MAX)?;
        let info: AdapterInfo =
            serde_json::from_slice(&info).map_err(|error| Error::corrupt(error.to_string()).in_field(INFO))?;
        if info.version != VERSION {
            let message = format!("version {}; this program reads version {VERSION}", info.version);
            return Err(Error::unsupported(message).in_field(INFO));
        }
        let (shape, weight) = read(WEIGHT, DType::F32, WEIGHTS_MAX)?;
        let (_, bias) = read(BIAS, DType::F32, WEIGHTS_MAX)?;
        let &[inputs, outputs] = &shape[..] else {
            return Err(Error::corrupt(format!("{shape:?} is not a matrix")).in_field(WEIGHT));
        };
        let map = LinearMap::from_rows(inputs, outputs, numbers(&weight), numbers(&bias));
        Ok(Self { info, map: map.map_err(|error| Error::corrupt(error.to_string()).in_field(WEIGHT))? })
    }

    /// Publishes the adapter under its [name](Self::tensor_name) as a group. It stays until it is removed.
    ///
    /// # Errors
    /// As [`cotensor_store::TensorStore::reserve`].
    pub fn publish(&self, store: &dyn Store, holder: &Holder) -> Result<Lease> {
        let members = self.members()?;
        let table = Members::new(members.iter().map(|(name, dtype, shape, _)| (*name, *dtype, shape)))?;
        let spec = TensorSpec {
            kind: Kind::Other,
            space: Some(self.space()),
            retention: Retention::Cached { recompute: std::time::Duration::ZERO },
            ..TensorSpec::group(Self::tensor_name(&self.info.source.space, &self.info.target.space), table)
        };
        let mut reservation = store.reserve(spec, holder)?;
        for (name, _, _, bytes) in &members {
            reservation.write_member(name, bytes, CopyReason::Put)?;
        }
        reservation.publish()
    }

    /// Reads a published adapter.
    ///
    /// # Errors
    /// `Corrupt` for a tensor that is not an adapter.
    pub fn of_lease(lease: &Lease) -> Result<Self> {
        let read = Self::from_members(|name| {
            let member = lease.member(name)?;
            Ok((member.layout().dtype(), member.shape().to_vec(), member.copy_to_host()?.into()))
        });
        read.map_err(|error| Error::corrupt(format!("{} is not an adapter: {error}", lease.name())))
    }
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// A space as 64 hexadecimal digits.
mod hex {
    use cotensor_core::{ContentHash, Space};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(space: &Space, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&space.0.to_string())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Space, D::Error> {
        let text = String::deserialize(deserializer)?;
        ContentHash::from_hex(&text).map(Space).ok_or_else(|| D::Error::custom(format!("{text:?} is not a hash")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;
    use cotensor_store::{LocalStore, TensorStore};

    fn adapter() -> Adapter {
        let encoder = |model: &str| Encoder {
            model: model.to_owned(),
            stage: "encoder".to_owned(),
            space: Space(ContentHash::of(model.as_bytes())),
            pooled: false,
        };
        let map = LinearMap::from_rows(2, 3, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![0.5, 0.0, -0.5]).unwrap();
        let quality = Quality {
            strength: 0.1,
            fitted_rows: 90,
            held_out_rows: 10,
            r2: 0.5,
            cosine: 0.9,
            baseline_r2: -0.1,
            baseline_cosine: 0.2,
        };
        let [source, target] = [5, 1].map(|rows| Patches::of_image(rows, 8, 8).unwrap());
        Adapter::new(encoder("a"), encoder("b"), Rows::Patches { source, target }, 20, map, quality)
    }

    #[test]
    fn published_adapter_is_read_back() {
        let store = LocalStore::builder().build();
        let (adapter, holder) = (adapter(), store.holder("fit"));
        drop(adapter.publish(&*store, &holder).unwrap());
        let name = Adapter::tensor_name(&adapter.info.source.space, &adapter.info.target.space);
        let read = Adapter::of_lease(&store.get(&name, &holder).unwrap()).unwrap();
        assert_eq!(read, adapter);
        assert_eq!((read.identity(), read.space()), (adapter.identity(), adapter.space()));
        assert_eq!(read.map.apply(&[1.0, 1.0, 0.0, 2.0]), [5.5, 7.0, 8.5, 8.5, 10.0, 11.5]);
    }

    #[test]
    fn damaged_members_are_refused_by_name() {
        let members = adapter().members().unwrap();
        let read = |name: &str, shape: Vec<usize>, bytes: Vec<u8>| {
            Adapter::from_members(|wanted| {
                let (_, dtype, known, content) = members.iter().find(|(known, ..)| *known == wanted).unwrap();
                if wanted == name {
                    return Ok((*dtype, shape.clone(), bytes.clone().into()));
                }
                Ok((*dtype, known.clone(), content.clone().into()))
            })
            .unwrap_err()
        };
        let nan = f32::NAN.to_le_bytes().repeat(6);
        for (name, shape, bytes) in [
            ("weight", vec![3, 2], vec![0; 24]),
            ("weight", vec![6], vec![0; 24]),
            ("weight", vec![2, 3], nan),
            ("bias", vec![2], vec![0; 8]),
            ("info", vec![2], b"{}".to_vec()),
            ("info", vec![INFO_BYTES_MAX + 1], vec![0; INFO_BYTES_MAX + 1]),
        ] {
            let error = read(name, shape, bytes);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let named = if name == "bias" { "weight" } else { name };
            assert!(error.to_string().contains(named), "{name}: {error}");
        }
    }
}
