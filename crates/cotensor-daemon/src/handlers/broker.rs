//! `broker.*`: the memory of devices on which several programs compute.

use crate::dispatch::{Answer, Caller, NOTHING};
use crate::state::broker::DeviceProgram;
use cotensor_client::protocol::{DeviceList, DeviceShareParams, Empty, JoinDeviceParams, ReportDeviceParams};
use cotensor_core::Error;
use std::sync::Arc;

pub(super) async fn join(caller: Caller, params: JoinDeviceParams) -> Answer<DeviceShareParams> {
    if caller.outbox().is_none() {
        return Err(Error::unsupported("devices are shared over the Unix socket"));
    }
    let program = Arc::clone(&caller.session) as Arc<dyn DeviceProgram>;
    let (share, answer) = caller.daemon.broker.join(&program, params)?;
    caller.lock().shares.push(share);
    Ok(answer.into())
}

pub(super) async fn report(caller: Caller, params: ReportDeviceParams) -> Answer<Empty> {
    caller.daemon.broker.report(caller.id, &params)?;
    Ok(NOTHING.into())
}

pub(super) async fn acknowledge(caller: Caller, params: DeviceShareParams) -> Answer<Empty> {
    caller.daemon.broker.acknowledge(caller.id, &params)?;
    Ok(NOTHING.into())
}

pub(super) async fn list(caller: Caller, _: Empty) -> Answer<DeviceList> {
    Ok(DeviceList { devices: caller.daemon.broker.list() }.into())
}
