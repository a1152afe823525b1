//! Two processes with one memfd. The receiver is this test program, started again with the descriptor as its standard
//! input.

use cotensor_core::{Memory, Segment, SegmentMut};
use cotensor_memory::{Guarantee, MemfdMut, PrivateMapping, SealedMemfd, Slab};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The receiver's variable: the length of the memfd, and the start and the length of the tensor, in bytes.
const RECEIVER: &str = "COTENSOR_TEST_RECEIVER";

/// Starts a receiver, waits until it has mapped the memfd, drops the segment here and lets the receiver check the
/// bytes.
fn check_in_receiver(test: &str, segment: Arc<dyn Segment>, len: usize) {
    let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let test = format!("processes::{test}");
    child.args(["--exact", &test, "--nocapture"]).stdin(fd).stdout(Stdio::piped()).stderr(Stdio::piped());
    child.env(RECEIVER, format!("{len} {} {}", segment.fd_offset(), segment.len()));
    let mut child = child.spawn().unwrap();
    let (mut lines, mut output) = (BufReader::new(child.stdout.take().unwrap()), String::new());
    while !output.ends_with("mapped\n") {
        assert!(lines.read_line(&mut output).unwrap() > 0, "{output}{}", errors(&mut child));
    }
    drop(segment);
    lines.read_to_string(&mut output).unwrap();
    assert!(output.contains("all checks passed"), "{output}{}", errors(&mut child));
    assert!(child.wait().unwrap().success());
}

fn errors(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// Runs the receiver's checks and returns `true` in a receiver process.
fn run_as_receiver(guarantee: Guarantee) -> bool {
    let Ok(expected) = std::env::var(RECEIVER) else { return false };
    let numbers: Vec<usize> = expected.split(' ').map(|number| number.parse().unwrap()).collect();
    let [len, start, tensor_len] = numbers[..] else { panic!("{expected}") };
    let descriptor = || -> OwnedFd { std::io::stdin().as_fd().try_clone_to_owned().unwrap() };
    let received = Arc::new(SealedMemfd::open(descriptor(), len, guarantee).unwrap());
    let tensor = received.slice(start..start + tensor_len).unwrap();
    println!("\nmapped");
    std::io::stdout().flush().unwrap();

    let is_expected = |bytes: &[u8]| bytes.iter().enumerate().all(|(i, &byte)| byte == (i % 251) as u8);
    assert!(is_expected(tensor.bytes().unwrap()));
    let mut private = PrivateMapping::of(&*received, start..start + tensor_len).unwrap();
    assert!(is_expected(private.bytes()));
    private.bytes_mut().fill(0);
    assert!(is_expected(tensor.bytes().unwrap()), "writes in place stay private");
    assert!(std::fs::File::from(descriptor()).write_all(b"x").is_err(), "the descriptor cannot be written");
    assert!(std::fs::OpenOptions::new().write(true).truncate(true).open("/proc/self/fd/0").is_err());
    assert!(is_expected(tensor.bytes().unwrap()));
    println!("all checks passed");
    true
}

fn tensor() -> Vec<u8> {
    (0..100_000).map(|i| (i % 251) as u8).collect()
}

#[test]
fn large_tensor_outlives_its_producer() {
    if run_as_receiver(Guarantee::Immutable) {
        return;
    }
    let mut memfd = MemfdMut::create(100_000).unwrap();
    memfd.write_at(0, &tensor()).unwrap();
    check_in_receiver("large_tensor_outlives_its_producer", Arc::new(memfd.seal().unwrap()), 100_000);
}

#[test]
fn range_of_a_slab_is_readable_in_another_process() {
    if run_as_receiver(Guarantee::ProducerOnly) {
        return;
    }
    let slab = Slab::create(1 << 20).unwrap();
    let before = slab.copy_of(&[255; 1000]).unwrap();
    let segment = slab.copy_of(&tensor()).unwrap().freeze().unwrap();
    assert!(segment.fd_offset() > 0);
    drop(slab);
    check_in_receiver("range_of_a_slab_is_readable_in_another_process", segment, 1 << 20);
    drop(before);
}
