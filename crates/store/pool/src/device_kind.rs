//! The kinds of devices below NVM, by their names and by their numbers on media.

use serde::{Deserialize, Serialize};
use shale_format::device_table::device_kind;

/// Kinds of devices below NVM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A file or block device that can be written anywhere.
    #[default]
    Conventional,
    /// A block device whose zones are written at their write pointers (SMR, ZNS), or an image of an
    /// emulated one.
    HostManaged,
    /// The emulator of raw flash: a file.
    OpenChannel,
}

impl DeviceKind {
    /// All of them.
    pub const ALL: [DeviceKind; 3] = [
        DeviceKind::Conventional,
        DeviceKind::HostManaged,
        DeviceKind::OpenChannel,
    ];

    /// Its name in volume files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Conventional => "conventional",
            DeviceKind::HostManaged => "host-managed",
            DeviceKind::OpenChannel => "open-channel",
        }
    }

    /// Percentage of such a device that is kept out of use unless another is asked for: of raw flash what its
    /// translation layer would keep (StageFS §5.1).
    pub fn overprovision_percent(self) -> u32 {
        match self {
            DeviceKind::Conventional | DeviceKind::HostManaged => 0,
            DeviceKind::OpenChannel => 10,
        }
    }

    /// Whether it can be written anywhere.
    pub(crate) fn is_usual(&self) -> bool {
        *self == DeviceKind::Conventional
    }

    /// The number on media ([`device_kind`]).
    pub fn number(self) -> u32 {
        match self {
            DeviceKind::Conventional => device_kind::CONVENTIONAL,
            DeviceKind::HostManaged => device_kind::HOST_MANAGED,
            DeviceKind::OpenChannel => device_kind::OPEN_CHANNEL,
        }
    }

    /// `None`: a kind that this program does not serve.
    pub fn of(number: u32) -> Option<DeviceKind> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

impl std::str::FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(DeviceKind::name).join(" or ");
            format!("'{text}' is no kind of device; expected {known}")
        })
    }
}
