//! Opening, joining and listing channels.

use crate::dispatch::{Answer, Caller, NOTHING, Reply};
use cotensor_client::protocol::{ChannelList, ChannelNameParams, Empty, JoinedChannel, OpenChannelParams};
use cotensor_core::{Error, ErrorKind};
use cotensor_memory::ChannelFiles;

fn check_socket(caller: &Caller) -> cotensor_core::Result<()> {
    caller.outbox().map(drop).ok_or_else(|| Error::unsupported("channels are used over the Unix socket"))
}

fn check_writable(caller: &Caller) -> cotensor_core::Result<()> {
    check_socket(caller)?;
    if caller.daemon.config.small_bytes_max == 0 {
        return Err(Error::new(ErrorKind::Refused, "this daemon takes no memory that its producer can write again"));
    }
    Ok(())
}

pub(super) async fn check(caller: Caller, params: OpenChannelParams) -> Answer<Empty> {
    check_writable(&caller)?;
    caller.daemon.channels.check(&caller.daemon.store, &caller.session, &params)?;
    Ok(NOTHING.into())
}

pub(super) async fn open(mut caller: Caller, params: OpenChannelParams) -> Answer<Empty> {
    check_writable(&caller)?;
    let (memory, ring) = (caller.fd()?, caller.fd()?);
    let pages = (0..params.readers).map(|_| caller.fd()).collect::<Result<_, _>>()?;
    let files = ChannelFiles { memory, ring, pages };
    caller.daemon.channels.open(&caller.daemon.store, &caller.session, params, files)?;
    Ok(NOTHING.into())
}

pub(super) async fn close(caller: Caller, params: ChannelNameParams) -> Answer<Empty> {
    caller.daemon.channels.close(caller.id, &params.name)?;
    Ok(NOTHING.into())
}

pub(super) async fn join(caller: Caller, params: ChannelNameParams) -> Answer<JoinedChannel> {
    check_socket(&caller)?;
    let joined = caller.daemon.channels.join(&params.name)?;
    // A client of another PID namespace would take the number for another process.
    let pid = joined.pid.filter(|_| caller.pid.is_some_and(|pid| pid > 0)).and_then(|pid| pid.try_into().ok());
    Ok(Reply::with_fds(JoinedChannel { channel: joined.info, pid }, joined.fds))
}

pub(super) async fn list(caller: Caller, _: Empty) -> Answer<ChannelList> {
    Ok(ChannelList { channels: caller.daemon.channels.list() }.into())
}
