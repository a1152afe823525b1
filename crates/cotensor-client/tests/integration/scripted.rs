//! A daemon that answers as a test says.

use cotensor_client::protocol as p;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind};
use cotensor_rpc::{self as rpc, Decoder, Frame, Method, send_all};
use serde::Serialize;
use serde_json::Value as Json;
use serde_json::value::{RawValue, to_raw_value};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What the daemon does with a call.
pub(crate) enum Reply {
    Answer(Box<RawValue>),
    Refuse(ErrorKind),
    /// It ends the connection.
    End,
}

impl Reply {
    pub(crate) fn of(result: &impl Serialize) -> Self {
        Self::Answer(to_raw_value(result).unwrap())
    }
}

/// Serves one connection after another, in a thread of its own.
pub(crate) struct Scripted {
    pub(crate) socket: PathBuf,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

#[derive(Default)]
struct State {
    is_stopped: bool,
    current: Option<UnixStream>,
    /// Methods and parameters.
    calls: Vec<(String, Json)>,
}

impl Scripted {
    /// `reply` gets the number of the connection, from 0, the method and the parameters. `session.hello` is answered without it.
    pub(crate) fn start(mut reply: impl FnMut(usize, &str, &Json) -> Reply + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let serving = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            for number in 0.. {
                let connection = listener.accept().unwrap().0;
                {
                    let mut state = lock(&serving);
                    if state.is_stopped {
                        return;
                    }
                    state.current = Some(connection.try_clone().unwrap());
                }
                serve(&connection, &serving, |method, params| reply(number, method, params));
                let _ = connection.shutdown(Shutdown::Both);
            }
        });
        Self { socket, state, thread: Some(thread), _folder: folder }
    }

    /// The parameters of the calls of `M` so far.
    pub(crate) fn calls<M: Method>(&self) -> Vec<M::Params>
    where
        M::Params: serde::de::DeserializeOwned,
    {
        let state = lock(&self.state);
        let of = state.calls.iter().filter(|(method, _)| method == M::NAME);
        of.map(|(_, params)| serde_json::from_value(params.clone()).unwrap()).collect()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.state);
            state.is_stopped = true;
            state.current.iter().for_each(|connection| drop(connection.shutdown(Shutdown::Both)));
        }
        drop(UnixStream::connect(&self.socket));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the thread of the daemon has panicked");
    }
}

/// Answers calls until the connection ends.
fn serve(connection: &UnixStream, state: &Mutex<State>, mut reply: impl FnMut(&str, &Json) -> Reply) {
    let mut decoder = Decoder::default();
    loop {
        let Some(frame) = decoder.take().unwrap() else {
            if decoder.fill(connection.as_fd()).unwrap_or(0) == 0 {
                return;
            }
            continue;
        };
        let rpc::Message::Single(call) = rpc::parse(&frame.body) else { panic!("a call") };
        let params: Json = call.params.map_or(Json::Null, |params| serde_json::from_str(params.get()).unwrap());
        lock(state).calls.push((call.method.clone(), params.clone()));
        // Notifications get no answer.
        let Some(id) = call.id else { continue };
        let reply = if call.method == p::Hello::NAME { Reply::of(&hello()) } else { reply(&call.method, &params) };
        let outcome = match reply {
            Reply::Answer(result) => Ok(result),
            Reply::Refuse(kind) => Err(rpc::to_object(&Error::new(kind, "refused by the test"))),
            Reply::End => return,
        };
        let body = serde_json::to_vec(&rpc::Response::new(id, outcome)).unwrap();
        // The client may have ended the connection.
        let _ = send_all(connection.as_fd(), &Frame::new(body));
    }
}

fn hello() -> p::HelloResult {
    p::HelloResult {
        pid: None,
        protocol: p::PROTOCOL,
        version: String::new(),
        session: 1,
        token: "token".to_owned(),
        epoch: 1,
        index_slots: 0,
        small_bytes_max: 256 << 10,
        block_bytes_max: 0,
        sharing: p::Sharing { enable_shared_tensors: true, allowed_types: None, max_shared_tensor_size_bytes: None },
        resumed: Vec::new(),
        tickets: Vec::new(),
        shares: Vec::new(),
        locked: false,
    }
}
