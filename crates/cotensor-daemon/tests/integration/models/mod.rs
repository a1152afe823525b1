//! The model process: its start and its end, and the requests that the daemon forwards to it.

mod access;
mod fake;
mod forwarding;

mod lifetime;

use crate::support::http::{Answer, receive, send};
use crate::support::processes::Processes;
use cotensor_client::protocol::{Empty, HttpEndpoint, HttpListen, HttpListenParams, ModelEndpoint, StartModels};
use cotensor_core::Result;
use fake::Fake;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::path::Path;

/// A daemon with a fake model process and with HTTP.
struct Served {
    processes: Processes,
    fake: Fake,
    http: HttpEndpoint,
    token: String,
    /// The token for `/v1`.
    key: String,
}

impl Served {
    fn start() -> Self {
        let mut fake = None;
        let processes = Processes::start_with(|folder| {
            let fake = fake.insert(Fake::in_folder(folder));
            vec![format!("--models={}", fake.program().display()).into()]
        });
        let http = processes.connect("test").request::<HttpListen>(&HttpListenParams::default()).unwrap();
        let (token, key) = (read(&http.token_file), read(http.v1_token_file.as_ref().unwrap()));
        Self { processes, fake: fake.unwrap(), http, token, key }
    }

    fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path}"), "", b"")
    }

    fn request(&self, request: &str, headers: &str, body: &[u8]) -> Answer {
        receive(send(self.http.address, request, &self.key, headers, body))
    }

    /// The process that answers a request.
    fn pid(&self) -> u32 {
        let answer = self.get("/v1/models");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["pid"].as_u64().unwrap() as u32
    }

    fn start_models(&self) -> Result<ModelEndpoint> {
        self.processes.connect("local").request::<StartModels>(&Empty {})
    }
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap().trim().to_owned()
}

/// Whether a thread of a process runs. The state in /proc is the first thread's, which may end before the others.
fn is_running(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // The descriptor is readable after the end of all threads.
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 0
}
