//! The memory of GPUs in reports: what programs take, and what a store keeps.

use crate::table::plain;
use cotensor::core::size;
use cotensor_inspect::scan::GpuScan;
use std::fmt::Write;

/// The most processes of a GPU in a text.
const PROCESSES_SHOWN: usize = 20;
/// The most characters of a command line in a text.
const COMMAND_CHARS: usize = 60;

/// Lines for each GPU: its memory in use, the bytes of no process, and the processes.
pub(super) fn lines(gpus: &[GpuScan]) -> String {
    let mut text = String::new();
    for GpuScan { device, uuid, total_bytes, used_bytes, unattributed_bytes, processes } in gpus {
        let name = device.as_deref().unwrap_or(uuid);
        // Writing to a string cannot fail.
        let _ = write!(text, "{}: {} of {} in use", plain(name), size(*used_bytes), size(*total_bytes));
        let _ = match unattributed_bytes {
            // In a container, the driver shows no processes of others.
            Some(bytes) => {
                let bytes = size(*bytes);
                writeln!(text, ", {bytes} of it by no process that is visible here, such as tensors that a store keeps")
            }
            None => writeln!(text, "; the driver does not tell the bytes of each process"),
        };
        for process in processes.iter().take(PROCESSES_SHOWN) {
            let bytes = process.bytes.map_or_else(|| "unknown".to_owned(), size);
            let command = plain(process.command.as_deref().unwrap_or("(not visible here)"));
            let command: String = command.chars().take(COMMAND_CHARS).collect();
            let _ = writeln!(text, "  {bytes:>10}  process {} {command}", process.pid);
        }
        if let more @ 1.. = processes.len().saturating_sub(PROCESSES_SHOWN) {
            let _ = writeln!(text, "  and {more} more processes (--json lists all)");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_inspect::scan::GpuProcess;

    #[test]
    fn bytes_of_no_process_are_shown() {
        let process = |pid, bytes| GpuProcess { pid, command: Some(format!("program {pid}\x1b[1m")), bytes };
        let mut gpu = GpuScan {
            device: Some("cuda:1".to_owned()),
            uuid: "GPU-1".to_owned(),
            total_bytes: 8 << 30,
            used_bytes: 3 << 20,
            unattributed_bytes: Some(1 << 20),
            processes: vec![process(17, Some(2 << 20)), GpuProcess { pid: 18, command: None, bytes: None }],
        };
        let text = lines(&[gpu.clone()]);
        let expected = "cuda:1: 3.00 MiB of 8.00 GiB in use, 1.00 MiB of it by no process that is visible here, \
                        such as tensors that a store keeps\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("2.00 MiB  process 17 program 17") && !text.contains('\x1b'), "{text}");
        assert!(text.contains("unknown  process 18 (not visible here)"), "{text}");
        (gpu.device, gpu.unattributed_bytes) = (None, None);
        gpu.processes = (0..25).map(|pid| process(pid, Some(1))).collect();
        let text = lines(&[gpu]);
        assert!(text.starts_with("GPU-1: ") && text.contains("does not tell"), "{text}");
        assert!(text.ends_with("and 5 more processes (--json lists all)\n"), "{text}");
    }
}
