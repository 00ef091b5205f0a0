//! The helpers of mount(8) and umount(8): this program, called by the name `mount.shale` or `umount.shale`.
//!
//! mount(8) leaves `mount -t shale` and lines of fstab to `/sbin/mount.shale SPEC DIR [-sfnv] [-N NS] [-t TYPE] [-o LIST]`.
//! Our mounts have the type `fuse.shale` in the table, by which umount(8) and `mount -o remount` look for theirs. The
//! helper of umount(8) matters: without one the name is taken away and the daemon brings its logs into the volume after
//! umount(8) has returned, when a machine that shuts down may be off already.
//!
//! Links, not scripts: what is found wrong is said in the same words, and no shell need be there at boot. Like the
//! helpers of other file systems they say nothing when all went well, unless `-v` asks.

use crate::boot::fstab_options::FstabOptions;
use crate::boot::{by_uuid, registered};
use crate::commands::{mount, umount};
use crate::failure::{Code, Failure, Result};
use crate::mounts::mount_options;
use shale_sys::printable;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit codes of mount(8) and umount(8).
const WRONG_CALL: u8 = 1;
const FAILED: u8 = 32;

/// Which helper this program was called as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Helper {
    Mount,
    Umount,
}

impl Helper {
    /// By the name of the program.
    fn named(program: &OsStr) -> Option<Self> {
        match Path::new(program).file_name()?.to_str()? {
            "mount.shale" | "mount.fuse.shale" => Some(Helper::Mount),
            "umount.shale" | "umount.fuse.shale" => Some(Helper::Umount),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Helper::Mount => "mount.shale",
            Helper::Umount => "umount.shale",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Helper::Mount => {
                "mount.shale VOLUME.toml|NAME|uuid=UUID DIRECTORY [-sfnvrw] [-o OPTIONS]"
            }
            Helper::Umount => "umount.shale DIRECTORY [-nlfvr]",
        }
    }
}

/// Does what a helper is called for, if this program was called as one.
pub fn called() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let helper = Helper::named(&words.next()?)?;
    let done = Call::parse(helper, words).and_then(|call| match helper {
        Helper::Mount => call.mount(),
        Helper::Umount => call.umount(),
    });
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}: {failure}", helper.name());
            ExitCode::from(match failure.code {
                Code::Usage => WRONG_CALL,
                _ => FAILED,
            })
        }
    })
}

/// One call of a helper.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Call {
    /// What is to be mounted, and where; or what is to be unmounted.
    places: Vec<String>,
    options: Vec<String>,
    /// `-v`
    verbose: bool,
    /// `-f` of mount(8): everything but the mount itself.
    fake: bool,
    /// `-l`
    lazy: bool,
}

impl Call {
    /// Flags may stand anywhere, several in one word; `-n` (no mtab), `-s` (sloppy) and `-f` of umount(8) change nothing.
    fn parse(helper: Helper, words: impl Iterator<Item = OsString>) -> Result<Self> {
        let mut call = Self::default();
        let mut words = words.map(|word| {
            word.into_string().map_err(|word| {
                Failure::usage(format!("{}: the argument is not UTF-8", word.display()))
            })
        });
        while let Some(word) = words.next() {
            let word = word?;
            let Some(flags) = word.strip_prefix('-').filter(|flags| !flags.is_empty()) else {
                call.places.push(word);
                continue;
            };
            for (at, flag) in flags.char_indices() {
                match (helper, flag) {
                    (Helper::Mount, 'r') => call.options.push("ro".to_owned()),
                    (Helper::Mount, 'w') => call.options.push("rw".to_owned()),
                    (Helper::Mount, 'f') => call.fake = true,
                    (Helper::Umount, 'l') => call.lazy = true,
                    (_, 'v') => call.verbose = true,
                    (_, 'n') | (Helper::Mount, 's') | (Helper::Umount, 'f') => {}
                    (Helper::Umount, 'r') => {
                        let text = "-r: a volume in use is not made read-only by umount";
                        return Err(Failure::usage(text).advise("mount -o remount,ro DIRECTORY"));
                    }
                    (_, 'o' | 't' | 'N') => {
                        // Its value is the rest of the word, or the next one.
                        let value = match &flags[at + 1..] {
                            "" => words.next().transpose()?,
                            rest => Some(rest.to_owned()),
                        };
                        let value = value.ok_or_else(|| {
                            Failure::usage(format!("-{flag}: its value is missing"))
                                .advise(helper.usage())
                        })?;
                        match flag {
                            'o' => call.options.push(value),
                            // It is the type by which the helper was found.
                            't' => {}
                            _ => {
                                let text =
                                    format!("-N {value}: other mount namespaces are not entered");
                                return Err(
                                    Failure::usage(text).advise("nsenter -t PID -m mount …")
                                );
                            }
                        }
                        break;
                    }
                    _ => {
                        return Err(Failure::usage(format!("-{flag}: there is no such flag"))
                            .advise(helper.usage()));
                    }
                }
            }
        }
        let wanted = match helper {
            Helper::Mount => 2,
            Helper::Umount => 1,
        };
        if call.places.len() != wanted {
            let found = call.places.len();
            return Err(
                Failure::usage(format!("{found} of {wanted} arguments are there"))
                    .advise(helper.usage()),
            );
        }
        Ok(call)
    }

    fn mount(&self) -> Result<()> {
        let [spec, place] = &self.places[..] else {
            unreachable!("counted in parse");
        };
        let (place, all) = (PathBuf::from(place), self.options.join(","));
        let sorted = FstabOptions::parse(&all)?;
        if sorted.remount {
            // mount(8) gives all options that shall hold.
            return match self.fake {
                true => Ok(()),
                false => mount_options::change(&place, &[sorted.rest], true).map(drop),
            };
        }
        let volume = match by_uuid::identity(spec)? {
            Some(uuid) => by_uuid::volume_file(uuid, sorted.degraded)?,
            None => registered::volume_file(spec)?,
        };
        let args = mount::Args::of_helper(volume, place, all, spec);
        match self.fake {
            true => mount::check_only(&args),
            false => mount::run(&args),
        }?;
        self.say(&format!("{spec} mounted on {}", self.places[1]));
        Ok(())
    }

    fn umount(&self) -> Result<()> {
        umount::run(&umount::Args::of_helper(
            PathBuf::from(&self.places[0]),
            self.lazy,
        ))?;
        self.say(&format!("{} unmounted", self.places[0]));
        Ok(())
    }

    fn say(&self, what: &str) {
        if self.verbose {
            println!("{}", printable::lines(what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(helper: Helper, line: &str) -> Result<Call> {
        Call::parse(helper, line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_helper_is_known_by_its_name() {
        let named = |name: &str| Helper::named(OsStr::new(name));
        assert_eq!(named("/sbin/mount.shale"), Some(Helper::Mount));
        assert_eq!(named("mount.fuse.shale"), Some(Helper::Mount));
        assert_eq!(named("/usr/sbin/umount.fuse.shale"), Some(Helper::Umount));
        assert_eq!(named("umount.shale"), Some(Helper::Umount));
        for name in ["/usr/bin/shale", "mount", "/mnt/mount.shale/shale", ""] {
            assert_eq!(named(name), None, "{name}");
        }
    }

    #[test]
    fn as_mount_calls_it() {
        let call = parsed(Helper::Mount, "data /mnt/data -s -n -v -o rw,noatime").unwrap();
        assert_eq!(call.places, ["data", "/mnt/data"]);
        assert_eq!(call.options, ["rw,noatime"]);
        assert!(call.verbose && !call.fake && !call.lazy);
        let call = parsed(
            Helper::Mount,
            "-fv -o ro /a.toml -onosuid /m -t fuse.shale -w",
        )
        .unwrap();
        assert_eq!(call.places, ["/a.toml", "/m"]);
        assert_eq!(call.options, ["ro", "nosuid", "rw"]);
        assert!(call.fake && call.verbose);
    }

    #[test]
    fn as_umount_calls_it() {
        let call = parsed(Helper::Umount, "/mnt/data -n -f -l -t fuse.shale").unwrap();
        assert_eq!(call.places, ["/mnt/data"]);
        assert!(call.lazy && !call.fake && !call.verbose);
    }

    #[test]
    fn a_wrong_call_is_refused_by_name() {
        let refused = [
            (Helper::Mount, "data", "1 of 2 arguments"),
            (Helper::Mount, "data /m /n", "3 of 2 arguments"),
            (Helper::Mount, "data /m -x", "-x: "),
            (Helper::Mount, "data /m -l", "-l: "),
            (Helper::Mount, "data /m -o", "-o: its value is missing"),
            (
                Helper::Mount,
                "data /m -N /proc/1/ns/mnt",
                "-N /proc/1/ns/mnt: ",
            ),
            (Helper::Umount, "", "0 of 1 arguments"),
            (Helper::Umount, "/m -s", "-s: "),
            (Helper::Umount, "/m -r", "-r: "),
        ];
        for (helper, line, begin) in refused {
            let failure = parsed(helper, line).unwrap_err();
            assert!(failure.text.starts_with(begin), "{line}: {failure}");
            assert!(
                failure.code == Code::Usage && failure.advice.is_some(),
                "{line}"
            );
        }
    }
}
