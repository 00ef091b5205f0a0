//! Media as they are given to commands: in one word.

use super::{DeviceFile, NvmEntry, OVERPROVISION_PERCENT_MAX};
use crate::device_kind::DeviceKind;
use shale_block::BlockModel;
use shale_format::TierId;
use shale_nvm::Model;
use shale_sys::size;

/// DIR:SIZE.
///
/// # Errors
/// It is not that; the sentence says what is expected.
pub fn parse_nvm(text: &str) -> std::result::Result<NvmEntry, String> {
    // A directory may have a colon in its name, a size has none.
    match text.rsplit_once(':') {
        Some((dir, bytes)) if !dir.is_empty() => Ok(NvmEntry::new(dir, size::parse(bytes)?)),
        _ => Err(format!(
            "'{text}' is not DIR:SIZE; write for example /mnt/pmem/shale:16G"
        )),
    }
}

/// PATH:SIZE or PATH:SIZE:ZONE, and behind it ",zone=SIZE", ",kind=KIND" and ",overprovision=PERCENT".
///
/// # Errors
/// It is not that; the sentence says what is expected.
pub fn parse_device(text: &str) -> std::result::Result<DeviceFile, String> {
    let wrong = || {
        format!(
            "'{text}' is not PATH:SIZE or PATH:SIZE,zone=SIZE; write for example /dev/nvme0n1:512G"
        )
    };
    let (mut text, mut kind) = (text, DeviceKind::Conventional);
    let (mut overprovision_percent, mut zone) = (None, None);
    while let Some((before, option)) = text.rsplit_once(',') {
        match option.split_once('=') {
            Some(("zone", bytes)) => zone = Some(size::parse(bytes)?),
            Some(("kind", name)) => kind = name.parse()?,
            Some(("overprovision" | "spare", percent)) => {
                overprovision_percent = Some(parse_overprovision(percent)?)
            }
            _ => break,
        }
        text = before;
    }
    let (head, last) = text.rsplit_once(':').ok_or_else(wrong)?;
    let last = size::parse(last)?;
    let three = head.rsplit_once(':');
    let three = three.and_then(|(path, bytes)| Some((path, size::parse(bytes).ok()?)));
    let (path, size_bytes, zone_bytes) = match three {
        Some((path, bytes)) => (path, bytes, Some(last)),
        None => (head, last, None),
    };
    if path.is_empty() || zone.is_some() && zone_bytes.is_some() {
        return Err(wrong());
    }
    Ok(DeviceFile {
        path: path.into(),
        size_bytes,
        zone_bytes: zone.or(zone_bytes),
        model: None,
        kind,
        overprovision_percent,
    })
}

fn parse_overprovision(text: &str) -> std::result::Result<u32, String> {
    let percent = text.parse().ok();
    percent.filter(|&p| p <= OVERPROVISION_PERCENT_MAX).ok_or_else(|| {
        format!("'{text}' is no part to over-provision: expected 0 to {OVERPROVISION_PERCENT_MAX}, in percent")
    })
}

/// A model that there is.
///
/// # Errors
/// There is none of this name.
pub fn known_model(name: &str) -> std::result::Result<String, String> {
    match BlockModel::named(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!(
            "'{name}' is no model; known: {}",
            BlockModel::NAMES.join(", ")
        )),
    }
}

/// A model of NVM that there is.
fn known_nvm_model(name: &str) -> std::result::Result<String, String> {
    match Model::named(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!(
            "'{name}' is no model of NVM; known: {}",
            Model::NAMES
        )),
    }
}

/// TIER=MODEL.
///
/// # Errors
/// It is not that, or there is no such model.
pub fn parse_model(text: &str) -> std::result::Result<(TierId, String), String> {
    match text.split_once('=') {
        Some(("ssd", name)) => Ok((TierId::Ssd, known_model(name)?)),
        Some(("hdd", name)) => Ok((TierId::Hdd, known_model(name)?)),
        Some(("nvm", name)) => Ok((TierId::Nvm, known_nvm_model(name)?)),
        _ => Err(format!(
            "'{text}' is not TIER=MODEL; write for example hdd=disk"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvm_arguments() {
        let nvm = parse_nvm("/a:b:64M").unwrap();
        assert_eq!(nvm, NvmEntry::new("/a:b", 64 << 20));
        for text in ["/a", ":1G", "/a:", "/a:x"] {
            assert!(parse_nvm(text).is_err(), "{text}");
        }
    }

    #[test]
    fn device_arguments() {
        let device = parse_device("/dev/x:4G").unwrap();
        assert_eq!((device.size_bytes, device.zone_bytes), (4 << 30, None));
        let device = parse_device("/a:b:4G:1M").unwrap();
        assert_eq!(
            (device.path, device.zone_bytes),
            ("/a:b".into(), Some(1 << 20))
        );
        let device = parse_device("/a,b:4G,kind=open-channel").unwrap();
        assert_eq!(
            (device.path, device.size_bytes, device.kind),
            ("/a,b".into(), 4 << 30, DeviceKind::OpenChannel)
        );
        let device = parse_device("/dev/z:4G,kind=host-managed").unwrap();
        assert_eq!(device.kind, DeviceKind::HostManaged);
        let device = parse_device("/a:4G,zone=3M,overprovision=7").unwrap();
        assert_eq!(
            (device.path, device.zone_bytes, device.overprovision_percent),
            ("/a".into(), Some(3 << 20), Some(7))
        );
        for text in [
            "/a:4G:1M,kind=open-channel,spare=7",
            "/a:4G:1M,spare=7,kind=open-channel",
        ] {
            let device = parse_device(text).unwrap();
            let (path, kind) = (device.path.to_str(), device.kind);
            assert_eq!(
                (path, kind),
                (Some("/a"), DeviceKind::OpenChannel),
                "{text}"
            );
            assert_eq!(device.overprovision_percent, Some(7), "{text}");
        }
        let wrong = [
            "/a",
            ":1G",
            "/a:",
            "/a:x",
            "/a:1G,kind=x",
            "/a:1G:1M,zone=1M",
            "/a:1G,zone=x",
            "/a:1G,",
            "/a:1G,spare=51",
            "/a:1G,spare=x",
        ];
        for text in wrong {
            assert!(parse_device(text).is_err(), "{text}");
        }
    }

    #[test]
    fn model_arguments() {
        assert_eq!(
            parse_model("hdd=disk"),
            Ok((TierId::Hdd, "disk".to_owned()))
        );
        for text in ["ssd", "tape=flash"] {
            assert!(parse_model(text).unwrap_err().contains(text), "{text}");
        }
        assert!(parse_model("ssd=tape").unwrap_err().contains("flash, disk"));
        assert!(parse_model("nvm=flash").unwrap_err().contains("'flash'"));
        let slow = parse_model("nvm=hinfs-400");
        assert_eq!(slow, Ok((TierId::Nvm, "hinfs-400".to_owned())));
        assert!(
            parse_model("nvm=hinfs-900")
                .unwrap_err()
                .contains("50 to 800")
        );
    }
}
