//! Whether all system calls of a process come by this library.
//!
//! A placeholder means nothing to the kernel. So there are placeholders only where each mapping of executable memory
//! is known: libc, whose sites are rewritten; the dynamic linker, whose descriptors never meet the program's; this library; and
//! files whose code has no `syscall` or `sysenter` instruction. Code that is made while the program runs is not known.

use crate::rewrite::{library, scan};
use crate::site;
use shale_sys::kernel_text;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const SYSENTER: [u8; 2] = [0x0f, 0x34];

/// A mapping that can be executed.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    first: usize,
    end: usize,
    readable: bool,
    /// Path, a name in brackets, or nothing.
    name: &'a str,
}

/// See the module.
pub fn every_call_comes_by_here() -> bool {
    let Ok(maps) = kernel_text::read_string("/proc/self/maps") else {
        return false;
    };
    let known = known_code();
    executable(&maps).all(|mapping| {
        let here = |at: &usize| (mapping.first..mapping.end).contains(at);
        known.iter().any(here) || mapping.name == "[vdso]" || mapping.name == "[vsyscall]" || {
            let whole = mapping.readable && mapping.name.starts_with('/');
            whole && {
                // SAFETY: the kernel says that it can be read; code of a file that the program has loaded. A program that
                // unloads it in this moment is one that jumps into what it unloads.
                let code = unsafe {
                    core::slice::from_raw_parts(
                        mapping.first as *const u8,
                        mapping.end - mapping.first,
                    )
                };
                !calls_the_kernel(code)
            }
        }
    })
}

/// An address of each mapping whose system calls are rewritten or need not be.
fn known_code() -> Vec<usize> {
    let own = every_call_comes_by_here as *const () as usize;
    // SAFETY: reads a value that the kernel gave the process.
    let linker = unsafe { libc::getauxval(libc::AT_BASE) } as usize;
    let mut known: Vec<usize> = library::loaded()
        .iter()
        .map(|library| library.text)
        .collect();
    known.extend([own, code_of_linker(linker)]);
    known.extend(site::stubs());
    known
}

/// An address in the code of the dynamic linker, which begins at `base`.
fn code_of_linker(base: usize) -> usize {
    if base == 0 {
        return 0;
    }
    // SAFETY: the header of a file that the kernel has mapped for this process.
    let header = unsafe { &*(base as *const libc::Elf64_Ehdr) };
    let at = (base + header.e_phoff as usize) as *const libc::Elf64_Phdr;
    // SAFETY: its program headers are mapped with it.
    let headers = unsafe { core::slice::from_raw_parts(at, header.e_phnum.into()) };
    let code = headers
        .iter()
        .find(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0);
    code.map_or(0, |code| base + code.p_vaddr as usize)
}

fn executable(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    maps.lines().filter_map(|line| {
        let mut fields = line.splitn(6, ' ');
        let (range, rights) = (fields.next()?, fields.next()?);
        let (first, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let name = fields.nth(3).unwrap_or_default().trim_start();
        let mapping = Mapping {
            first: number(first)?,
            end: number(end)?,
            readable: rights.starts_with('r'),
            name,
        };
        rights
            .as_bytes()
            .get(2)
            .is_some_and(|&x| x == b'x')
            .then_some(mapping)
    })
}

/// Whether code may make a system call by itself. Bytes that look like one within another instruction, as far as
/// that can be seen, do not count.
fn calls_the_kernel(code: &[u8]) -> bool {
    let all = |bytes| scan::positions(code, bytes);
    all(SYSCALL)
        .chain(all(SYSENTER))
        .any(|at| !is_part_of_another(code, at))
}

/// Whether the two bytes at `at` are surely not an instruction of their own.
fn is_part_of_another(code: &[u8], at: usize) -> bool {
    let before = |n: usize| at.checked_sub(n).map(|at| code[at]);
    let behind = |n: usize| code.get(at + n).copied();
    // Behind a system call nobody adds to where rax, the result, points; and `ff ff` is no instruction.
    let nonsense = behind(2) == Some(0) || (behind(2), behind(3)) == (Some(0xff), Some(0xff));
    // A distance to something of the same file: of a call or jump, or behind a byte that says so (modrm, mode 0, register 5).
    let distance = code
        .get(at..at + 4)
        .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok())
        .map(|bytes| i64::from(i32::from_le_bytes(bytes)));
    let to = distance.map(|by| at as i64 + 4 + by);
    let relative = before(1).is_some_and(|b| matches!(b, 0xe8 | 0xe9) || b & 0xc7 == 0x05);
    // Distances to data lead a little behind the code.
    let inside = to.is_some_and(|to| (0..2 * code.len() as i64).contains(&to));
    // Numbers: of `test eax`, and the last bytes of one of eight.
    let number = before(1) == Some(0xa9)
        || matches!(
            (before(8), before(7)),
            (Some(0x48 | 0x49), Some(0xb8..=0xbf))
        );
    nonsense || (relative && inside) || number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_calls_the_kernel_is_known_by_its_instruction() {
        let with = |bytes: &[u8]| [&[0x90; 64][..], bytes, &[0x90; 0x600]].concat();
        for call in [
            &[0xb8, 3, 0, 0, 0, 0x0f, 0x05, 0xc3][..],
            &[0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d],
            &[0x89, 0xe8, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0],
            &[0x0f, 0x34, 0xc3],
        ] {
            assert!(calls_the_kernel(&with(call)), "{call:x?}");
        }
        for other in [
            &[0x48, 0x8d, 0x35, 0x0f, 0x05, 0x00, 0x00][..],
            &[0xe8, 0x0f, 0x05, 0x00, 0x00],
            &[0xe8, 0x0f, 0x05, 0xff, 0xff],
            &[
                0x48, 0xb9, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05, 0x48, 0x39,
            ],
            &[0xa9, 0x0f, 0x05, 0x20, 0x5b],
        ] {
            assert!(!calls_the_kernel(&with(other)), "{other:x?}");
        }
    }

    #[test]
    fn mappings_are_read_from_the_kernels_table() {
        let maps = "7f00-7f10 r-xp 00000000 00:01 5                          /usr/lib/a b.so\n\
            7f10-7f20 rw-p 00000000 00:01 5 /usr/lib/a b.so\n8000-9000 rwxp 00000000 00:00 0 \n";
        let found: Vec<Mapping<'_>> = executable(maps).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].first, found[0].end), (0x7f00, 0x7f10));
        assert_eq!([found[0].name, found[1].name], ["/usr/lib/a b.so", ""]);
    }
}
