//! Daemon and client where memfds must not be executable, as in sandboxes.

use crate::support::http::{receive, send};
use crate::support::processes::{Processes, content, put};
use cotensor_client::protocol::{HttpListen, HttpListenParams};
use cotensor_memory::testing::refuse_executable_memfds;
use cotensor_store::{Retention, TensorStore};

/// Publishes in a slab, in a memfd and over HTTP, and reads all of it before and after a takeover.
#[test]
fn tensors_are_published_where_executable_memfds_are_refused() {
    if let Err(error) = refuse_executable_memfds() {
        return eprintln!("not tested: no seccomp filter can be set: {error}");
    }
    #[expect(clippy::disallowed_methods, reason = "a memfd that is refused")]
    let refused = rustix::fs::memfd_create("executable", rustix::fs::MemfdFlags::CLOEXEC);
    assert_eq!(refused.err(), Some(rustix::io::Errno::ACCESS));
    let processes = Processes::start();
    let producer = processes.connect("producer");
    let http = producer.request::<HttpListen>(&HttpListenParams::default()).unwrap();
    let token = std::fs::read_to_string(&http.token_file).unwrap();
    let sizes = [100, 1 << 20];
    let _held = sizes.map(|bytes| put(&producer, &format!("put {bytes}"), &content(1, bytes), Retention::WhileLeased));
    for bytes in sizes {
        let request = format!("PUT /tensors/upload%20{bytes}?dtype=uint8&shape={bytes}");
        let answer = receive(send(http.address, &request, token.trim(), "", &content(1, bytes)));
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let assert_all = || {
        let reader = processes.connect("reader");
        for name in ["put", "upload"] {
            for bytes in sizes {
                let found = reader.get(&format!("{name} {bytes}"), &reader.holder("")).unwrap();
                assert_eq!(found.bytes().unwrap(), content(1, bytes), "{name} {bytes}");
            }
        }
    };
    assert_all();
    processes.kill_server();
    assert_all();
}
