//! Finding sites: by their bytes, once per build of a library.
//!
//! What was found is cached in a file named after the library's build-id, with a checksum: a file
//! that is damaged, or of which one site is not what the library's bytes say, is rebuilt.

use super::library::Library;
use crate::outcome::{CLASS, class};
use core::sync::atomic::Ordering;
use shale_format::checksum::name_hash;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Form of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `mov $nr,%eax; syscall`, 7 bytes.
    Number(u32),
    /// `syscall; cmp $…`, of this many bytes together.
    Dynamic(u8),
}

/// One site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Byte of the code where it begins.
    pub at: usize,
    /// Its form.
    pub form: Form,
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const MOV_EAX: u8 = 0xb8;
const XOR_EAX: [u8; 2] = [0x31, 0xc0];
/// `mov 0x8(%rsp),%r9`: the last before the system call in `syscall()`.
const LAST_ARGUMENT: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];
/// How far before a system call its number may be set.
const BACK: usize = 32;

/// The sites of a library that are worth rewriting.
pub fn sites(library: &Library) -> Vec<Site> {
    let code = library.code();
    let whole = |sites: &Vec<Site>| !sites.is_empty() && sites.iter().all(|s| is_site(code, s));
    if let Some(sites) = cached(library, whole) {
        return sites;
    }
    let sites = scan(code);
    remember(library, &sites);
    sites
}

/// Looks at every system call of the code.
fn scan(code: &[u8]) -> Vec<Site> {
    let mut found: Vec<Site> = positions(code, SYSCALL)
        .filter_map(|at| site_around(code, at))
        .collect();
    let dynamic: Vec<usize> = found
        .iter()
        .filter(|s| matches!(s.form, Form::Dynamic(_)))
        .map(|s| s.at)
        .collect();
    let disturbed = jumped_into(code, &dynamic);
    found.retain(|s| !disturbed.contains(&s.at));
    found
}

/// Every place where two bytes lie, which are not the same.
pub fn positions(code: &[u8], bytes: [u8; 2]) -> impl Iterator<Item = usize> + '_ {
    let mut from = 0;
    core::iter::from_fn(move || {
        let at = from + memchr::memmem::find(&code[from..], &bytes)?;
        from = at + bytes.len();
        Some(at)
    })
}

/// Whether calls of this number are for us.
pub fn interesting(number: u32) -> bool {
    CLASS
        .get(number as usize)
        .is_some_and(|c| c.load(Ordering::Relaxed) != class::PASS)
}

/// The number in `mov $nr,%eax` at byte `at`.
fn number_at(code: &[u8], at: usize) -> Option<u32> {
    let bytes = code.get(at..at + 5)?;
    let number = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
    (bytes[0] == MOV_EAX && number < 1024).then_some(number)
}

/// What site the system call at byte `at` belongs to, if it is one for us.
fn site_around(code: &[u8], at: usize) -> Option<Site> {
    if let Some(number) = at.checked_sub(5).and_then(|mov| number_at(code, mov)) {
        return interesting(number).then_some(Site {
            at: at - 5,
            form: Form::Number(number),
        });
    }
    let bytes = dynamic_bytes(code, at)?;
    let before = code.get(at.saturating_sub(BACK)..at)?;
    let near = (0..before.len()).any(|i| number_at(before, i).is_some_and(interesting));
    let ours = before.ends_with(&XOR_EAX) || before.ends_with(&LAST_ARGUMENT) || near;
    ours.then_some(Site {
        at,
        form: Form::Dynamic(bytes),
    })
}

/// Bytes of `syscall; cmp $small negative,%rax` (or `%eax`) at `at`.
fn dynamic_bytes(code: &[u8], at: usize) -> Option<u8> {
    let behind = code.get(at..at + 8)?;
    let limit = |b: &[u8]| matches!(b, [0x00 | 0x01, 0xf0, 0xff, 0xff]);
    if behind[..2] != SYSCALL {
        None
    } else if behind[2..4] == [0x48, 0x3d] && limit(&behind[4..8]) {
        Some(8)
    } else if behind[2] == 0x3d && limit(&behind[3..7]) {
        Some(7)
    } else {
        None
    }
}

/// Whether the bytes of a cached site are what they should be.
fn is_site(code: &[u8], site: &Site) -> bool {
    match site.form {
        Form::Number(number) => {
            number_at(code, site.at) == Some(number)
                && code.get(site.at + 5..site.at + 7) == Some(&SYSCALL)
                && interesting(number)
        }
        Form::Dynamic(bytes) => dynamic_bytes(code, site.at) == Some(bytes),
    }
}

/// Which of the sites something in the code may jump into, behind their first byte. Every
/// byte is taken for the beginning of a jump, so this errs only to the safe side.
fn jumped_into(code: &[u8], sites: &[usize]) -> Vec<usize> {
    let mut hit = Vec::new();
    let mut note = |target: Option<usize>| {
        if let Some(target) = target
            && let Some(&site) = sites.iter().find(|&&s| s < target && target < s + 5)
        {
            hit.push(site);
        }
    };
    let (Some(&low), Some(&high)) = (sites.iter().min(), sites.iter().max()) else {
        return hit;
    };
    for at in 0..code.len().saturating_sub(5) {
        let long = match code[at] {
            0xe8 | 0xe9 => Some(at + 1),
            0x0f if code[at + 1] & 0xf0 == 0x80 => Some(at + 2),
            _ => None,
        };
        if let Some(operand) = long
            && let Some(&[a, b, c, d]) = code.get(operand..).and_then(|c| c.first_chunk())
        {
            let by = i32::from_le_bytes([a, b, c, d]) as isize;
            let target = (operand + 4).checked_add_signed(by);
            note(target.filter(|&t| low < t && t < high + 5));
        }
    }
    for &site in sites {
        for at in site.saturating_sub(132)..(site + 132).min(code.len() - 1) {
            if matches!(code[at], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb) {
                note((at + 2).checked_add_signed(isize::from(code[at + 1] as i8)));
            }
        }
    }
    hit
}

/// Where root keeps what it found. Everybody may read it.
const SYSTEM: &str = "/run/shale";

/// Where the sites of a library are cached: in a directory of this user's.
fn cache_file(library: &Library) -> Option<PathBuf> {
    let base = if rustix::process::geteuid().is_root() {
        PathBuf::from(SYSTEM)
    } else {
        shale_sys::user_directory::of_session()?.join("shale")
    };
    Some(base.join(cache_name(library)?))
}

fn cache_name(library: &Library) -> Option<String> {
    let id: String = library
        .build_id?
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    Some(format!("call-sites-{id}-{:08x}", wanted()))
}

/// Stands for the numbers that are looked for: another version of this library may look for
/// others.
fn wanted() -> u32 {
    let mut hash = 0x811c_9dc5u32;
    for class in &CLASS {
        hash = (hash ^ u32::from(class.load(Ordering::Relaxed))).wrapping_mul(0x0100_0193);
    }
    hash
}

/// What a file of the cache says, if it is `whole`.
fn cached(library: &Library, whole: impl Fn(&Vec<Site>) -> bool) -> Option<Vec<Site>> {
    let of_system = || Some(Path::new(SYSTEM).join(cache_name(library)?));
    [cache_file(library), of_system()]
        .into_iter()
        .flatten()
        .filter_map(|file| decoded(&std::fs::read_to_string(file).ok()?))
        .find(whole)
}

/// A line for each site: byte, and number or `d` with the bytes of a dynamic one. The last line is
/// a hash of those before. (Not CRC-32C: which instructions there are for it takes longer to find out than all of this, at each start of
/// a program.)
fn encoded(sites: &[Site]) -> String {
    let lines: String = sites
        .iter()
        .map(|s| match s.form {
            Form::Number(number) => format!("{} {number}\n", s.at),
            Form::Dynamic(bytes) => format!("{} d{bytes}\n", s.at),
        })
        .collect();
    let sum = name_hash([0; 2], lines.as_bytes());
    format!("{lines}{sum:016x}\n")
}

fn decoded(text: &str) -> Option<Vec<Site>> {
    let (lines, sum) = text.trim_end().rsplit_once('\n')?;
    let lines = &text[..=lines.len()];
    if format!("{:016x}", name_hash([0; 2], lines.as_bytes())) != sum {
        return None;
    }
    lines
        .lines()
        .map(|line| {
            let (at, form) = line.split_once(' ')?;
            let form = match form.strip_prefix('d') {
                Some(bytes) => Form::Dynamic(bytes.parse().ok()?),
                None => Form::Number(form.parse().ok()?),
            };
            Some(Site {
                at: at.parse().ok()?,
                form,
            })
        })
        .collect()
}

fn remember(library: &Library, sites: &[Site]) {
    let Some(file) = cache_file(library) else {
        return;
    };
    let beside = file.with_extension(std::process::id().to_string());
    let made = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&beside);
    // Without the file the next start scans again: no harm.
    let written = made.and_then(|mut f| f.write_all(encoded(sites).as_bytes()));
    let _ = written.and_then(|()| std::fs::rename(&beside, &file));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::nr;

    /// Those that the tests look for.
    fn set_classes() {
        let data = [nr::READ, nr::WRITE, nr::PREAD, nr::RT_SIGACTION];
        for number in data.into_iter().chain(super::super::FOLLOWED) {
            CLASS[number as usize].store(class::ALWAYS, Ordering::Relaxed);
        }
    }

    #[test]
    fn two_bytes_are_found_wherever_they_lie() {
        let of = |code: &[u8]| positions(code, SYSCALL).collect::<Vec<_>>();
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[0x0f]), []);
        assert_eq!(of(&[0x0f, 0x05]), [0]);
        assert_eq!(
            of(&[0x05, 0x0f, 0x0f, 0x05, 0x05, 0x0f, 0x05, 0x0f]),
            [2, 5]
        );
        let mut long = [0x0f; 1000];
        long[999] = 0x05;
        assert_eq!(of(&long), [998]);
    }

    #[test]
    fn forms_are_recognised_and_doubts_respected() {
        set_classes();
        let mut code = vec![0x90; 64];
        code.extend([0xb8, 3, 0, 0, 0, 0x0f, 0x05]);
        code.extend([0xb8, 0x27, 0, 0, 0, 0x0f, 0x05]);
        let read_at = code.len() + 2;
        code.extend([
            0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0xc3,
        ]);
        code.extend([0x90; 64]);
        let close = Site {
            at: 64,
            form: Form::Number(nr::CLOSE),
        };
        let read = Site {
            at: read_at,
            form: Form::Dynamic(8),
        };
        assert_eq!(scan(&code), [close, read]);
        assert!(is_site(&code, &close) && is_site(&code, &read));
        assert!(!is_site(&code, &Site { at: 65, ..close }));
        // A short jump to the comparison.
        let jump = code.len() - 10;
        code[jump] = 0xeb;
        code[jump + 1] = (read_at as isize + 2 - (jump as isize + 2)) as i8 as u8;
        assert_eq!(scan(&code), [close]);
    }

    #[test]
    fn a_damaged_file_of_the_cache_is_none() {
        let site = |at, form| Site { at, form };
        let sites = [site(64, Form::Number(3)), site(900, Form::Dynamic(8))];
        let text = encoded(&sites);
        assert_eq!(decoded(&text).unwrap(), sites);
        for at in 0..text.len() - 1 {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            let damaged = String::from_utf8(damaged).unwrap();
            assert_eq!(decoded(&damaged), None, "{damaged}");
            assert_eq!(decoded(&text[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn libc_has_the_calls_that_matter() {
        set_classes();
        let library = super::super::library::loaded()[0];
        let sites = scan(library.code());
        let numbers = [nr::WRITE, nr::PREAD, nr::RT_SIGACTION];
        for number in numbers.into_iter().chain(super::super::FOLLOWED) {
            assert!(
                sites.iter().any(|s| s.form == Form::Number(number)),
                "{number}"
            );
        }
        let dynamic = sites
            .iter()
            .filter(|s| matches!(s.form, Form::Dynamic(_)))
            .count();
        assert!((4..40).contains(&dynamic), "{dynamic}");
    }
}
