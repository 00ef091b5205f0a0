//! The durability policy: a value, never a code path.

/// When a write is durable (DESIGN §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Durability {
    /// When the call returns; `fsync` has nothing to do.
    #[default]
    Strict = 1,
    /// At `fsync`, or within seconds by itself.
    Buffered = 2,
}

impl Durability {
    /// The policy with this persisted number.
    pub fn from_number(n: u8) -> Option<Self> {
        match n {
            1 => Some(Self::Strict),
            2 => Some(Self::Buffered),
            _ => None,
        }
    }
    /// The word users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Buffered => "buffered",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "strict" => Ok(Self::Strict),
            "buffered" => Ok(Self::Buffered),
            _ => Err(format!(
                "durability '{s}' is neither 'strict' nor 'buffered'"
            )),
        }
    }
}
