//! HTTP requests of another user of this machine, over loopback. Only root can become another user; otherwise these
//! tests print a line and pass.

use cotensor_attacks::{Target, Web, assert_no_secrets, fd_count, until};
use cotensor_client::ClientStore;
use cotensor_client::protocol::PROTOCOL;
use cotensor_core::ErrorKind;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

/// The user id of `nobody`, which every system has.
const OTHER: u32 = 65534;
const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Runs `attack` on a thread of another user; the sockets that it opens are that user's.
fn as_another_user<T: Send>(attack: impl FnOnce() -> T + Send) -> Option<T> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return None;
    }
    let run = || {
        let other = Uid::from_raw(OTHER);
        set_thread_res_uid(other, other, other).unwrap();
        attack()
    };
    std::thread::scope(|scope| Some(scope.spawn(run).join().unwrap()))
}

#[test]
fn closed_connection_of_another_user_cannot_write() {
    let target = Target::start(|_| {});
    let web = Web::start(&target, |_| {});
    assert_eq!(web.request("GET /health HTTP/1.1", &[]).status, 200);
    let open = fd_count();
    // The kernel drops the owner of a closed connection. A second request prevents the daemon from noticing the close
    // before it has answered the first.
    let put =
        "PUT /tensors/secret-large?dtype=uint8&shape=4 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nevil";
    let delete = "DELETE /tensors/secret-small HTTP/1.1\r\nHost: localhost\r\n\r\n";
    as_another_user(|| {
        for _ in 0..50 {
            for attempt in [put, delete] {
                let mut stream = TcpStream::connect(web.address).unwrap();
                stream.write_all(&[attempt.as_bytes(), HEALTH].concat()).unwrap();
            }
        }
    });
    // Connections are accepted in order, so all connections above are accepted; answered ones are closed.
    assert_eq!(web.request("GET /health HTTP/1.1", &[]).status, 200);
    until("all are answered", || fd_count() <= open, || format!("{} descriptors instead of {open}", fd_count()));
    target.assert_serves();
    drop(web);
    target.assert_unharmed();
}

#[test]
fn another_user_cannot_exhaust_the_connections() {
    let target = Target::start(|_| {});
    let web = Web::start(&target, |http| http.untrusted_connections_max = 4);
    let held = as_another_user(|| {
        let asked = (0..300).map(|_| {
            let mut stream = TcpStream::connect(web.address).unwrap();
            let _ = stream.write_all(HEALTH);
            stream
        });
        // Silent connections would wait for a time-out.
        let silent = (0..300).map(|_| TcpStream::connect(web.address).unwrap());
        let mut held: Vec<TcpStream> = asked.chain(silent).collect();
        for stream in &mut held[..300] {
            let mut answer = String::new();
            drop(stream.read_to_string(&mut answer));
            let served = answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close");
            assert!(answer.is_empty() || served || answer.starts_with("HTTP/1.1 503"), "{answer}");
        }
        held
    });
    // All earlier connections are accepted or refused.
    assert_eq!(web.request("GET /metrics HTTP/1.1", &[]).status, 200);
    drop((held, web));
    target.assert_unharmed();
}

#[test]
fn generated_token_is_refused_for_another_user_on_loopback() {
    let target = Target::start(|_| {});
    let web = Web::start(&target, |_| {});
    let attempts = as_another_user(|| {
        ["GET /tensors/secret-small", "DELETE /tensors/secret-small", "GET /metrics"]
            .map(|line| web.request(&format!("{line} HTTP/1.1"), &["Content-Length: 0"]))
    });
    for answer in attempts.into_iter().flatten() {
        assert_eq!(answer.status, 403, "{}", answer.text);
        assert_no_secrets(&answer.text);
    }
    drop(web);
    target.assert_unharmed();
}

#[test]
fn key_for_models_is_refused_for_another_user_on_loopback() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "a-token-for-two-users").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for token_file in [None, Some(file)] {
        let target = Target::start(|_| {});
        let web = Web::start(&target, |http| http.token_file = token_file);
        let key = format!("Authorization: Bearer {}", web.key);
        let ask = |path: &str| web.anonymous(&format!("GET {path} HTTP/1.1"), &[&key]);
        assert_eq!((ask("/v1/models").status, ask("/tensors/secret-small").status), (404, 403), "no models, no access");
        for path in
            ["/v1/models", "/tensors/secret-small", "/v1/../tensors/secret-small", "/v1/..%2ftensors/secret-small"]
        {
            let answer = ask(path);
            assert_no_secrets(&answer.text);
            if let Some(answer) = as_another_user(|| ask(path)) {
                assert_eq!(answer.status, 403, "{path}: {}", answer.text);
            }
        }
        drop(web);
        target.assert_unharmed();
    }
}

#[test]
fn configured_token_is_accepted_for_another_user() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "a-token-for-two-users").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let target = Target::start(|_| {});
    let web = Web::start(&target, |http| http.token_file = Some(file));
    let ask = || web.request("GET /metrics HTTP/1.1", &[]).status;
    assert_eq!((ask(), as_another_user(ask).unwrap_or(200)), (200, 200));
    drop(web);
    target.assert_unharmed();
}

#[test]
fn program_of_another_user_at_a_port_cannot_name_a_socket() {
    let theirs = tempfile::tempdir().unwrap();
    std::fs::set_permissions(theirs.path(), Permissions::from_mode(0o1777)).unwrap();
    let socket = theirs.path().join("cotensor.sock");
    // The kernel keeps the user of a socket from the time when it listens.
    let Some((_listening, web)) =
        as_another_user(|| (UnixListener::bind(&socket).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()))
    else {
        return;
    };
    let port = web.local_addr().unwrap().port();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = web.accept().unwrap();
        drop(stream.read(&mut [0; 4096]));
        let body = format!("{{\"status\":\"ok\",\"protocol\":{PROTOCOL},\"socket\":{socket:?}}}");
        stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{body}").as_bytes()).unwrap();
    });
    let error = ClientStore::builder("victim").port(port).connect().err().unwrap();
    answer.join().unwrap();
    assert!(error.kind() == ErrorKind::Conflict && error.message().contains("another user"), "{error}");
}
