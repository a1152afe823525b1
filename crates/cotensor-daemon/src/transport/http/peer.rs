//! The user at the other end of a loopback connection, as the kernel knows it.
//!
//! The result holds only at the time of reading: a closed connection has no owner, and another process may reuse its
//! addresses. It protects connection permits and data that the token protects as well.

use super::socket_diag::{self, Owner};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};

/// The longest row that is read.
const ROW_BYTES_MAX: u64 = 1024;

/// Whether the client at `peer`, connected to `local` on this machine, belongs to this user or to root. False when the
/// system does not know.
pub(crate) fn is_own(peer: SocketAddr, local: SocketAddr) -> bool {
    let owner = match socket_diag::owner(peer, local) {
        Owner::User(user) => Some(user),
        Owner::None => None,
        Owner::Unknown => owner_in_table(peer, local),
    };
    owner.is_some_and(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw())
}

/// The user from the kernel's table of all TCP sockets, which takes the longer the more there are.
fn owner_in_table(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let table = if peer.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    owner(BufReader::new(File::open(table).ok()?), peer, local)
}

/// The user of the socket that is bound to `socket` and connected to `other`.
fn owner(mut rows: impl BufRead, socket: SocketAddr, other: SocketAddr) -> Option<u32> {
    let (socket, other) = (in_table(socket), in_table(other));
    let mut row = String::new();
    while std::io::Read::take(&mut rows, ROW_BYTES_MAX).read_line(&mut row).ok()? > 0 {
        // sl, local_address, rem_address, st, tx_queue:rx_queue, tr:tm->when, retrnsmt, uid, timeout, inode
        let mut columns = row.split_ascii_whitespace().skip(1);
        if columns.next() == Some(&socket) && columns.next() == Some(&other) {
            let uid = columns.nth(4)?.parse().ok()?;
            // A closed socket has no inode, and the kernel writes user 0.
            return columns.nth(1).filter(|&inode| inode != "0").map(|_| uid);
        }
        row.clear();
    }
    None
}

/// An address as the kernel prints it: 32-bit words in hexadecimal as they lie in memory, and the port.
fn in_table(address: SocketAddr) -> String {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    let words: String = match address.ip() {
        IpAddr::V4(ip) => format!("{:08X}", word(&ip.octets())),
        IpAddr::V6(ip) => ip.octets().chunks(4).map(|bytes| format!("{:08X}", word(bytes))).collect(),
    };
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connection_of_this_process_belongs_to_this_user() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (peer, local) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert!(is_own(peer, local), "{address}");
            assert_eq!(owner_in_table(peer, local), Some(rustix::process::geteuid().as_raw()), "{address}");
            let elsewhere = SocketAddr::new(local.ip(), 1);
            assert!(!is_own(peer, elsewhere) && !is_own(elsewhere, local));
        }
    }

    #[test]
    fn owner_is_read_from_the_row_with_both_addresses() {
        // Little-endian rows, as x86-64 and AArch64 print them.
        if cfg!(target_endian = "big") {
            return;
        }
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:09E9 0100007F:C000 01 00000000:00000000 00:00000000 00000000     7        0 1044 1\n\
            \x20  1: 0100007F:C000 0100007F:09E9 01 00000000:00000000 00:00000000 00000000  1001        0 1045 1\n\
            \x20  2: 0100007F:C001 0100007F:09E9 01 short\n\
            \x20  3: 0100007F:C002 0100007F:09E9 05 00000000:00000000 00:00000000 00000000     0        0 0 1\n\
            \x20  4: 0100007F:C003 0100007F:09E9 01 00000000:00000000 00:00000000 00000000     0        0 7 1\n";
        let (daemon, client): (SocketAddr, SocketAddr) =
            ("127.0.0.1:2537".parse().unwrap(), "127.0.0.1:49152".parse().unwrap());
        assert_eq!(owner(table.as_bytes(), client, daemon), Some(1001));
        assert_eq!(owner(table.as_bytes(), daemon, client), Some(7));
        for (port, uid) in [(49153, None), (49154, None), (49155, Some(0))] {
            assert_eq!(owner(table.as_bytes(), SocketAddr::new(client.ip(), port), daemon), uid, "{port}");
        }
        assert_eq!(owner(&[b'x'; 100_000][..], client, daemon), None);
    }
}
