//! Which members a volume has, as its memory tier says, and which of them were found.

use super::{FoundDevice, FoundVolume};
use crate::devices::NAMES;
use crate::volume_file::uuid_text;
use serde::Serialize;
use shale_format::device_table::DevicePlace;
use shale_format::limits::BLOCK_BYTES;
use std::path::PathBuf;

/// Whether a member was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Once, and whole as far as that is looked at.
    Present,
    /// Not at all, or not whole.
    Missing,
    /// More than once: copies, of which a volume can have one.
    Copies,
    /// It has the volume's label, and the volume does not have it (any more).
    Stranger,
}

/// A member of a volume.
#[derive(Clone, Debug, Serialize)]
pub struct Member {
    /// `nvm`, `area`, `ssd` or `hdd`.
    pub tier: &'static str,
    /// Its place in the tier.
    pub place: usize,
    /// Identity of a device.
    pub uuid: Option<String>,
    /// Bytes that the volume uses of it; of a memory tier its own; 0: not known.
    pub bytes: u64,
    /// Whether it was found.
    pub state: MemberState,
    /// Where.
    pub paths: Vec<PathBuf>,
    /// Starts of the volume that each of them has seen, of devices whose labels could be read.
    pub starts: Vec<u64>,
    /// What is to be said of it.
    pub note: Option<String>,
}

impl Member {
    /// In words, for a message.
    pub fn name(&self) -> String {
        let uuid = { self.uuid.as_ref() }.map_or(String::new(), |uuid| format!(" (device {uuid})"));
        match (self.tier, self.paths.first()) {
            ("nvm", Some(_)) => "the NVM directory".to_owned(),
            ("nvm", None) => "the NVM directory or the SSD with the staging area".to_owned(),
            (tier, _) => format!("{tier} {}{uuid}", self.place),
        }
    }
}

impl FoundVolume {
    /// The members that its memory tier names, and what else has its label. Where no memory tier was found it is not known whether there
    /// are more.
    pub fn members(&self) -> Vec<Member> {
        let mut all = vec![self.first_tier()];
        let head = self.head();
        for (n, tier) in NAMES.into_iter().enumerate() {
            let places = head.map_or(&[][..], |head| head.table.of(n));
            for (nth, place) in places.iter().enumerate() {
                all.push(self.member(tier, (n, nth), place));
            }
            let is_known = |d: &FoundDevice| places.iter().any(|p| p.uuid == d.label.uuid);
            let labelled = |d: &&FoundDevice| d.label.tier as usize == n + 1;
            let others = self.devices.iter().filter(labelled);
            for device in others.filter(|d| !is_known(d)) {
                all.push(self.other(tier, device, head.is_some()));
            }
        }
        all
    }

    /// Whether nothing is missing that a mount needs, and nothing is there twice.
    pub fn is_complete(&self) -> bool {
        let is_right =
            |member: &Member| [MemberState::Present, MemberState::Stranger].contains(&member.state);
        self.head().is_some() && self.members().iter().all(is_right)
    }

    /// What holds the memory tier: NVM, or an area.
    fn first_tier(&self) -> Member {
        let (nvm, areas) = (self.nvm.iter(), self.areas.iter());
        let paths: Vec<PathBuf> = nvm.map(|nvm| nvm.dir.clone()).collect();
        let wrong = self.nvm.first().and_then(|nvm| match &nvm.head {
            _ if !nvm.wrong.is_empty() => Some(nvm.wrong.join(", ")),
            Err(why) => Some(why.clone()),
            Ok(_) => None,
        });
        let (tier, paths) = match paths.is_empty() && !self.areas.is_empty() {
            true => ("area", areas.map(|area| area.device.clone()).collect()),
            false => ("nvm", paths),
        };
        let area = self.areas.first().filter(|_| tier == "area").map(|area| {
            let (number, clean) = (area.checkpoint.number, area.checkpoint.clean);
            let left = if clean {
                "unmounted"
            } else {
                "not unmounted, or mounted"
            };
            format!("from byte {}, checkpoint {number} ({left})", area.at_byte)
        });
        let bytes = self.nvm.first().map(|nvm| nvm.bytes);
        let memory = self.areas.first().map(|area| area.layout.memory_bytes);
        Member {
            tier,
            place: 0,
            uuid: None,
            bytes: bytes.or(memory).unwrap_or(0),
            state: match paths.len() {
                _ if wrong.is_some() => MemberState::Missing,
                0 => MemberState::Missing,
                1 => MemberState::Present,
                _ => MemberState::Copies,
            },
            paths,
            starts: Vec::new(),
            note: wrong.or(area),
        }
    }

    fn member(&self, tier: &'static str, at: (usize, usize), place: &DevicePlace) -> Member {
        let found = self.devices.iter().filter(|d| d.label.uuid == place.uuid);
        let found: Vec<&FoundDevice> = found.collect();
        let mut member = Member {
            tier,
            place: at.1,
            uuid: Some(uuid_text(&place.uuid)),
            bytes: place.device_bytes(),
            state: match found.len() {
                0 => MemberState::Missing,
                1 => MemberState::Present,
                _ => MemberState::Copies,
            },
            paths: found.iter().map(|d| d.path.clone()).collect(),
            starts: found.iter().map(|d| d.label.count).collect(),
            note: None,
        };
        let short = |d: &&&FoundDevice| d.bytes < place.device_bytes();
        if let Some(short) = found.iter().find(short) {
            let (found, expected) = (short.bytes, place.device_bytes());
            member.state = MemberState::Missing;
            member.note = Some(format!("it has {found} bytes, expected {expected}"));
        }
        let mut in_use = self.in_use.iter();
        if found.is_empty()
            && let Some((_, _, path)) = in_use.find(|(n, nth, _)| (*n, *nth) == at)
        {
            member.state = MemberState::Present;
            member.paths = vec![path.clone()];
            member.note = Some("in use, as the volume file names it".to_owned());
        }
        member
    }

    /// A device with the volume's label that no device table names; `known`: there is one.
    fn other(&self, tier: &'static str, device: &FoundDevice, known: bool) -> Member {
        let label = &device.label;
        Member {
            tier,
            place: label.place as usize,
            uuid: Some(uuid_text(&label.uuid)),
            bytes: label.blocks.saturating_mul(BLOCK_BYTES as u64),
            state: match known {
                true => MemberState::Stranger,
                false => MemberState::Present,
            },
            paths: vec![device.path.clone()],
            starts: vec![label.count],
            note: known.then(|| "the volume does not have it (any more)".to_owned()),
        }
    }
}
