//! The daemon's commands against a `cotensor serve` per test.

use crate::support::{Daemon, until};
use cotensor::core::{DType, Device};
use cotensor::memory::{CudaDriver, CudaMemory, DEVICES_VARIABLE, DRIVER_VARIABLE, MANAGEMENT_VARIABLE};
use cotensor::store::{Retention, TensorSpec, TensorStore};
use cotensor_client::ClientStore;
use cotensor_fake_cuda::FakeCuda;
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn second_daemon_is_refused_and_killed_daemon_is_taken_over() {
    let mut daemon = Daemon::start(&["--listen", "127.0.0.1:0"]);
    let (server, http) = (daemon.ready["server"].as_u64().unwrap(), daemon.ready["http"].as_str().unwrap().to_owned());
    fs::write(daemon.path("x.bin"), [1, 2, 3]).unwrap();
    let put = ["put", "x", "x.bin", "--dtype", "uint8", "--shape", "3"];
    daemon.ok(&put);
    let pid = daemon.ready["pid"].to_string();
    daemon.expect_error(&["serve"], 2, &["cotensor.sock", "another daemon", &pid]);

    // After a kill of the server, the next one has all tensors and the same addresses.
    assert!(Command::new("kill").args(["-KILL", &server.to_string()]).status().unwrap().success());
    assert_eq!(daemon.ok(&["get", "x", "-", "--format", "raw"]), [1, 2, 3]);
    assert!(get(&http, "/health").starts_with("HTTP/1.1 200"));

    // After a kill of the supervisor, the server continues, and the next `cotensor serve` takes over.
    assert_eq!(daemon.signal("-KILL"), None);
    assert_eq!(daemon.ok(&["get", "x", "-", "--format", "raw"]), [1, 2, 3]);
    let successor = daemon.path("cotensor.sock.successor");
    until("it can be taken over", || successor.exists());
    daemon.serve(&["--listen", &http]);
    assert_eq!((&daemon.ready["resumed"], &daemon.ready["http"]), (&json!(1), &json!(http)));
    assert_eq!(daemon.ok(&["get", "x", "-", "--format", "raw"]), [1, 2, 3]);

    for signal in ["-TERM", "-INT"] {
        // A connected client does not delay the end of the daemon.
        let store = cotensor_client::ClientStore::connect(Some(&daemon.socket()), "stays").unwrap();
        assert_eq!(daemon.signal(signal), Some(0), "{signal}");
        assert!(!daemon.socket().exists() && !successor.exists(), "{signal}");
        daemon.expect_error(&["ls"], 1, &["cotensor.sock", "cotensor serve"]);
        drop(store);
        daemon.serve(&[]);
        assert_eq!(daemon.ready["resumed"], 0, "a clean stop leaves no tensors");
    }
}

#[test]
fn tensors_over_budget_are_spilled_with_spill_option() {
    let mut daemon = Daemon::start(&["--max-memory", "4MiB", "--spill", "spill"]);
    let bytes = |value: u8| vec![value; 1 << 20];
    for value in 0..5 {
        fs::write(daemon.path("x.bin"), bytes(value)).unwrap();
        daemon.ok(&["put", &format!("t{value}"), "x.bin", "--dtype", "uint8", "--shape", "1048576"]);
    }
    let listing = daemon.json(&["ls"]);
    let names = |spilled: bool| -> Vec<&str> {
        let tensors = listing["tensors"].as_array().unwrap().iter();
        tensors
            .filter(|tensor| (tensor["state"] == "spilled") == spilled)
            .map(|tensor| tensor["name"].as_str().unwrap())
            .collect()
    };
    assert_eq!((names(true), names(false)), (vec!["t0", "t1"], vec!["t2", "t3", "t4"]));
    assert!(String::from_utf8(daemon.ok(&["ls"])).unwrap().contains("spilled"));
    let stats = &daemon.json(&["stat"])["stats"];
    assert_eq!((&stats["spilled_now"], &stats["spilled_now_bytes"]), (&json!(2), &json!(2 << 20)));
    let stat = String::from_utf8(daemon.ok(&["stat"])).unwrap();
    assert!(stat.contains("spilled tensors") && stat.contains("counters start"), "{stat}");
    for command in ["stat", "who"] {
        assert_eq!(daemon.json(&[command, "t0"])["tensors"][0]["versions"][0]["state"], "spilled");
        assert!(String::from_utf8(daemon.ok(&[command, "t0"])).unwrap().contains("spilled to disk"), "{command}");
    }
    for value in 0..5 {
        assert!(daemon.ok(&["get", &format!("t{value}"), "-", "--format", "raw"]) == bytes(value), "t{value}");
    }
    daemon.ok(&["rm", "t0", "t1", "t2", "t3", "t4"]);
    let folder = fs::read_dir(daemon.path("spill")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "only the daemon's own files");
    assert_eq!(daemon.signal("-TERM"), Some(0));
    assert!(!folder.exists());
    daemon.expect_error(&["serve", "--max-spill", "1MiB"], 2, &["--spill"]);
    fs::write(daemon.path("file"), "").unwrap();
    daemon.expect_error(&["serve", "--spill", "file"], 1, &["file"]);
}

#[test]
fn stopped_processes_are_ended_by_stop() {
    let pids = |daemon: &Daemon| [daemon.ready["pid"].to_string(), daemon.ready["server"].to_string()];
    for stopped in [&[1][..], &[0], &[0, 1]] {
        let mut daemon = Daemon::start(&[]);
        let pids = pids(&daemon);
        for &at in stopped {
            assert!(Command::new("kill").args(["-STOP", &pids[at]]).status().unwrap().success());
        }
        let output = daemon.run(&["stop"]);
        assert!(output.status.success(), "{stopped:?}: {output:?}");
        daemon.ended();
        assert!(pids.iter().all(|pid| !std::path::Path::new("/proc").join(pid).exists()), "{stopped:?}: {output:?}");
    }
}

#[test]
fn takeover_over_budget_is_logged() {
    let mut daemon = Daemon::start(&[]);
    fs::write(daemon.path("x.bin"), vec![0; 3 << 20]).unwrap();
    daemon.ok(&["put", "x", "x.bin", "--dtype", "uint8", "--shape", "3145728"]);
    assert_eq!(daemon.signal("-KILL"), None);
    until("it can be taken over", || daemon.path("cotensor.sock.successor").exists());
    let log = fs::File::create(daemon.path("log")).unwrap();
    let mut successor = daemon.command(&["serve", "--max-memory", "2MiB"]).stderr(log).spawn().unwrap();
    let warned = || fs::read_to_string(daemon.path("log")).unwrap();
    until("it warns", || warned().contains("3.00 MiB were taken over") && warned().contains("allows 2.00 MiB"));
    assert!(Command::new("kill").arg(successor.id().to_string()).status().unwrap().success());
    assert!(successor.wait().unwrap().success());
}

#[test]
fn takeover_counts_every_tensor_once() {
    let mut daemon = Daemon::start(&["--max-memory", "4MiB", "--spill", "spill"]);
    fs::write(daemon.path("x.bin"), vec![0; 1 << 20]).unwrap();
    let put = |name: &str| daemon.ok(&["put", name, "x.bin", "--dtype", "uint8", "--shape", "1048576"]);
    // Of four tensors one is superseded and leased, and one is spilled.
    put("leased");
    let store = cotensor_client::ClientStore::connect(Some(&daemon.socket()), "reader").unwrap();
    let leased = store.get("leased", &store.holder("")).unwrap();
    ["leased", "a", "b"].iter().for_each(|name| drop(put(name)));
    assert_eq!(daemon.signal("-KILL"), None);
    until("it can be taken over", || daemon.path("cotensor.sock.successor").exists());
    let log = fs::File::create(daemon.path("log")).unwrap();
    let mut successor =
        daemon.command(&["serve", "--max-memory", "4MiB", "--spill", "spill"]).stderr(log).spawn().unwrap();
    let log = || fs::read_to_string(daemon.path("log")).unwrap();
    until("it tells the counts", || {
        log().contains("4 tensors were taken over: 2 current, 1 removed or superseded, 1 spilled, 0 lost")
    });
    until("the daemon is ready", || log().contains("took over 4 tensors of the previous daemon"));
    drop(leased);
    assert!(Command::new("kill").arg(successor.id().to_string()).status().unwrap().success());
    assert!(successor.wait().unwrap().success());
}

#[test]
fn client_budget_is_enforced() {
    let daemon = Daemon::start(&["--max-client-memory", "1MiB"]);
    fs::write(daemon.path("x.bin"), vec![0; 2 << 20]).unwrap();
    let put = ["put", "x", "x.bin", "--dtype", "uint8", "--shape", "2097152"];
    daemon.expect_error(&put, 2, &["cotensor put", "2.00 MiB more", "1.00 MiB of one client"]);
    daemon.expect_error(&["serve", "--max-client-memory", "0"], 2, &["--max-client-memory"]);
}

#[test]
fn device_budgets_are_set_and_wrong_ones_refused() {
    let daemon = Daemon::start(&["--max-device-memory", "fake:0=1MiB,fake:3=2MiB"]);
    let stats = daemon.json(&["stat"]);
    let devices = stats["stats"]["devices"].as_array().unwrap();
    let found: Vec<_> = devices.iter().map(|device| (&device["device"], &device["max_memory_bytes"])).collect();
    assert_eq!(found[1..], [(&"fake:0".into(), &(1u64 << 20).into()), (&"fake:3".into(), &(2u64 << 20).into())]);
    let text = String::from_utf8(daemon.ok(&["stat"])).unwrap();
    assert!(text.lines().any(|line| line.contains("memory on fake:3") && line.contains("of 2.00 MiB")), "{text}");
    for wrong in ["cuda:0", "tpu=1GiB", "cpu=1GiB", "fake:0=much", "fake:0=0B", "fake:0=1"] {
        daemon.expect_error(&["serve", "--max-device-memory", wrong], 2, &["--max-device-memory"]);
    }
}

#[test]
fn daemon_has_budgets_for_the_devices_of_its_ranks() {
    let devices = |variables: &[(&str, &str)]| {
        let mut daemon = Daemon::stopped();
        daemon.serve_with(&["--max-device-memory", "cuda=1GiB"], |command| {
            command.env_remove("RANK").env_remove("GPUS_PER_NODE").envs(variables.iter().copied());
        });
        let stats = daemon.json(&["stat"]);
        let devices = stats["stats"]["devices"].as_array().unwrap();
        devices[1..].iter().map(|device| device["device"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(devices(&[]), "cuda:0");
    assert_eq!(devices(&[("RANK", "3")]), "cuda:3");
    assert_eq!(devices(&[("RANK", "3"), ("GPUS_PER_NODE", "2")]), "cuda:0 cuda:1");
}

#[test]
fn programs_on_devices_are_listed() {
    let daemon = Daemon::start(&[]);
    assert_eq!(daemon.json(&["stat"])["devices"], serde_json::json!([]));
    let needs = cotensor_client::DeviceNeeds { demand_bytes: 3 << 20, smallest_bytes: 1 << 20 };
    let share = cotensor_client::DeviceShare::join(&daemon.socket(), "sharer", "cuda:GPU-5c", 8 << 20, needs).unwrap();
    for command in ["stat", "top"] {
        let devices = &daemon.json(&[command])["devices"];
        let program = &devices[0]["programs"][0];
        assert_eq!((&devices[0]["device"], &devices[0]["capacity_bytes"]), (&"cuda:GPU-5c".into(), &(8 << 20).into()));
        assert_eq!((&program["share_bytes"], &program["busy"]), (&(3 << 20).into(), &true.into()));
        assert!(program["client"].as_str().unwrap().starts_with("sharer["), "{devices}");
        let text = String::from_utf8(daemon.ok(&[command])).unwrap();
        let line = text.lines().find(|line| line.contains("cuda:GPU-5c")).unwrap();
        assert!(line.contains("3.00 MiB") && line.contains("8.00 MiB"), "{line}");
    }
    drop(share);
    until("its share is given back", || daemon.json(&["stat"])["devices"] == serde_json::json!([]));
}

#[test]
fn clean_stop_does_not_wait_for_clients() {
    let mut daemon = Daemon::start(&["--listen", "127.0.0.1:0"]);
    let http = daemon.ready["http"].as_str().unwrap().to_owned();
    fs::write(daemon.path("x.bin"), vec![7; 64 << 20]).unwrap();
    daemon.ok(&["put", "x", "x.bin", "--dtype", "uint8", "--shape", "67108864"]);
    let stores = ["a", "b"].map(|name| cotensor_client::ClientStore::connect(Some(&daemon.socket()), name).unwrap());
    let leases = stores.each_ref().map(|store| {
        cotensor::TensorStore::get(&**store, "x", &cotensor::TensorStore::holder(&**store, "reader")).unwrap()
    });
    // A client that reads no responses, one with an incomplete request, and one that computes a claim of another.
    let mut slow = TcpStream::connect(&http).unwrap();
    let token = daemon.authorization();
    write!(slow, "GET /tensors/x HTTP/1.1\r\nHost: {http}\r\n{token}\r\n").unwrap();
    let mut half = TcpStream::connect(&http).unwrap();
    let put = "PUT /tensors/y?dtype=uint8&shape=1000 HTTP/1.1";
    write!(half, "{put}\r\nHost: {http}\r\n{token}Content-Length: 1000\r\n\r\nx").unwrap();
    let key = cotensor::store::Key(cotensor::core::ContentHash::of(b"key"));
    let [one, two] = &stores;
    let ticket = cotensor::ComputationStore::claim(&**one, &key, &cotensor::TensorStore::holder(&**one, "")).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            cotensor::ComputationStore::claim(&**two, &key, &cotensor::TensorStore::holder(&**two, "")).is_err()
        });
        assert_eq!(daemon.signal("-TERM"), Some(0));
        assert!(!daemon.socket().exists());
        drop(ticket);
        waiting.join().unwrap();
    });
    assert!(leases.iter().all(|lease| lease.bytes().unwrap()[..10] == [7; 10]), "mapped tensors stay readable");
}

#[test]
fn token_file_must_be_private() {
    let mut daemon = Daemon::start(&[]);
    assert_eq!(daemon.signal("-TERM"), Some(0));
    let given = daemon.path("given");
    fs::write(&given, "a-secret-of-one's-own\n").unwrap();
    fs::set_permissions(&given, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    daemon.expect_error(&["serve", "--listen", "127.0.0.1:0", "--token-file", "given"], 2, &["given", "600"]);
    fs::set_permissions(&given, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    daemon.serve(&["--listen", "127.0.0.1:0", "--token-file", "given"]);
    let http = daemon.ready["http"].as_str().unwrap();
    assert!(get(http, "/metrics").starts_with("HTTP/1.1 401"));
    assert_eq!(daemon.ok(&["token"]), b"a-secret-of-one's-own\n");
}

#[test]
fn doctor_finds_the_daemon_and_reports_failures() {
    let mut daemon = Daemon::start(&[]);
    let severity = |diagnosis: &serde_json::Value, name: &str| {
        let findings = diagnosis["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["name"] == name).unwrap()["severity"].clone()
    };
    let diagnosis = daemon.json(&["doctor"]);
    assert_eq!([severity(&diagnosis, "daemon"), severity(&diagnosis, "sealed memory")], ["ok", "ok"]);
    assert_eq!(diagnosis["broken"], false);
    assert_eq!(daemon.signal("-TERM"), Some(0));
    assert_eq!(severity(&daemon.json(&["doctor"]), "daemon"), "note");
    fs::write(daemon.socket(), "in the way").unwrap();
    daemon.expect_error(&["doctor"], 1, &["a check failed"]);
}

#[test]
fn doctor_reads_gpu_memory_of_a_killed_process() {
    let fake = FakeCuda::start().unwrap();
    let daemon = Daemon::start(&["--max-device-memory", "cuda:0=1GiB"]);
    let doctor = || {
        let output = daemon.command(&["doctor"]).env(DRIVER_VARIABLE, fake.library()).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (passed, text) = doctor();
    assert!(passed && text.contains("cuda:0 is Fake GPU, GPU-636f7465"), "{text}");
    assert!(text.contains("works on cuda:0: a tensor outlived its killed producer"), "{text}");
    fake.fail("cuMemMap", 801).unwrap();
    let (passed, text) = doctor();
    assert!(!passed && text.contains("tensors on cuda:0 cannot be shared"), "{text}");
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
    for command in ["stat", "top"] {
        let output = daemon.command(&[command]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().any(|line| line.contains("cuda:0") && line.contains("of 1.00 GiB (0 tensors)")), "{text}");
    }
}

#[test]
fn memory_of_gpus_is_shown_with_the_bytes_of_no_process() {
    let fake = FakeCuda::start().unwrap();
    fake.set_devices(2).unwrap();
    let daemon = Daemon::start(&["--max-device-memory", "cuda:0=1GiB,cuda:1=1GiB"]);
    let driver = CudaDriver::load(&fake.library()).unwrap();
    let memories = CudaMemory::all(&driver).unwrap();
    let builder = ClientStore::builder("producer").socket(daemon.socket());
    let store = builder.memory(Arc::new(memories[1].clone())).connect().unwrap();
    let retention = Retention::Cached { recompute: Duration::ZERO };
    let spec = TensorSpec { retention, ..TensorSpec::new("weights", DType::U8, &[3 << 20]).on(Device::Cuda(1)) };
    drop(store.reserve(spec, &store.holder("")).unwrap().publish().unwrap());
    drop(store);
    fs::write(daemon.path("x.bin"), [1]).unwrap();
    daemon.ok(&["put", "x", "x.bin", "--dtype", "uint8", "--shape", "1"]);
    fake.attribute(1, std::process::id(), 1 << 20).unwrap();

    let own = std::process::id().to_string();
    let listed: Vec<String> = driver.devices().unwrap().into_iter().map(|device| device.uuid).collect();
    let run = |arguments: &[&str]| {
        let mut command = daemon.command(arguments);
        command.env(MANAGEMENT_VARIABLE, fake.library()).env(DEVICES_VARIABLE, listed.join(","));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let in_use = "cuda:1: 4.00 MiB of 1.00 GiB in use, 3.00 MiB of it by no process";
    let process = format!("1.00 MiB  process {own} ");
    let scanned = run(&["scan", "--pid", &own]);
    for part in [in_use, &process, "cuda:0: 0 B of 1.00 GiB in use"] {
        assert!(scanned.contains(part), "{part}: {scanned}");
    }
    let who = run(&["who", "weights"]);
    for part in [in_use, &process, "tensors of this daemon on cuda:1: 4.00 MiB of 1.00 GiB (1 tensor)"] {
        assert!(who.contains(part), "{part}: {who}");
    }
    assert!(!who.contains("cuda:0"), "the tensor is on the other one: {who}");
    assert!(!run(&["who", "x"]).contains("cuda"), "host memory");
    let who: serde_json::Value = serde_json::from_str(&run(&["who", "weights", "--json"])).unwrap();
    assert_eq!((&who["gpus"][0]["unattributed_bytes"], &who["devices"][0]["tensors"]), (&json!(3 << 20), &json!(1)));
    // Without the library, the daemon's figures are left.
    let missing = daemon.command(&["who", "weights"]).env(MANAGEMENT_VARIABLE, "/nonexistent").output().unwrap();
    let text = String::from_utf8(missing.stdout).unwrap();
    assert!(missing.status.success() && text.contains("on cuda:1: 4.00 MiB") && !text.contains("in use"), "{text}");
    fake.fail("nvmlDeviceGetUUID", 999).unwrap();
    assert!(run(&["scan", "--pid", &own]).contains("note: not all GPUs were read: GPU 1: "));
    fake.fail("nvmlInit_v2", 999).unwrap();
    assert!(run(&["scan", "--pid", &own]).contains("note: GPUs were not read: "));
    let unread = daemon.command(&["who", "weights"]).env(MANAGEMENT_VARIABLE, fake.library()).output().unwrap();
    let warning = String::from_utf8(unread.stderr).unwrap();
    assert!(unread.status.success() && warning.contains("warning: GPUs were not read: "), "{warning}");
}

#[test]
fn scan_finds_duplicates_of_two_processes() {
    let daemon = Daemon::start(&[]);
    // Two commands have read all but the last byte of a tensor: each holds a separate copy.
    let bytes: Vec<u8> = (0..4u32 << 20).flat_map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let len = (bytes.len() + 1).to_string();
    let mut waiting: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| {
            let put = ["put", name, "-", "--format", "raw", "--dtype", "uint8", "--shape", &len];
            let mut child = daemon.command(&put).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            child.stdin.as_mut().unwrap().write_all(&bytes).unwrap();
            child
        })
        .collect();
    let pids: Vec<String> = waiting.iter().map(|child| child.id().to_string()).collect();
    let arguments = ["scan", "--pid", &pids[0], "--pid", &pids[1]];
    let found = daemon.json(&arguments);
    let total = bytes.len() as u64;
    // Bytes in the pipe are not counted yet.
    let between = found["total"]["between_processes_bytes"].as_u64().unwrap();
    assert!((total - (1 << 20)..total + (8 << 20)).contains(&between), "{found}");
    assert_eq!(found["pairs"][0]["pids"].as_array().unwrap().len(), 2);
    assert!(found["ranges"][0]["name"].as_str().unwrap().contains("memfd"), "{found}");
    let text = String::from_utf8(daemon.ok(&arguments)).unwrap();
    assert!(text.contains("of it duplicate") && text.contains(&pids[1]), "{text}");
    for child in &mut waiting {
        child.stdin.take().unwrap().write_all(&[0]).unwrap();
        assert!(child.wait().unwrap().success());
    }
    daemon.expect_error(&["scan", "--pid", "4294967295"], 2, &["process 4294967295 not found"]);
}

#[test]
fn http_is_served_with_listen_option() {
    let mut daemon = Daemon::start(&["--listen", "127.0.0.1:0"]);
    let address = daemon.ready["http"].as_str().unwrap().to_owned();
    let health = get(&address, "/health");
    assert!(health.starts_with("HTTP/1.1 200") && health.contains(daemon.socket().to_str().unwrap()), "{health}");
    assert_eq!(daemon.signal("-TERM"), Some(0));
    assert!(TcpStream::connect(&address).is_err());
    daemon.expect_error(&["serve", "--listen", "nowhere"], 2, &["--listen", "nowhere"]);
    daemon.expect_error(&["serve", "--listen", "8.8.8.8:1"], 1, &["8.8.8.8:1"]);
    assert!(!daemon.socket().exists());
}

#[test]
fn sizes_have_units() {
    for (given, bytes) in [("1.5GiB", 3 << 29), ("2 GB", 2_000_000_000), ("2G", 2_000_000_000)] {
        let daemon = Daemon::start(&["--max-memory", given]);
        assert_eq!(daemon.json(&["status"])["max_memory_bytes"], bytes as u64);
    }
    let (half, all) = (Daemon::start(&[]), Daemon::start(&["--max-memory", "100%"]));
    let budget = |daemon: &Daemon| daemon.json(&["status"])["max_memory_bytes"].as_u64().unwrap();
    assert_eq!(budget(&half), budget(&all) / 2, "half of the memory is the default");
    assert!(Daemon::start(&["--max-memory", "none"]).json(&["status"])["max_memory_bytes"].is_null());
    let stopped = Daemon::stopped();
    stopped.expect_error(&["serve", "--max-memory", "4XB"], 2, &["--max-memory", "GiB"]);
    stopped.expect_error(&["serve", "--max-memory", "64"], 2, &["--max-memory", "64 has no unit", "64MiB"]);
    stopped.expect_error(&["serve", "--max-device-memory", "fake:0=1"], 2, &["fake:0: 1 has no unit"]);
    stopped.expect_error(&["cache", "prune", "--unused-for", "7"], 2, &["--unused-for", "in seconds", "7d"]);
}
