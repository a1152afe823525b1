//! Two processes on one memfd. The receiver is this test's own program, started again with the descriptor as its input.

#![allow(clippy::unwrap_used)]

use cotensor_core::{Memory, Segment, SegmentMut};
use cotensor_memory::{Guarantee, MemfdMut, PrivateMapping, SealedMemfd, Slab};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// What the receiver expects: length of the memfd, start and length of the tensor.
const RECEIVER: &str = "COTENSOR_TEST_RECEIVER";

/// Starts the receiver, waits until it has mapped the memfd, lets go of it here, and has it check the bytes.
fn check_elsewhere(test: &str, held: Arc<dyn Segment>, len: usize) {
    let fd = held.fd().unwrap().try_clone_to_owned().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).stdin(fd).stdout(Stdio::piped()).stderr(Stdio::piped());
    child.env(RECEIVER, format!("{len} {} {}", held.fd_offset(), held.len()));
    let mut child = child.spawn().unwrap();
    let (mut lines, mut said) = (BufReader::new(child.stdout.take().unwrap()), String::new());
    while !said.ends_with("mapped\n") {
        assert!(lines.read_line(&mut said).unwrap() > 0, "{said}{}", errors(&mut child));
    }
    drop(held);
    lines.read_to_string(&mut said).unwrap();
    assert!(said.contains("all as it should be"), "{said}{}", errors(&mut child));
    assert!(child.wait().unwrap().success());
}

fn errors(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// The receiver's part, in the process that is one.
fn is_receiver(guarantee: Guarantee) -> bool {
    let Ok(expected) = std::env::var(RECEIVER) else { return false };
    let numbers: Vec<usize> = expected.split(' ').map(|number| number.parse().unwrap()).collect();
    let [len, start, tensor_len] = numbers[..] else { panic!("{expected}") };
    let descriptor = || -> OwnedFd { std::io::stdin().as_fd().try_clone_to_owned().unwrap() };
    let received = Arc::new(SealedMemfd::open(descriptor(), len, guarantee).unwrap());
    let tensor = received.slice(start..start + tensor_len).unwrap();
    println!("\nmapped");
    std::io::stdout().flush().unwrap();

    let right = |bytes: &[u8]| bytes.iter().enumerate().all(|(i, &byte)| byte == (i % 251) as u8);
    assert!(right(tensor.bytes().unwrap()));
    let mut private = PrivateMapping::of(&*received, start..start + tensor_len).unwrap();
    assert!(right(private.bytes()));
    private.bytes_mut().fill(0);
    assert!(right(tensor.bytes().unwrap()), "what is written in place stays private");
    assert!(std::fs::File::from(descriptor()).write_all(b"x").is_err(), "nothing can be written");
    assert!(std::fs::OpenOptions::new().write(true).truncate(true).open("/proc/self/fd/0").is_err());
    assert!(right(tensor.bytes().unwrap()));
    println!("all as it should be");
    true
}

fn tensor() -> Vec<u8> {
    (0..100_000).map(|i| (i % 251) as u8).collect()
}

#[test]
fn a_large_tensor_outlives_its_producer() {
    if is_receiver(Guarantee::Immutable) {
        return;
    }
    let mut memfd = MemfdMut::create(100_000).unwrap();
    memfd.write_at(0, &tensor()).unwrap();
    check_elsewhere("a_large_tensor_outlives_its_producer", Arc::new(memfd.seal().unwrap()), 100_000);
}

#[test]
fn a_range_of_a_slab_is_read_elsewhere() {
    if is_receiver(Guarantee::ProducerOnly) {
        return;
    }
    let slab = Slab::create(1 << 20).unwrap();
    let before = slab.copy_of(&[255; 1000]).unwrap();
    let part = slab.copy_of(&tensor()).unwrap().freeze().unwrap();
    assert!(part.fd_offset() > 0);
    drop(slab);
    check_elsewhere("a_range_of_a_slab_is_read_elsewhere", part, 1 << 20);
    drop(before);
}
