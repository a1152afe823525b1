//! Which daemon a client finds: the own socket first, then the daemon of a named port, which has to confirm it.

use cotensor_client::{ClientStore, DaemonProgram, PORT, socket_of_port};
use cotensor_core::ErrorKind;
use cotensor_daemon::http::HttpConfig;
use cotensor_daemon::{Config, Embedded, Service};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Runs the test `name` in a process in which a new folder has the default sockets. Returns that folder there, and None here.
fn folder_of(name: &str) -> Option<PathBuf> {
    const VARIABLE: &str = "COTENSOR_RUNTIME_DIR";
    if let Some(folder) = std::env::var_os(VARIABLE) {
        return Some(folder.into());
    }
    let folder = tempfile::tempdir().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args([&format!("discovery::{name}"), "--exact", "--nocapture"]).env(VARIABLE, folder.path());
    let output = test.env_remove("COTENSOR_SOCKET").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    None
}

fn daemon(socket: &Path) -> Embedded {
    Embedded::start(Config { socket: socket.to_path_buf(), ..Config::default() }).unwrap()
}

/// A daemon with HTTP at a free port, and that port.
fn daemon_with_http(socket: &Path) -> (Embedded, u16) {
    let config = Config { socket: socket.to_path_buf(), ..Config::default() };
    let http = HttpConfig { listen: (Ipv4Addr::LOCALHOST, 0).into(), ..HttpConfig::default() };
    let daemon = Embedded::serve(Service { config, http: Some(http) }).unwrap();
    let port = daemon.http().unwrap().port();
    (daemon, port)
}

fn by_port(port: u16) -> cotensor_core::Result<Arc<ClientStore>> {
    ClientStore::builder("test").port(port).connect()
}

/// A program at a port that answers its first request with `answer`.
struct Stranger {
    port: u16,
    thread: JoinHandle<()>,
}

impl Stranger {
    fn answering(answer: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        });
        Self { port, thread }
    }

    /// One that answers as a daemon with this socket.
    fn naming(socket: &Path) -> Self {
        Self::with_protocol(socket, cotensor_client::protocol::PROTOCOL)
    }

    fn with_protocol(socket: &Path, protocol: u32) -> Self {
        let socket = socket.display();
        Self::answering(format!(
            "HTTP/1.1 200 OK\r\n\r\n{{\"status\":\"ok\",\"version\":\"0\",\"protocol\":{protocol},\"socket\":\"{socket}\"}}"
        ))
    }

    fn refused(self) -> cotensor_core::Error {
        let error = by_port(self.port).err().unwrap();
        self.thread.join().unwrap();
        assert!(error.to_string().contains(&self.port.to_string()), "{error}");
        error
    }
}

#[test]
fn own_socket_comes_before_any_port() {
    let Some(folder) = folder_of("own_socket_comes_before_any_port") else { return };
    let default = folder.join("cotensor.sock");
    assert_eq!((socket_of_port(PORT), socket_of_port(2540)), (default.clone(), folder.join("cotensor-2540.sock")));
    let _one = daemon(&default);
    let (_other, port) = daemon_with_http(&folder.join("other.sock"));
    assert_eq!(by_port(PORT).unwrap().socket(), default);
    // The daemon of a port has the port's socket, or HTTP there.
    assert_eq!(by_port(port).unwrap().socket(), folder.join("other.sock"));
    let _own = daemon(&socket_of_port(port));
    assert_eq!(by_port(port).unwrap().socket(), socket_of_port(port));
    // A named socket is the daemon's, whatever the port.
    let named = ClientStore::builder("test").socket(&default).port(port).connect().unwrap();
    assert_eq!(named.socket(), default);
}

#[test]
fn daemon_with_http_elsewhere_is_not_the_one_of_the_port() {
    let Some(folder) = folder_of("daemon_with_http_elsewhere_is_not_the_one_of_the_port") else { return };
    let socket = folder.join("other.sock");
    let (_daemon, port) = daemon_with_http(&socket);
    let error = Stranger::naming(&socket).refused();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.message().contains(&format!("127.0.0.1:{port}")), "{error}");
    drop(_daemon);
    let _without_http = daemon(&socket);
    assert_eq!(Stranger::naming(&socket).refused().kind(), ErrorKind::Conflict);
}

#[test]
fn nothing_is_made_at_a_place_that_a_port_names() {
    let Some(folder) = folder_of("nothing_is_made_at_a_place_that_a_port_names") else { return };
    let place = folder.join("deep/precious.sock");
    let log = folder.join("precious.log");
    std::fs::write(&log, vec![b'x'; 6 << 20]).unwrap();
    // A program that would be started as daemon, if a client started one there.
    let program = DaemonProgram::new("/bin/sh", vec!["-c".into(), "exit 1".into()]);
    for place in [place, folder.join("precious.sock")] {
        let stranger = Stranger::naming(&place);
        let port = stranger.port;
        let error = ClientStore::builder("test").port(port).start(program.clone()).connect().err().unwrap();
        stranger.thread.join().unwrap();
        // The daemon is started at the own socket, and this one ends at its start.
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert_eq!(error.file(), Some(folder.join(format!("cotensor-{port}.log")).as_path()), "{error}");
        assert!(!place.exists() && !place.with_extension("start").exists());
    }
    assert!(!folder.join("deep").exists());
    assert_eq!(std::fs::metadata(&log).unwrap().len(), 6 << 20, "the file has its name and its bytes");
}

#[test]
fn answers_that_are_no_daemons_are_refused() {
    let Some(folder) = folder_of("answers_that_are_no_daemons_are_refused") else { return };
    let socket = folder.join("other.sock");
    let _daemon = daemon(&socket);
    let error = Stranger::with_protocol(&socket, 2).refused();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for body in [
        "",
        "<html>",
        "{\"status\":\"ok\"}",
        "{\"status\":\"ok\",\"protocol\":3}",
        "{\"status\":\"ok\",\"protocol\":3,\"socket\":\"relative.sock\"}",
        "{\"status\":\"no\",\"protocol\":3,\"socket\":\"/x\"}",
    ] {
        let error = Stranger::answering(format!("HTTP/1.1 200 OK\r\n\r\n{body}")).refused();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{body}: {error}");
    }
    for answer in ["", "HTTP/1.1 404 Not Found\r\n\r\n{}", &"x".repeat(100 << 10)] {
        let error = Stranger::answering(answer.to_owned()).refused();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    // No program at the port.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = by_port(port).err().unwrap();
    assert_eq!((error.kind(), error.file()), (ErrorKind::Unreachable, Some(socket_of_port(port).as_path())), "{error}");
}

#[test]
fn silent_program_at_a_port_is_not_waited_for_without_end() {
    let Some(_folder) = folder_of("silent_program_at_a_port_is_not_waited_for_without_end") else { return };
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let error = by_port(port).err().unwrap();
    assert!(error.kind() == ErrorKind::Conflict && error.message().contains("name another port"), "{error}");
    // One that sends a byte now and then does not extend the wait.
    let dripping = std::thread::spawn(move || {
        let (mut stream, _) = silent.accept().unwrap();
        let (mut second, _) = silent.accept().unwrap();
        let _ = stream.write_all(b"H");
        while second.write_all(b"H").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(by_port(port).err().unwrap().kind(), ErrorKind::Conflict);
    dripping.join().unwrap();
}

#[test]
fn socket_with_a_long_path_serves_clients() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("d".repeat(120)).join("cotensor.sock");
    let _daemon = daemon(&socket);
    ClientStore::connect(Some(&socket), "test").unwrap();
    let too_long = folder.path().join("n".repeat(150));
    let error = ClientStore::connect(Some(&too_long), "test").err().unwrap();
    assert_eq!((error.kind(), error.file()), (ErrorKind::Invalid, Some(too_long.as_path())), "{error}");
    assert!(error.message().contains("107"), "{error}");
}
