//! The owner of one TCP socket, by the kernel's interface for diagnosis (sock_diag(7)). It finds the socket by its
//! addresses, however many sockets there are.

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// `struct nlmsghdr`: length, type, flags, sequence and port.
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_sockid`: ports, addresses, interface and cookie.
const ID_BYTES: usize = 48;
/// `struct inet_diag_req_v2`: family, protocol, extensions, padding and states before the id.
const REQUEST_BYTES: usize = HEADER_BYTES + 8 + ID_BYTES;
/// `struct inet_diag_msg`: four bytes before the id, and five numbers after it.
const ANSWER_BYTES: usize = HEADER_BYTES + 4 + ID_BYTES + 20;
/// The place of the user in an answer: after the id, and three numbers.
const USER_AT: usize = HEADER_BYTES + 4 + ID_BYTES + 12;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// What the kernel answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The socket belongs to this user.
    User(u32),
    /// There is no such socket, or it is closed.
    None,
    /// The kernel or a sandbox has no such interface.
    Unknown,
}

/// The user of the socket that is bound to `socket` and connected to `other`.
pub(super) fn owner(socket: SocketAddr, other: SocketAddr) -> Owner {
    // Without the kernel's module, the answer is that of an unknown socket.
    static WORKS: AtomicBool = AtomicBool::new(false);
    let Some(answer) = ask(&request(socket, other)) else { return Owner::Unknown };
    match read(&answer, socket, other) {
        Owner::User(user) => {
            WORKS.store(true, Ordering::Relaxed);
            Owner::User(user)
        }
        _ if WORKS.load(Ordering::Relaxed) => Owner::None,
        _ => Owner::Unknown,
    }
}

fn ask(request: &[u8]) -> Option<Vec<u8>> {
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG)).ok()?;
    sendto(&socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).ok()?;
    let mut answer = vec![0; 4096];
    // The kernel has answered before the call above returned.
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    answer.truncate(len);
    Some(answer)
}

fn request(socket: SocketAddr, other: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    bytes[HEADER_BYTES] = if socket.is_ipv4() { AF_INET } else { AF_INET6 };
    bytes[HEADER_BYTES + 1] = IPPROTO_TCP;
    // All states.
    bytes[HEADER_BYTES + 4..HEADER_BYTES + 8].fill(0xff);
    bytes[HEADER_BYTES + 8..].copy_from_slice(&id(socket, other));
    bytes
}

/// The id of a connection, for any interface and cookie.
fn id(socket: SocketAddr, other: SocketAddr) -> [u8; ID_BYTES] {
    let mut id = [0; ID_BYTES];
    id[..2].copy_from_slice(&socket.port().to_be_bytes());
    id[2..4].copy_from_slice(&other.port().to_be_bytes());
    let address = |ip: IpAddr, target: &mut [u8]| match ip {
        IpAddr::V4(ip) => target[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => target.copy_from_slice(&ip.octets()),
    };
    address(socket.ip(), &mut id[4..20]);
    address(other.ip(), &mut id[20..36]);
    id[40..].fill(0xff);
    id
}

fn read(answer: &[u8], socket: SocketAddr, other: SocketAddr) -> Owner {
    let number = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    if kind != Some(SOCK_DIAG_BY_FAMILY) || answer.len() < ANSWER_BYTES {
        return if kind == Some(NLMSG_ERROR) { Owner::None } else { Owner::Unknown };
    }
    // Without a connection of these addresses, the kernel answers with a socket that listens at the first one.
    let found = &answer[HEADER_BYTES + 4..];
    if found[..36] != id(socket, other)[..36] {
        return Owner::None;
    }
    match (number(USER_AT), number(USER_AT + 4)) {
        // A closed socket has no inode.
        (Some(user), Some(inode)) if inode != 0 => Owner::User(user),
        _ => Owner::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn owner_of_a_connection_is_found_by_its_addresses() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let own = rustix::process::geteuid().as_raw();
            if owner(socket, other) == Owner::Unknown {
                eprintln!("not tested: the kernel has no sock_diag");
                return;
            }
            assert_eq!(owner(socket, other), Owner::User(own), "{address}");
            let elsewhere = SocketAddr::new(other.ip(), 1);
            assert_eq!(owner(socket, elsewhere), Owner::None);
            // A listener is not a connection.
            assert_eq!(owner(other, elsewhere), Owner::None);
            drop((client, listener));
            assert_eq!(owner(socket, other), Owner::None, "closed");
        }
    }

    #[test]
    fn damaged_answers_have_no_owner() {
        let (socket, other) = ("127.0.0.1:4000".parse().unwrap(), "127.0.0.1:5000".parse().unwrap());
        let mut answer = vec![0; ANSWER_BYTES];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer[HEADER_BYTES + 4..HEADER_BYTES + 4 + ID_BYTES].copy_from_slice(&id(socket, other));
        answer[USER_AT..USER_AT + 4].copy_from_slice(&7_u32.to_ne_bytes());
        assert_eq!(read(&answer, socket, other), Owner::None, "no inode");
        answer[USER_AT + 4] = 1;
        assert_eq!(read(&answer, socket, other), Owner::User(7));
        assert_eq!(read(&answer, other, socket), Owner::None);
        for len in 0..ANSWER_BYTES {
            assert_eq!(read(&answer[..len], socket, other), Owner::Unknown);
        }
    }
}
