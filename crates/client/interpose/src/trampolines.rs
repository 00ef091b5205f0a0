//! The way from a call site of libc, or from an exported symbol, into the library and
//! back, and the table that decides whether to go at all.
//!
//! From a *site*: the original 5-byte `mov $nr,%eax` has become a jump to the site's own
//! stub ([`crate::rewrite`]), which loads eax with the number, rcx with the site's
//! [`Site`](crate::site::Site), and jumps here. A system call clobbers rax, rcx and r11 and nothing else,
//! so only these may be used before everything is saved: the general registers that Rust
//! code may change, and the vector registers, of which code built for plain x86-64 can
//! keep the lower halves of 16 across a system call. The 128 bytes below the stack
//! pointer may be in use too. If the call is not ours, the original instruction runs.
//!
//! From an *exported symbol*: an ordinary call by the ABI; one that is not ours goes
//! on to libc's function.
//!
//! A signal that came while the thread was inside is sent again at the very end, outside
//! of Rust code: its handler may jump away or unwind the stack, for which the code has
//! unwind information.

use crate::cancellation::CANCELS;
use crate::outcome::{CLASS, FD_END, ONTO_STACK, PASS, TABLE};
use crate::raw::{Args, NR_END, nr, set_errno};
use crate::thread::Thread;
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static TABLE_AT: &[AtomicU32; FD_END] = &TABLE;

/// libc's own function behind an exported symbol, by number; the bare system call until it
/// is known.
pub static REAL: [AtomicPtr<()>; NR_END] =
    [const { AtomicPtr::new(shale_bare as *mut ()) }; NR_END];

/// Serves a call: its number and its arguments, as they lie on the stack; gives its result or [`PASS`].
pub type Serve = unsafe extern "C-unwind" fn(u32, *const Args) -> i64;

/// What serves calls. Called through, as it is known to the crate above only.
static SERVE: AtomicPtr<()> = AtomicPtr::new(nothing_is_served as *mut ());

/// Until [`serve_with`].
unsafe extern "C-unwind" fn nothing_is_served(_: u32, _: *const Args) -> i64 {
    PASS
}

/// Has `serve` called for every call that comes here from now on.
pub fn serve_with(serve: Serve) {
    SERVE.store(serve as *mut (), Ordering::Release);
}

/// Not 0 when libc's sites lead here: exported symbols of [`crate::outcome::class::ALWAYS`] then have
/// nothing to do.
pub static SITES_LEAD_HERE: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    /// Entry for sites of [`crate::outcome::class::DESCRIPTOR`].
    pub safe fn shale_site_descriptor();
    /// Entry for sites of [`crate::outcome::class::ALWAYS`].
    pub safe fn shale_site_always();
    /// Entry for sites of `mmap`: memory that no file has is the kernel's.
    pub safe fn shale_site_mmap();
    /// Entry for sites whose number is in eax.
    pub safe fn shale_site_dynamic();
    /// Makes the system call of a site whose own instruction is gone, where the unwinder knows what made it: a thread may be
    /// cancelled in it.
    pub safe fn shale_pass_framed();
    /// What [`REAL`] holds before libc's functions are known: the bare system call.
    pub safe fn shale_bare();
}

global_asm!(
    ".text",
    ".p2align 4",
    ".hidden shale_site_dynamic",
    ".globl shale_site_dynamic",
    "shale_site_dynamic:",
    // Nothing is on the stack yet: the address behind the site is where rcx + 16 says, written as
    // DW_CFA_expression of register 16, DW_OP_breg2 16.
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 0",
    ".cfi_escape 0x10, 0x10, 2, 0x72, 0x10",
    "cmp rax, {nr_end}",
    "jae 3f",
    "lea r11, [rip + {class}]",
    "movzx r11d, byte ptr [r11 + rax]",
    "cmp r11d, 1",
    "ja shale_site_always",
    "jb 3f",
    ".hidden shale_site_descriptor",
    ".globl shale_site_descriptor",
    "shale_site_descriptor:",
    "cmp edi, {fd_end}",
    "jae 3f",
    "mov r11d, edi",
    "shl r11, 2",
    "add r11, qword ptr [rip + {table_at}]",
    "cmp dword ptr [r11], 0",
    "jne shale_site_always",
    "3: jmp qword ptr [rcx]",
    ".cfi_endproc",
    "",
    ".p2align 4",
    ".hidden shale_site_mmap",
    ".globl shale_site_mmap",
    "shale_site_mmap:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 0",
    ".cfi_escape 0x10, 0x10, 2, 0x72, 0x10",
    "test r10d, {anonymous}",
    "jz shale_site_always",
    "jmp qword ptr [rcx]",
    ".cfi_endproc",
    "",
    ".p2align 4",
    ".hidden shale_site_always",
    ".globl shale_site_always",
    "shale_site_always:",
    ".cfi_startproc",
    // The caller's frame as if the site had called: its stack pointer is the CFA, and
    // the address behind the site is kept below the 128 bytes.
    ".cfi_def_cfa rsp, 0",
    ".cfi_escape 0x10, 0x10, 2, 0x72, 0x10",
    "lea rsp, [rsp - 128]",
    ".cfi_def_cfa_offset 128",
    "push qword ptr [rcx + 16]",
    ".cfi_def_cfa_offset 136",
    ".cfi_offset rip, -136",
    "push rbp",
    ".cfi_def_cfa_offset 144",
    ".cfi_offset rbp, -144",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "and rsp, -64",
    "sub rsp, 320",
    "movaps [rsp + 64], xmm0",
    "movaps [rsp + 80], xmm1",
    "movaps [rsp + 96], xmm2",
    "movaps [rsp + 112], xmm3",
    "movaps [rsp + 128], xmm4",
    "movaps [rsp + 144], xmm5",
    "movaps [rsp + 160], xmm6",
    "movaps [rsp + 176], xmm7",
    "movaps [rsp + 192], xmm8",
    "movaps [rsp + 208], xmm9",
    "movaps [rsp + 224], xmm10",
    "movaps [rsp + 240], xmm11",
    "movaps [rsp + 256], xmm12",
    "movaps [rsp + 272], xmm13",
    "movaps [rsp + 288], xmm14",
    "movaps [rsp + 304], xmm15",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], r10",
    "mov [rsp + 32], r8",
    "mov [rsp + 40], r9",
    "mov [rsp + 48], rcx",
    "mov [rsp + 56], rax",
    "mov edi, eax",
    "mov rsi, rsp",
    "call qword ptr [rip + {serve}]",
    "mov r11, qword ptr [rip + shale_thread@GOTTPOFF]",
    "cmp dword ptr fs:[r11 + {pending}], 0",
    "je 4f",
    "call shale_send_pending",
    "4:",
    "movaps xmm0, [rsp + 64]",
    "movaps xmm1, [rsp + 80]",
    "movaps xmm2, [rsp + 96]",
    "movaps xmm3, [rsp + 112]",
    "movaps xmm4, [rsp + 128]",
    "movaps xmm5, [rsp + 144]",
    "movaps xmm6, [rsp + 160]",
    "movaps xmm7, [rsp + 176]",
    "movaps xmm8, [rsp + 192]",
    "movaps xmm9, [rsp + 208]",
    "movaps xmm10, [rsp + 224]",
    "movaps xmm11, [rsp + 240]",
    "movaps xmm12, [rsp + 256]",
    "movaps xmm13, [rsp + 272]",
    "movaps xmm14, [rsp + 288]",
    "movaps xmm15, [rsp + 304]",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "mov r10, [rsp + 24]",
    "mov r8, [rsp + 32]",
    "mov r9, [rsp + 40]",
    "mov rcx, [rsp + 48]",
    // The two lowest numbers.
    "movabs r11, {onto_stack}",
    "cmp rax, r11",
    "jle 5f",
    ".cfi_remember_state",
    "mov rsp, rbp",
    ".cfi_def_cfa rsp, 144",
    "pop rbp",
    ".cfi_def_cfa_offset 136",
    ".cfi_restore rbp",
    ".cfi_escape 0x10, 0x10, 2, 0x72, 0x10",
    "lea rsp, [rsp + 136]",
    ".cfi_def_cfa_offset 0",
    "jmp qword ptr [rcx + 8]",
    ".cfi_restore_state",
    "5: je 11f",
    "mov rax, [rsp + 56]",
    ".cfi_remember_state",
    "mov rsp, rbp",
    ".cfi_def_cfa rsp, 144",
    "pop rbp",
    ".cfi_def_cfa_offset 136",
    ".cfi_restore rbp",
    ".cfi_escape 0x10, 0x10, 2, 0x72, 0x10",
    "lea rsp, [rsp + 136]",
    ".cfi_def_cfa_offset 0",
    "jmp qword ptr [rcx]",
    ".cfi_restore_state",
    "11:",
    "mov r11, qword ptr [rip + shale_thread@GOTTPOFF]",
    "mov r11, qword ptr fs:[r11 + {child_stack}]",
    "mov rsp, rbp",
    "pop rbp",
    "mov rsp, r11",
    "xor eax, eax",
    "jmp qword ptr [rcx + 8]",
    ".cfi_endproc",
    "",
    ".p2align 4",
    ".hidden shale_pass_framed",
    ".globl shale_pass_framed",
    "shale_pass_framed:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 0",
    ".cfi_escape 0x10, 0x10, 2, 0x72, 0x10",
    // Those that return with another stack pointer, and vfork(2), whose child would use the parent's.
    "cmp rax, {clone3}",
    "je 15f",
    "cmp rax, {vfork}",
    "ja 14f",
    "cmp rax, {clone}",
    "jae 15f",
    "cmp rax, {sigreturn}",
    "je 15f",
    ".cfi_remember_state",
    "14: lea rsp, [rsp - 128]",
    ".cfi_def_cfa_offset 128",
    "push qword ptr [rcx + 16]",
    ".cfi_def_cfa_offset 136",
    ".cfi_offset rip, -136",
    "push qword ptr [rcx + 8]",
    ".cfi_def_cfa_offset 144",
    "syscall",
    "pop rcx",
    ".cfi_def_cfa_offset 136",
    "lea rsp, [rsp + 136]",
    ".cfi_def_cfa_offset 0",
    "jmp rcx",
    ".cfi_restore_state",
    "15: jmp qword ptr [rcx + 24]",
    ".cfi_endproc",
    "",
    // Sends the waiting signal to this thread and opens its mask again. Keeps rax.
    ".p2align 4",
    ".hidden shale_send_pending",
    "shale_send_pending:",
    ".cfi_startproc",
    "push rax",
    ".cfi_def_cfa_offset 16",
    "mov r9, qword ptr [rip + shale_thread@GOTTPOFF]",
    "add r9, qword ptr fs:[0]",
    // Asked, since a thread that was served for the first time may not have noted them.
    "mov eax, 39",
    "syscall",
    "mov edi, eax",
    "mov eax, 186",
    "syscall",
    "mov esi, eax",
    "mov edx, dword ptr [r9 + {pending}]",
    "lea r10, [r9 + {info}]",
    "mov eax, 297",
    "syscall",
    "mov dword ptr [r9 + {pending}], 0",
    "mov edi, 2",
    "lea rsi, [r9 + {mask}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "pop rax",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    "",
    // From an exported symbol: eax holds the number, the rest is as by the ABI.
    ".p2align 4",
    ".hidden shale_symbol",
    ".globl shale_symbol",
    "shale_symbol:",
    ".cfi_startproc",
    "sub rsp, 72",
    ".cfi_def_cfa_offset 80",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], rcx",
    "mov [rsp + 32], r8",
    "mov [rsp + 40], r9",
    "mov [rsp + 48], rax",
    "cmp dword ptr [rip + {cancels}], 0",
    "jne 12f",
    "13: mov edi, eax",
    "mov rsi, rsp",
    "call qword ptr [rip + {serve}]",
    "mov r11, qword ptr [rip + shale_thread@GOTTPOFF]",
    "cmp dword ptr fs:[r11 + {pending}], 0",
    "jne 6f",
    "7:",
    "cmp rax, -4096",
    "ja 8f",
    "movabs r11, {pass}",
    "cmp rax, r11",
    "je 9f",
    "add rsp, 72",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_def_cfa_offset 80",
    "6: call shale_send_pending",
    "jmp 7b",
    // As libc's own function begins, but for two that are no cancellation points; not for a call of the library itself.
    "12: cmp eax, {lseek}",
    "je 13b",
    "cmp eax, {ftruncate}",
    "je 13b",
    "mov r11, qword ptr [rip + shale_thread@GOTTPOFF]",
    "cmp dword ptr fs:[r11 + {inside}], 0",
    "jne 13b",
    "call qword ptr [rip + pthread_testcancel@GOTPCREL]",
    "mov rax, [rsp + 48]",
    "jmp 13b",
    "8:",
    "mov rdi, rax",
    "add rsp, 72",
    ".cfi_def_cfa_offset 8",
    "jmp {fail}",
    ".cfi_def_cfa_offset 80",
    "9:",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov r8, [rsp + 32]",
    "mov r9, [rsp + 40]",
    "mov rax, [rsp + 48]",
    "add rsp, 72",
    ".cfi_def_cfa_offset 8",
    "mov r11, qword ptr [rip + shale_thread@GOTTPOFF]",
    "cmp dword ptr fs:[r11 + {inside}], 0",
    "jne shale_bare",
    "lea r11, [rip + {real}]",
    "jmp qword ptr [r11 + rax*8]",
    ".cfi_endproc",
    "",
    ".p2align 4",
    ".hidden shale_bare",
    ".globl shale_bare",
    "shale_bare:",
    ".cfi_startproc",
    "mov r10, rcx",
    "syscall",
    "cmp rax, -4096",
    "ja 10f",
    "ret",
    "10: mov rdi, rax",
    "jmp {fail}",
    ".cfi_endproc",
    lseek = const nr::LSEEK,
    ftruncate = const nr::FTRUNCATE,
    clone3 = const nr::CLONE3,
    vfork = const nr::VFORK,
    clone = const nr::CLONE,
    sigreturn = const libc::SYS_rt_sigreturn,
    nr_end = const NR_END,
    fd_end = const FD_END,
    anonymous = const libc::MAP_ANONYMOUS,
    pass = const PASS,
    onto_stack = const ONTO_STACK,
    child_stack = const offset_of!(Thread, child_stack),
    pending = const offset_of!(Thread, pending),
    mask = const offset_of!(Thread, mask),
    inside = const offset_of!(Thread, inside),
    cancels = sym CANCELS,
    info = const offset_of!(Thread, info),
    class = sym CLASS,
    table_at = sym TABLE_AT,
    real = sym REAL,
    serve = sym SERVE,
    fail = sym set_errno,
);
