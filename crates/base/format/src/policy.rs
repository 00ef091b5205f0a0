//! The durability policy, and what goes with it: values, never code paths.

/// When a write is durable (DESIGN §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Durability {
    /// When the call returns; `fsync` has nothing to do.
    #[default]
    Strict = 1,
    /// At `fsync`, or within seconds by itself.
    Buffered = 2,
    /// `fsync` orders and does not wait: calls are made durable strictly in the order in which they were
    /// made, each at the latest a second after it returned.
    Ordered = 3,
}

/// How old what an ordered client has done may become before somebody begins to make it durable.
pub const ORDERED_AGE: std::time::Duration = std::time::Duration::from_secs(1);

impl Durability {
    /// The policy with this persisted number.
    pub fn from_number(n: u8) -> Option<Self> {
        match n {
            1 => Some(Self::Strict),
            2 => Some(Self::Buffered),
            3 => Some(Self::Ordered),
            _ => None,
        }
    }
    /// Whether a client of a volume with NVM appends to a log in memory, its write buffer, and has a second one in NVM (DESIGN §10).
    pub fn has_buffer(self) -> bool {
        match self {
            Self::Strict => false,
            Self::Buffered | Self::Ordered => true,
        }
    }
    /// Whether fsync(2), and a write with `O_SYNC` or `O_DSYNC`, return when what the client has done is durable; else they order alone.
    pub fn fsync_waits(self) -> bool {
        match self {
            Self::Strict | Self::Buffered => true,
            Self::Ordered => false,
        }
    }
    /// The word users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Buffered => "buffered",
            Self::Ordered => "ordered",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "strict" => Ok(Self::Strict),
            "buffered" => Ok(Self::Buffered),
            "ordered" => Ok(Self::Ordered),
            _ => Err(format!(
                "durability '{s}' is none of 'strict', 'buffered' and 'ordered'"
            )),
        }
    }
}

/// Which whole blocks a buffered client of a volume with NVM writes to memory first (HiNFS §3.2; DESIGN §10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Buffering {
    /// Those for which that pays, by the Buffer Benefit Model.
    #[default]
    Model = 0,
    /// All of them.
    Lazy = 1,
    /// None of them: they go directly to NVM.
    Eager = 2,
}

impl Buffering {
    /// The choice with this number in a message.
    pub fn from_number(n: u8) -> Option<Self> {
        [Self::Model, Self::Lazy, Self::Eager]
            .into_iter()
            .find(|&choice| choice as u8 == n)
    }
}

impl std::str::FromStr for Buffering {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "model" => Ok(Self::Model),
            "lazy" => Ok(Self::Lazy),
            "eager" => Ok(Self::Eager),
            _ => Err(format!("'{s}' is none of 'model', 'lazy' and 'eager'")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words_lead_back() {
        for n in 0..=u8::MAX {
            let Some(policy) = Durability::from_number(n) else {
                assert!(!(1..=3).contains(&n));
                continue;
            };
            assert_eq!(policy as u8, n);
            assert_eq!(policy.name().parse(), Ok(policy));
            assert_eq!(policy.has_buffer(), policy != Durability::Strict);
            assert_eq!(policy.fsync_waits(), policy != Durability::Ordered);
        }
        assert!("lazy".parse::<Durability>().is_err());
    }
    #[test]
    fn choices_of_buffering() {
        for (n, word) in ["model", "lazy", "eager"].into_iter().enumerate() {
            assert_eq!(Buffering::from_number(n as u8), word.parse().ok());
        }
        assert_eq!(Buffering::from_number(3), None);
        assert!("strict".parse::<Buffering>().is_err());
    }
}
