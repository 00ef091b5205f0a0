//! The libraries whose sites are rewritten, as they lie in memory.

use std::ffi::CStr;

/// Names of files that hold libc's call sites; older versions keep threads apart.
const NAMES: [&[u8]; 2] = [b"libc.so.6", b"libpthread.so.0"];

/// A loaded library.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Where its code begins, and how long it is.
    pub text: usize,
    /// Bytes of code.
    pub text_bytes: usize,
    /// Its GNU build-id, if it has one of 20 bytes.
    pub build_id: Option<[u8; 20]>,
}

impl Library {
    /// The code.
    pub fn code(&self) -> &'static [u8] {
        // SAFETY: libc is never unloaded, and its code is mapped readable. Nothing else
        // changes it while the constructor runs.
        unsafe { core::slice::from_raw_parts(self.text as *const u8, self.text_bytes) }
    }
}

/// The libraries of [`NAMES`] that are loaded.
pub fn loaded() -> Vec<Library> {
    let mut found: Vec<Library> = Vec::new();
    let into = (&raw mut found).cast();
    // SAFETY: the function is called during this call only, with what `into` points to.
    unsafe { libc::dl_iterate_phdr(Some(look), into) };
    found
}

unsafe extern "C" fn look(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    into: *mut core::ffi::c_void,
) -> i32 {
    // SAFETY: as the dynamic linker promises: a valid description, and `into` from above.
    let (info, found) = unsafe { (&*info, &mut *into.cast::<Vec<Library>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a string of the dynamic linker's.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let last = name.rsplit(|&c| c == b'/').next().unwrap_or(name);
    if !NAMES.contains(&last) {
        return 0;
    }
    // SAFETY: the program headers are mapped as long as the library.
    let headers =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    // Code for newer processors may keep wide registers over a system call: the stubs save
    // the narrow ones only.
    if headers.iter().any(|h| wide_registers(info.dlpi_addr, h)) {
        return 0;
    }
    let code = headers
        .iter()
        .find(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0);
    if let Some(code) = code {
        found.push(Library {
            text: (info.dlpi_addr + code.p_vaddr) as usize,
            text_bytes: code.p_memsz as usize,
            build_id: headers.iter().find_map(|h| build_id(info.dlpi_addr, h)),
        });
    }
    0
}

/// Whether the library's properties say that it needs a processor of level 3 or 4.
fn wide_registers(base: u64, header: &libc::Elf64_Phdr) -> bool {
    const PT_GNU_PROPERTY: u32 = 0x6474_e553;
    if header.p_type != PT_GNU_PROPERTY {
        return false;
    }
    let at = (base + header.p_vaddr) as *const u8;
    // SAFETY: properties are mapped with the library.
    let note = unsafe { core::slice::from_raw_parts(at, header.p_memsz as usize) };
    levels_needed(note) & 0b1100 != 0
}

/// A bit for each level of processors that a note of properties says are needed.
fn levels_needed(note: &[u8]) -> u32 {
    const X86_ISA_1_NEEDED: u32 = 0xc000_8002;
    /// Lengths, kind and "GNU".
    const HEAD_BYTES: usize = 16;
    let word = |at: usize| {
        let bytes = note.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut at = HEAD_BYTES;
    while let (Some(kind), Some(bytes)) = (word(at), word(at + 4)) {
        if kind == X86_ISA_1_NEEDED {
            return word(at + 8).unwrap_or(0);
        }
        at += 8 + (bytes as usize).next_multiple_of(8);
    }
    0
}

/// The build-id in a header's notes.
fn build_id(base: u64, header: &libc::Elf64_Phdr) -> Option<[u8; 20]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    if header.p_type != libc::PT_NOTE {
        return None;
    }
    let at = (base + header.p_vaddr) as *const u8;
    // SAFETY: notes are mapped with the library.
    let notes = unsafe { core::slice::from_raw_parts(at, header.p_memsz as usize) };
    let word = |at: usize| {
        let bytes = notes.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut at = 0;
    loop {
        let (name, body, kind) = (word(at)? as usize, word(at + 4)? as usize, word(at + 8)?);
        let name_at = at + 12;
        let body_at = name_at + name.next_multiple_of(4);
        if kind == NT_GNU_BUILD_ID && notes.get(name_at..name_at + name)? == b"GNU\0" {
            return notes.get(body_at..body_at + body)?.try_into().ok();
        }
        at = body_at + body.next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_from_properties() {
        let note = |kind: u32, levels: u32| {
            let words = [
                4,
                32,
                5,
                u32::from_le_bytes(*b"GNU\0"),
                0xc000_0002,
                4,
                3,
                0,
            ];
            let words = words.into_iter().chain([kind, 4, levels, 0]);
            words.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
        };
        assert_eq!(levels_needed(&note(0xc000_8002, 0b101)), 0b101);
        assert_eq!(levels_needed(&note(0xc001_0001, 0b101)), 0);
        assert_eq!(levels_needed(&[]), 0);
    }

    #[test]
    fn libc_is_found() {
        let all = loaded();
        assert!(!all.is_empty());
        assert!(all[0].text_bytes > 1 << 19 && all[0].build_id.is_some());
    }
}
