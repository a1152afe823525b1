use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

macro_rules! dtypes {
    ($($variant:ident $name:literal $size:literal $safetensors:literal;)*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DType {
            $(#[doc = concat!("`", $name, "`, ", $size, " byte(s) per element.")] $variant,)*
        }

        impl DType {
            /// Every element type, narrowest first.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// Bytes per element.
            pub const fn size_bytes(self) -> usize {
                match self { $(DType::$variant => $size,)* }
            }

            /// The name that numpy and torch use.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// The name that the safetensors format uses. The format has no `complex128`: its name here follows the others.
            pub const fn safetensors_name(self) -> &'static str {
                match self { $(DType::$variant => $safetensors,)* }
            }
        }

        impl FromStr for DType {
            type Err = Error;

            /// Reads a numpy or safetensors name.
            fn from_str(name: &str) -> Result<Self> {
                match name {
                    $($name | $safetensors => Ok(DType::$variant),)*
                    _ => Err(Error::invalid(format!("unknown dtype {name:?}"))),
                }
            }
        }
    };
}

dtypes! {
    Bool "bool" 1 "BOOL";
    U8 "uint8" 1 "U8";
    I8 "int8" 1 "I8";
    F8E4M3FN "float8_e4m3fn" 1 "F8_E4M3";
    F8E5M2 "float8_e5m2" 1 "F8_E5M2";
    U16 "uint16" 2 "U16";
    I16 "int16" 2 "I16";
    F16 "float16" 2 "F16";
    BF16 "bfloat16" 2 "BF16";
    U32 "uint32" 4 "U32";
    I32 "int32" 4 "I32";
    F32 "float32" 4 "F32";
    U64 "uint64" 8 "U64";
    I64 "int64" 8 "I64";
    F64 "float64" 8 "F64";
    C64 "complex64" 8 "C64";
    C128 "complex128" 16 "C128";
}

impl DType {
    /// Bytes of one number: of a real or imaginary part for a complex type.
    pub const fn part_bytes(self) -> usize {
        match self {
            DType::C64 | DType::C128 => self.size_bytes() / 2,
            _ => self.size_bytes(),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_names_parse_back() {
        for &dtype in DType::ALL {
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
            assert_eq!(dtype.safetensors_name().parse::<DType>().unwrap(), dtype);
        }
        assert!("float8".parse::<DType>().is_err());
    }
}
