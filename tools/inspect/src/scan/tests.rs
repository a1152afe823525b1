use super::{ScanOptions, Total, scan};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// A process that holds `bytes` of noise generated from `seed`, until it is dropped.
struct Holder(Child);

impl Holder {
    fn start(seed: u64, bytes: usize) -> Self {
        // The test program starts itself: no interpreter is needed.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "scan::tests::hold", "--nocapture", "--ignored"]);
        command.env("COTENSOR_TEST_HOLD", format!("{seed} {bytes}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut output, mut byte) = (Vec::new(), [0]);
        while !output.ends_with(b"held") {
            assert_eq!(child.stdout.as_mut().unwrap().read(&mut byte).unwrap(), 1, "the process ended");
            output.push(byte[0]);
        }
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The main function of the holder process.
#[test]
#[ignore = "a helper process of the other tests"]
fn hold() {
    let Ok(parameters) = std::env::var("COTENSOR_TEST_HOLD") else { return };
    let (seed, bytes) = parameters.split_once(' ').unwrap();
    let (mut state, bytes): (u64, usize) = (seed.parse().unwrap(), bytes.parse().unwrap());
    let mut noise = vec![0u8; bytes];
    for word in noise.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&state.to_le_bytes());
    }
    print!("held");
    std::io::stdout().flush().unwrap();
    drop(std::io::stdin().read(&mut [0]));
    std::hint::black_box(&noise);
}

const BYTES: u64 = 24 << 20;
/// Tolerance for the heaps and libraries of the processes, which may be equal.
const SLACK: u64 = 3 << 20;

fn near(bytes: u64, expected: u64) -> bool {
    bytes.abs_diff(expected) <= SLACK
}

#[test]
fn buffer_of_two_processes_is_found() {
    let holders =
        [Holder::start(1, BYTES as usize), Holder::start(1, BYTES as usize), Holder::start(2, BYTES as usize)];
    let pids = holders.each_ref().map(Holder::pid);
    for frame_numbers in [true, false] {
        let options = ScanOptions { pids: pids.to_vec(), frame_numbers, ..ScanOptions::default() };
        let mut calls = 0;
        let found = scan(&options, &mut |progress| calls += u32::from(!progress.command.is_empty())).unwrap();
        assert_eq!(calls, 3);
        assert!(found.complete, "{:?}", found.unread);
        assert!(near(found.total.between_processes_bytes, BYTES), "{:?}", found.total);
        assert!(
            near(found.total.distinct_bytes, 2 * BYTES + found.total.physical_bytes - 3 * BYTES),
            "{:?}",
            found.total
        );
        let of = |pid: u32| found.processes.iter().find(|process| process.pid == pid).unwrap().holding;
        assert!(near(of(pids[0]).duplicate_bytes, BYTES) && near(of(pids[1]).duplicate_bytes, BYTES), "{found:?}");
        assert!(near(of(pids[2]).duplicate_bytes, 0), "{found:?}");
        assert_eq!(found.pairs[0].pids, (pids[0].min(pids[1]), pids[0].max(pids[1])), "{:?}", found.pairs);
        assert!(near(found.pairs[0].duplicate_bytes, BYTES), "{:?}", found.pairs);
        assert!(near(found.ranges[0].duplicate_bytes, BYTES), "{:?}", found.ranges);
    }
}

#[test]
fn sampling_estimates_and_limits_stop_the_scan() {
    let holders = [Holder::start(3, BYTES as usize), Holder::start(3, BYTES as usize)];
    let pids = holders.each_ref().map(Holder::pid).to_vec();
    let sampled = ScanOptions { pids: pids.clone(), sample: 8, ..ScanOptions::default() };
    let found = scan(&sampled, &mut |_| {}).unwrap();
    // About 768 of 6144 pages are sampled: an error of a quarter is seven standard deviations.
    assert!(found.total.between_processes_bytes.abs_diff(BYTES) < BYTES / 4 + SLACK, "{:?}", found.total);
    assert!(found.notes.iter().any(|note| note.contains("estimates")));

    let limited = ScanOptions { pids: pids.clone(), bytes_max: 1 << 20, ..ScanOptions::default() };
    let found = scan(&limited, &mut |_| {}).unwrap();
    assert!(!found.complete && found.total.mapped_bytes < BYTES, "{:?}", found.total);
    assert!(found.unread.iter().any(|unread| unread.reason.contains("--max-read")), "{:?}", found.unread);

    let large_only = ScanOptions { pids, range_bytes_min: 1 << 40, ..ScanOptions::default() };
    assert_eq!(scan(&large_only, &mut |_| {}).unwrap().total, Total::default());
    assert!(scan(&ScanOptions { sample: 0, ..ScanOptions::default() }, &mut |_| {}).is_err());
}
