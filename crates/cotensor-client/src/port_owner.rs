//! The process that listens on a TCP port, for messages.

use std::net::SocketAddr;
use std::path::Path;

/// The state `LISTEN` in the kernel's tables of TCP sockets.
const LISTENING: &str = "0A";
/// The most bytes of a process's name that a message shows.
const NAME_BYTES_MAX: usize = 64;

/// Words for the program that listens on the port of `address`: its process if this user may see it, else its user. `None` if
/// no listener is found.
pub fn port_owner(address: SocketAddr) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let (user, inode) = tables.iter().find_map(|table| listener(table, address.port()))?;
    Some(match process_of(inode) {
        Some((pid, name)) => format!("process {pid} ({name})"),
        None => format!("a program of user {user}"),
    })
}

/// The user and the inode of the socket that listens on a port.
fn listener(table: &str, port: u16) -> Option<(u32, u64)> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state) = (fields.get(1)?, fields.get(3)?);
        let found = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        (found == port && *state == LISTENING).then_some((fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?))
    })
}

/// The process that has a socket open, and its name.
fn process_of(inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|target| target == Path::new(&wanted))
    })?;
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name =
        String::from_utf8_lossy(name.get(..name.len().min(NAME_BYTES_MAX)).unwrap_or_default()).trim().to_owned();
    Some((pid, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn listener_on_a_port_is_named() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let owner = port_owner(address).unwrap();
        assert!(owner.starts_with(&format!("process {} (", std::process::id())), "{owner}");
        drop(socket);
        assert_eq!(port_owner(address), None);
    }
}
