//! What sandboxes refuse.

use std::mem::offset_of;

/// Lets `memfd_create` fail with `EACCES` unless it has `MFD_NOEXEC_SEAL`, as sandboxes do: in this thread, and in all
/// threads and processes that it starts from now on. A seccomp filter, which needs no privileges and cannot be removed.
///
/// # Errors
/// The system's error where it has no seccomp filters.
pub fn refuse_executable_memfds() -> std::io::Result<()> {
    let load = |offset: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32, 0, 0);
    let answer = |value: u32| statement(libc::BPF_RET | libc::BPF_K, value, 0, 0);
    // The flags are the low half of the second argument.
    let low_half = if cfg!(target_endian = "little") { 0 } else { 4 };
    let flags = offset_of!(libc::seccomp_data, args) + size_of::<u64>() + low_half;
    let mut filter = [
        load(offset_of!(libc::seccomp_data, nr)),
        // Skips three statements for any other system call.
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_memfd_create as u32, 0, 3),
        load(flags),
        statement(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, libc::MFD_NOEXEC_SEAL, 1, 0),
        answer(libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls only read their arguments. `program` and `filter` are borrowed until after them.
    let outcome = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0),
            failed => failed,
        }
    };
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn statement(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
