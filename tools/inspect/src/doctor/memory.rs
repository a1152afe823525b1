//! Shared memory, tried: made, sealed, attacked, mapped and timed.

use super::{Finding, State};
use cotensor_core::{Error, ErrorKind, Memory, Result, Segment};
use cotensor_memory::{Guarantee, MemfdMemory, SealedMemfd, Slab, check_sealed};
use rustix::fs::{OFlags, ftruncate, open};
use rustix::io::{Errno, pwrite};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

/// Enough to time, little enough for any machine.
const TRIAL_BYTES: usize = 64 << 20;
/// A page that the kernel has to make costs 4 to 6 µs where it is usual: 1 to 1.6 s per GiB.
const SLOW_SECONDS_PER_GIB: f64 = 3.0;

pub(super) fn look() -> Vec<Finding> {
    let sealed = match seals() {
        Ok(()) => Finding::ok("sealed memory", "works: nobody can write, resize or reopen what is published"),
        Err(error) => Finding::new(
            "sealed memory",
            State::Broken,
            error.to_string(),
            "published tensors would not be safe from their readers and producers; a kernel or a sandbox forbids memfd_create \
             or its seals",
        ),
    };
    match costs() {
        Ok(findings) => std::iter::once(sealed).chain(findings).collect(),
        Err(error) => vec![
            sealed,
            Finding::new(
                "speed of new memory",
                State::Broken,
                error.to_string(),
                "64 MiB of shared memory are not to be had",
            ),
        ],
    }
}

/// Makes both kinds of segments and tries to break them.
fn seals() -> Result<()> {
    let mut segment = MemfdMemory.reserve(4096)?;
    segment.write_at(0, &[7; 4096])?;
    let segment = segment.freeze()?;
    let fd = segment.fd().ok_or_else(|| Error::unsupported("the memory has no descriptor"))?;
    check_sealed(fd, 4096, Guarantee::Immutable)?;
    withstands(fd, segment.bytes())?;
    let slab = Slab::create(4096)?;
    check_sealed(slab.fd(), 4096, Guarantee::ProducerOnly)?;
    withstands(slab.fd().as_fd(), None)
}

/// Tries to write, to shrink, to grow, and to reopen for writing.
fn withstands(fd: BorrowedFd<'_>, bytes: Option<&[u8]>) -> Result<()> {
    let broken = |what: &str| Error::new(ErrorKind::Refused, format!("a sealed segment could be {what}"));
    let refused = |outcome: rustix::io::Result<()>| matches!(outcome, Err(Errno::PERM | Errno::BADF | Errno::ACCESS));
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let reopened = open(path, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    let writers = [Some(fd), reopened.as_ref().ok().map(AsFd::as_fd)];
    for writer in writers.into_iter().flatten() {
        if !refused(pwrite(writer, &[1], 0).map(drop)) {
            return Err(broken("written"));
        }
        if ![0, 8192].into_iter().all(|len| refused(ftruncate(writer, len))) {
            return Err(broken("resized"));
        }
    }
    match bytes {
        Some(bytes) if bytes.iter().any(|&byte| byte != 7) => Err(broken("changed")),
        _ => Ok(()),
    }
}

/// What new memory, a copy into it and a reader's first touch cost.
fn costs() -> Result<Vec<Finding>> {
    let gib = TRIAL_BYTES as f64 / f64::from(1 << 30);
    let start = Instant::now();
    let mut segment = MemfdMemory.reserve(TRIAL_BYTES)?;
    let made = start.elapsed().as_secs_f64() / gib;
    let source = vec![1u8; TRIAL_BYTES];
    let mut copy = || -> Result<f64> {
        let start = Instant::now();
        segment.write_at(0, &source)?;
        Ok(gib / start.elapsed().as_secs_f64())
    };
    // The first copy maps the pages; the second only copies.
    let (_, copied) = (copy()?, copy()?);
    let sealed = segment.freeze()?;
    let fd = sealed.fd().ok_or_else(|| Error::unsupported("the memory has no descriptor"))?;
    let fd = fd.try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))?;
    let start = Instant::now();
    let reader = SealedMemfd::open(fd, TRIAL_BYTES, Guarantee::Immutable)?;
    let touched: u64 = reader.bytes().map_or(0, |bytes| bytes.iter().step_by(4096).map(|&byte| u64::from(byte)).sum());
    let read = start.elapsed().as_secs_f64() / gib;
    debug_assert_eq!(touched, (TRIAL_BYTES / 4096) as u64);
    let slow = made > SLOW_SECONDS_PER_GIB;
    let state = if slow { State::Slow } else { State::Ok };
    let why = if slow { "publishing a tensor in memory that is not recycled will take that long" } else { "" };
    Ok(vec![
        Finding::new("speed of new memory", state, format!("{made:.2} s per GiB"), why),
        Finding::ok("speed of a copy", format!("{copied:.1} GiB per s on one thread")),
        Finding::ok("a reader's first touch", format!("{:.0} ms per GiB", 1000.0 * read)),
    ])
}
