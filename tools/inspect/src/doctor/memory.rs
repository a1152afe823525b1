//! Tests shared memory: creates it, seals it, tries to change it, maps it and measures its speed.

use super::finding::{Finding, Severity};
use cotensor_core::{Error, ErrorKind, Memory, Result, Segment};
use cotensor_memory::{Guarantee, MemfdMemory, SealedMemfd, Slab, check_sealed};
use rustix::fs::{OFlags, ftruncate, open};
use rustix::io::{Errno, pwrite};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

/// Size of the measured segment.
const SAMPLE_BYTES: usize = 64 << 20;
/// Usually, the kernel allocates a page in 4 to 6 µs: 1 to 1.6 s per GiB.
const SLOW_SECONDS_PER_GIB: f64 = 3.0;

pub(super) fn check() -> Vec<Finding> {
    let sealed = match seals() {
        Ok(()) => {
            Finding::ok("sealed memory", "works: published memory cannot be written, resized or reopened for writing")
        }
        Err(error) => Finding::new(
            "sealed memory",
            Severity::Broken,
            error.to_string(),
            "readers and producers could change published tensors; the kernel or a sandbox forbids memfd_create or its \
             seals",
        ),
    };
    match speeds() {
        Ok(findings) => std::iter::once(sealed).chain(findings).collect(),
        Err(error) => vec![
            sealed,
            Finding::new(
                "allocation speed",
                Severity::Broken,
                error.to_string(),
                "64 MiB of shared memory cannot be allocated",
            ),
        ],
    }
}

/// Creates both kinds of segments and tries to change them.
fn seals() -> Result<()> {
    let mut segment = MemfdMemory.reserve(4096)?;
    segment.write_at(0, &[7; 4096])?;
    let segment = segment.freeze()?;
    let fd = segment.fd().ok_or_else(|| Error::unsupported("the memory has no file descriptor"))?;
    check_sealed(fd, 4096, Guarantee::Immutable)?;
    check_immutable(fd, segment.bytes())?;
    let slab = Slab::create(4096)?;
    check_sealed(slab.fd(), 4096, Guarantee::ProducerOnly)?;
    check_immutable(slab.fd().as_fd(), None)
}

/// Tries to write, to resize, and to reopen for writing.
fn check_immutable(fd: BorrowedFd<'_>, bytes: Option<&[u8]>) -> Result<()> {
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

/// Measures allocation, a copy, and a reader's page faults.
fn speeds() -> Result<Vec<Finding>> {
    let gib = SAMPLE_BYTES as f64 / f64::from(1 << 30);
    let start = Instant::now();
    let mut segment = MemfdMemory.reserve(SAMPLE_BYTES)?;
    let made = start.elapsed().as_secs_f64() / gib;
    let source = vec![1u8; SAMPLE_BYTES];
    let mut copy = || -> Result<f64> {
        let start = Instant::now();
        segment.write_at(0, &source)?;
        Ok(gib / start.elapsed().as_secs_f64())
    };
    // The first copy includes page faults; only the second is reported.
    let (_, copied) = (copy()?, copy()?);
    let sealed = segment.freeze()?;
    let fd = sealed.fd().ok_or_else(|| Error::unsupported("the memory has no file descriptor"))?;
    let fd = fd.try_clone_to_owned().map_err(|error| Error::io("duplicating a descriptor", &error))?;
    let start = Instant::now();
    let reader = SealedMemfd::open(fd, SAMPLE_BYTES, Guarantee::Immutable)?;
    let touched: u64 = reader.bytes().map_or(0, |bytes| bytes.iter().step_by(4096).map(|&byte| u64::from(byte)).sum());
    let read = start.elapsed().as_secs_f64() / gib;
    debug_assert_eq!(touched, (SAMPLE_BYTES / 4096) as u64);
    let slow = made > SLOW_SECONDS_PER_GIB;
    let severity = if slow { Severity::Slow } else { Severity::Ok };
    let advice = if slow { "publishing a tensor in newly allocated memory takes this time" } else { "" };
    Ok(vec![
        Finding::new("allocation speed", severity, format!("{made:.2} s per GiB"), advice),
        Finding::ok("copy speed", format!("{copied:.1} GiB per s on one thread")),
        Finding::ok("page faults of a reader", format!("{:.0} ms per GiB", 1000.0 * read)),
    ])
}
