//! A small hub on a loopback port, for tests: it serves repositories with the routes of the hub, and can fail in the
//! ways in which servers and networks fail.

mod answer;
mod state;

pub use state::{Fault, Request};

use cotensor_core::sync::lock;
use sha1::{Digest as _, Sha1};
use state::{Repository, State, hex};
use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// A running server. It ends when it is dropped.
pub struct HubServer {
    address: String,
    state: Arc<Mutex<State>>,
    /// Dropped to end all answers that wait.
    ends: Option<Sender<()>>,
    listener: Option<JoinHandle<()>>,
}

impl HubServer {
    /// Starts a server without repositories.
    ///
    /// # Panics
    /// When no loopback port is free.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = format!("http://{}", listener.local_addr().expect("a bound socket"));
        let state = Arc::<Mutex<State>>::default();
        let (ends, ended) = mpsc::channel();
        let served = Arc::clone(&state);
        let listener = std::thread::spawn(move || accept(&listener, &served, ended));
        Self { address, state, ends: Some(ends), listener: Some(listener) }
    }

    /// The address, for `HF_ENDPOINT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The address by another host name.
    pub fn other_host(&self) -> String {
        self.address.replace("127.0.0.1", "localhost")
    }

    /// Serves the files as the repository `name`, at a commit that their contents determine. Returns the commit.
    pub fn serve(&self, name: &str, files: impl IntoIterator<Item = (String, Vec<u8>)>) -> String {
        let files: BTreeMap<_, _> = files.into_iter().map(|(path, bytes)| (path, Arc::new(bytes))).collect();
        let mut hash = Sha1::new();
        for (path, bytes) in &files {
            hash.update(path);
            hash.update(bytes.as_slice());
        }
        let commit = hex(&hash.finalize());
        self.state().repositories.insert(name.to_owned(), Repository { commit: commit.clone(), files });
        commit
    }

    /// As [`serve`](Self::serve), with the files of a folder and its subfolders.
    ///
    /// # Panics
    /// When the folder cannot be read.
    pub fn serve_folder(&self, name: &str, folder: &Path) -> String {
        self.serve(name, files_of(folder))
    }

    /// Answers the next `count` requests whose path contains `part` with a fault; all of them if `count` is 0.
    pub fn fail(&self, part: &str, count: usize, fault: Fault) {
        self.state().faults.push((part.to_owned(), count, fault));
    }

    /// Ends all faults.
    pub fn recover(&self) {
        self.state().faults.clear();
    }

    /// The requests since the last call.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state().requests)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        drop(self.ends.take());
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address.trim_start_matches("http://")));
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// The files of a folder and its subfolders, by their paths.
///
/// # Panics
/// When the folder cannot be read.
pub fn files_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("a path in the folder").to_string_lossy().into_owned();
                files.insert(name, std::fs::read(&path).expect("a file"));
            }
        }
    }
    files
}

fn accept(listener: &TcpListener, state: &Arc<Mutex<State>>, ended: Receiver<()>) {
    let ended = Arc::new(Mutex::new(ended));
    let mut answers = Vec::new();
    for connection in listener.incoming().flatten() {
        if is_over(&ended) {
            break;
        }
        let (state, ended) = (Arc::clone(state), Arc::clone(&ended));
        // A client that goes away ends its answer.
        answers.push(std::thread::spawn(move || drop(answer::answer(connection, &state, &ended))));
    }
    answers.into_iter().for_each(|answer| drop(answer.join()));
}

fn is_over(ended: &Mutex<Receiver<()>>) -> bool {
    let ended = lock(ended);
    matches!(ended.try_recv(), Err(mpsc::TryRecvError::Disconnected))
}
