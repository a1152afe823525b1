//! What a quantized matrix is made of: the width of its codes, the length of its groups, and how these are fitted.

use cotensor_core::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Width {
    /// 2 bits.
    Two,
    /// 3 bits: a plane of 2 bits and a plane of 1 bit.
    Three,
    /// 4 bits.
    Four,
    /// 8 bits.
    Eight,
}

impl Width {
    /// All widths.
    pub const ALL: [Self; 4] = [Self::Two, Self::Three, Self::Four, Self::Eight];

    /// The width of `bits` bits.
    ///
    /// # Errors
    /// `Invalid` for another number than 2, 3, 4 and 8.
    pub fn of(bits: u32) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|width| width.bits() == bits);
        found.ok_or_else(|| Error::invalid(format!("{bits} bits; 2, 3, 4 and 8 are possible")).in_field("bits"))
    }

    /// The width of `BITS` bits, which loops for one width know when they are compiled.
    pub(crate) const fn of_const(bits: u32) -> Self {
        match bits {
            2 => Self::Two,
            3 => Self::Three,
            4 => Self::Four,
            8 => Self::Eight,
            _ => panic!("2, 3, 4 or 8 bits"),
        }
    }

    /// The number of bits.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// The largest code.
    pub const fn code_max(self) -> u8 {
        ((1 << self.bits()) - 1) as u8
    }

    /// The code of zero without zero points.
    pub const fn middle(self) -> u8 {
        1 << (self.bits() - 1)
    }

    /// Bytes of `count` codes, a multiple of 8.
    pub const fn bytes(self, count: usize) -> usize {
        count * self.bits() as usize / 8
    }
}

/// How scales and zero points are fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// The largest magnitude of a group becomes the lowest code.
    Round,
    /// The scale of the least squared error, from several roundings.
    #[default]
    Search,
    /// Scale and offset of the least squared error.
    Affine,
    /// As `Affine` (with 3 bits: as `Search`) in groups of 16 or 32, whose scales and offsets are small multiples of two float16 for 256 elements.
    TwoLevel,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Self; 4] = [Self::Round, Self::Search, Self::Affine, Self::TwoLevel];

    /// The name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Round => "round",
            Self::Search => "search",
            Self::Affine => "affine",
            Self::TwoLevel => "two_level",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|scheme| scheme.name() == name);
        let message = || format!("{name:?}; round, search, affine and two_level are possible");
        found.ok_or_else(|| Error::invalid(message()).in_field("scheme"))
    }
}

/// The elements that share the two float16 of `TwoLevel`.
pub(crate) const SUPER_GROUP: usize = 256;

/// The elements that a group can have, the most first.
pub const GROUPS: [usize; 5] = [256, 128, 64, 32, 16];

/// Width, group and scheme. Valid by construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantSpec {
    width: Width,
    group: usize,
    scheme: Scheme,
}

impl QuantSpec {
    /// Groups of `group` elements, one of [`GROUPS`]. `TwoLevel` has its own, and takes 0 for them.
    ///
    /// # Errors
    /// `Invalid`, with the field, for another group, and for `TwoLevel` with 8 bits.
    pub fn new(width: Width, group: usize, scheme: Scheme) -> Result<Self> {
        let own = match (scheme, width) {
            (Scheme::TwoLevel, Width::Two | Width::Three) => Some(16),
            (Scheme::TwoLevel, Width::Four) => Some(32),
            (Scheme::TwoLevel, Width::Eight) => {
                return Err(Error::invalid("two_level has 2, 3 or 4 bits").in_field("bits"));
            }
            _ => None,
        };
        let group = match own {
            Some(own) if group == 0 || group == own => own,
            Some(own) => {
                let message = format!("groups of {group}; two_level with {} bits has groups of {own}", width.bits());
                return Err(Error::invalid(message).in_field("group"));
            }
            None => group,
        };
        if !GROUPS.contains(&group) {
            let message = format!("groups of {group}; 16, 32, 64, 128 and 256 are possible");
            return Err(Error::invalid(message).in_field("group"));
        }
        Ok(Self { width, group, scheme })
    }

    /// The width of the codes.
    pub fn width(&self) -> Width {
        self.width
    }

    /// Elements of a group.
    pub fn group(&self) -> usize {
        self.group
    }

    /// How groups are fitted.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The number of which the columns must be a multiple.
    pub fn columns_unit(&self) -> usize {
        if self.scheme == Scheme::TwoLevel { SUPER_GROUP } else { self.group }
    }

    /// Bits of a stored element, with its part of the scales.
    pub fn bits_per_weight(&self) -> f64 {
        let beside = match (self.scheme, self.width) {
            (Scheme::Round | Scheme::Search, _) => 16.0 / self.group as f64,
            (Scheme::Affine, _) => 32.0 / self.group as f64,
            (Scheme::TwoLevel, Width::Two) => (16.0 * 8.0 + 32.0) / SUPER_GROUP as f64,
            (Scheme::TwoLevel, Width::Three) => (16.0 * 6.0 + 16.0) / SUPER_GROUP as f64,
            (Scheme::TwoLevel, _) => (8.0 * 12.0 + 32.0) / SUPER_GROUP as f64,
        };
        f64::from(self.width.bits()) + beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_widths_are_checked() {
        let field = |result: Result<QuantSpec>| result.unwrap_err().field().map(str::to_owned);
        for group in [0, 8, 48, 512] {
            assert_eq!(field(QuantSpec::new(Width::Four, group, Scheme::Search)).as_deref(), Some("group"));
        }
        assert_eq!(field(QuantSpec::new(Width::Eight, 0, Scheme::TwoLevel)).as_deref(), Some("bits"));
        assert_eq!(field(QuantSpec::new(Width::Four, 64, Scheme::TwoLevel)).as_deref(), Some("group"));
        assert_eq!(Width::of(5).unwrap_err().field(), Some("bits"));
        assert_eq!("best".parse::<Scheme>().unwrap_err().field(), Some("scheme"));
        for scheme in Scheme::ALL {
            assert_eq!(scheme.to_string().parse::<Scheme>().unwrap(), scheme);
        }
    }

    #[test]
    fn bits_per_weight_count_the_scales() {
        let bits = |width, group, scheme| QuantSpec::new(width, group, scheme).unwrap().bits_per_weight();
        assert_eq!(bits(Width::Four, 64, Scheme::Search), 4.25);
        assert_eq!(bits(Width::Two, 64, Scheme::Affine), 2.5);
        assert_eq!(bits(Width::Two, 0, Scheme::TwoLevel), 2.625);
        assert_eq!(bits(Width::Three, 0, Scheme::TwoLevel), 3.4375);
        assert_eq!(bits(Width::Four, 0, Scheme::TwoLevel), 4.5);
    }
}
