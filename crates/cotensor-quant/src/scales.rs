//! Scales and offsets of groups, as they are stored.

use crate::codes::unpack_stream;
use crate::halves::widen;
use crate::spec::{QuantSpec, SUPER_GROUP, Width};
use rten_simd::f16;

/// The largest float16, in which scales are stored.
pub(crate) const F16_MAX: f32 = 65_504.0;

/// An element of a group is `(code − zero) · scale + offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GroupScale {
    pub(crate) scale: f32,
    pub(crate) zero: f32,
    pub(crate) offset: f32,
}

/// Of all groups of a matrix, in the order of the codes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scales {
    /// One for each group.
    Flat {
        scales: Vec<f16>,
        /// `None`: zeros.
        offsets: Option<Vec<f16>>,
    },
    /// One for each [`SUPER_GROUP`], and the small multiples of its groups: see [`Parts`].
    TwoLevel { scales: Vec<f16>, minimums: Option<Vec<f16>>, parts: Vec<u8> },
}

/// The small multiples of a super-group: first those of the scale, then those of the minimum, `bits` bits each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// Bits of a multiple.
    pub(crate) bits: u32,
    /// Groups of a super-group.
    pub(crate) groups: usize,
    /// Whether groups have a minimum. Else the multiples of the scale have a sign: 32 is zero.
    pub(crate) minimums: bool,
}

impl Parts {
    /// Those of a width.
    pub(crate) fn of(spec: &QuantSpec) -> Self {
        let groups = SUPER_GROUP / spec.group();
        match spec.width() {
            Width::Two => Self { bits: 4, groups, minimums: true },
            Width::Three => Self { bits: 6, groups, minimums: false },
            _ => Self { bits: 6, groups, minimums: true },
        }
    }

    /// The multiples of a super-group.
    pub(crate) fn count(&self) -> usize {
        self.groups * if self.minimums { 2 } else { 1 }
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.count() * self.bits as usize / 8
    }

    /// The multiple without a sign that stands for zero.
    pub(crate) fn middle(&self) -> u8 {
        if self.minimums { 0 } else { 1 << (self.bits - 1) }
    }
}

impl Scales {
    /// The scales of the groups of one row.
    pub(crate) fn of_row(&self, spec: &QuantSpec, row: usize, found: &mut [GroupScale]) {
        let middle = f32::from(spec.width().middle());
        let groups = found.len();
        match self {
            Self::Flat { scales, offsets } => {
                let at = row * groups..(row + 1) * groups;
                for_each_value(&scales[at.clone()], found, |found, scale| {
                    *found = GroupScale { scale, zero: middle, offset: 0.0 };
                });
                if let Some(offsets) = offsets {
                    for_each_value(&offsets[at], found, |found, offset| found.offset = offset);
                }
            }
            Self::TwoLevel { scales, minimums, parts } => {
                let kind = Parts::of(spec);
                let supers = groups / kind.groups;
                let mut multiples = [0; SUPER_GROUP / 8];
                for (index, found) in found.chunks_exact_mut(kind.groups).enumerate() {
                    let at = row * supers + index;
                    unpack_stream(
                        kind.bits,
                        &parts[at * kind.bytes()..(at + 1) * kind.bytes()],
                        &mut multiples[..kind.count()],
                    );
                    let scale = scales[at].to_f32();
                    let minimum = minimums.as_ref().map_or(0.0, |minimums| minimums[at].to_f32());
                    for (group, found) in found.iter_mut().enumerate() {
                        let multiple = f32::from(multiples[group]) - f32::from(kind.middle());
                        let offset =
                            if kind.minimums { -minimum * f32::from(multiples[kind.groups + group]) } else { 0.0 };
                        let zero = if kind.minimums { 0.0 } else { middle };
                        *found = GroupScale { scale: scale * multiple, zero, offset };
                    }
                }
            }
        }
    }
}

/// Calls `set` with each group and the value of its float16 number.
fn for_each_value(halves: &[f16], groups: &mut [GroupScale], set: impl Fn(&mut GroupScale, f32)) {
    const COUNT: usize = 64;
    for (halves, groups) in halves.chunks(COUNT).zip(groups.chunks_mut(COUNT)) {
        let mut values = [0.0; COUNT];
        widen(halves, &mut values[..halves.len()]);
        for (group, value) in groups.iter_mut().zip(values) {
            set(group, value);
        }
    }
}
