//! Options of a line in fstab, as mount(8) hands them to its helper: which are ours, and which are not for us.

use crate::failure::{Failure, Result};
use shale_logs::Level;
use shale_metrics::Address;

/// What mount(8) and systemd act upon themselves, or what is so anyway.
const OF_OTHERS: [&str; 22] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "async",
    "diratime",
    "nodiratime",
    "nostrictatime",
    "nolazytime",
    "noiversion",
    "nomand",
    "silent",
    "loud",
];

/// The same, with a value or more words after them.
const OF_OTHERS_BEGIN: [&str; 7] = [
    "x-", "X-", "user=", "comment=", "helper=", "uhelper=", "subtype=",
];

/// Words that say what else than `-o` of `shale mount` does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FstabOptions {
    /// What is left for `-o`, separated by commas.
    pub rest: String,
    /// Mount without devices that are not there.
    pub degraded: bool,
    /// Where metrics are served, if they are.
    pub metrics: Option<Address>,
    /// How much is logged, if it is said.
    pub log_level: Option<Level>,
    /// A mount that is there is to be changed.
    pub remount: bool,
}

impl FstabOptions {
    /// Sorts the words of a list. Words that are not known stay in `rest`: who goes by them refuses them by name.
    ///
    /// # Errors
    /// One cannot be an option of a mount.
    pub fn parse(list: &str) -> Result<Self> {
        let mut sorted = Self::default();
        let mut rest = Vec::new();
        for word in list.split(',').filter(|word| !word.is_empty()) {
            if OF_OTHERS.contains(&word)
                || OF_OTHERS_BEGIN.iter().any(|begin| word.starts_with(begin))
            {
                continue;
            }
            match word.split_once('=') {
                None if word == "degraded" => sorted.degraded = true,
                Some(("metrics", address)) => {
                    let address = address.parse::<Address>();
                    let address = address.map_err(|e| Failure::usage(format!("-o {word}: {e}")))?;
                    sorted.metrics = Some(address);
                }
                Some(("log_level", level)) => {
                    let level = level.parse::<Level>();
                    let level = level.map_err(|e| Failure::usage(format!("-o {word}: {e}")))?;
                    sorted.log_level = Some(level);
                }
                Some(("durability", _)) => {
                    let text = format!(
                        "-o {word}: how durable calls are is part of a volume, not of a mount"
                    );
                    return Err(Failure::usage(text)
                        .advise("shale mkfs --durability, or shale run --durability"));
                }
                None if word == "sync" || word == "dirsync" => {
                    let text = format!("-o {word}: a mount does not change how durable calls are");
                    return Err(Failure::usage(text).advise("shale mkfs --durability strict"));
                }
                _ => {
                    sorted.remount |= word == "remount";
                    rest.push(word);
                }
            }
        }
        sorted.rest = rest.join(",");
        Ok(sorted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_act_upon_is_passed_over() {
        let list = "defaults,ro,noatime,nosuid,x-systemd.device-timeout=5s,X-mount.mkdir,nofail,_netdev,auto,user,user=ann,\
                    comment=mine,degraded,metrics=127.0.0.1:9180,log_level=debug";
        let sorted = FstabOptions::parse(list).unwrap();
        assert_eq!(sorted.rest, "ro,noatime,nosuid");
        assert!(sorted.degraded && !sorted.remount);
        assert_eq!(sorted.log_level, Some(Level::Debug));
        assert_eq!(sorted.metrics.unwrap().to_string(), "127.0.0.1:9180");
        assert_eq!(FstabOptions::parse("").unwrap(), FstabOptions::default());
        assert!(FstabOptions::parse("remount,ro").unwrap().remount);
    }

    #[test]
    fn what_no_mount_can_have_is_refused_by_name() {
        for word in [
            "durability=strict",
            "sync",
            "dirsync",
            "metrics=nowhere",
            "log_level=loud",
        ] {
            let failure = FstabOptions::parse(&format!("ro,{word}")).unwrap_err();
            assert!(
                failure.text.starts_with(&format!("-o {word}: ")),
                "{failure}"
            );
        }
        // The next one who reads them says so.
        let rest = FstabOptions::parse("ro,nonsense,degraded=1").unwrap().rest;
        assert_eq!(rest, "ro,nonsense,degraded=1");
    }
}
