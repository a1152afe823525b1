//! The handler of each method.

use super::{blobs, broker, channels, claim, functions, names, notes, report, service, session, tensor};
use crate::dispatch::Methods;
use cotensor_client::protocol as p;

/// Every method of the protocol with its handler.
pub(crate) fn methods() -> Methods {
    let mut methods = Methods::default();
    methods
        .add::<p::Hello, _>(session::hello)
        .add::<p::Ping, _>(session::ping)
        .add::<p::Reserve, _>(tensor::reserve)
        .add::<p::Publish, _>(tensor::publish)
        .add::<p::Discard, _>(tensor::discard)
        .add::<p::OpenSlab, _>(tensor::open_slab)
        .add::<p::CloseSlab, _>(tensor::close_slab)
        .add::<p::PublishSlab, _>(tensor::publish_slab)
        .add::<p::Get, _>(tensor::get)
        .add::<p::Lease, _>(tensor::lease)
        .add::<p::Release, _>(tensor::release)
        .add::<p::SegmentFd, _>(tensor::segment_fd)
        .add::<p::Has, _>(tensor::has)
        .add::<p::Remove, _>(tensor::remove)
        .add::<p::FindName, _>(names::find)
        .add::<p::ListNames, _>(names::list)
        .add::<p::AwaitChanges, _>(names::changes)
        .add::<p::AwaitVersions, _>(names::versions)
        .add::<p::EndVersions, _>(names::end_versions)
        .add::<p::List, _>(report::list)
        .add::<p::ListHolders, _>(report::holders)
        .add::<p::Claim, _>(claim::begin)
        .add::<p::Finish, _>(claim::finish)
        .add::<p::Abandon, _>(claim::abandon)
        .add::<p::IsComputed, _>(claim::is_computed)
        .add::<p::FindClaimHolder, _>(claim::holder)
        .add::<p::PlanUpload, _>(blobs::plan_upload)
        .add::<p::PublishBlobs, _>(blobs::publish)
        .add::<p::DiscardBlobs, _>(blobs::discard)
        .add::<p::GetNote, _>(notes::get)
        .add::<p::PutNote, _>(notes::put)
        .add::<p::CheckChannel, _>(channels::check)
        .add::<p::OpenChannel, _>(channels::open)
        .add::<p::CloseChannel, _>(channels::close)
        .add::<p::JoinChannel, _>(channels::join)
        .add::<p::ListChannels, _>(channels::list)
        .add::<p::RegisterFunction, _>(functions::register)
        .add::<p::UnregisterFunction, _>(functions::unregister)
        .add::<p::LookupFunction, _>(functions::lookup)
        .add::<p::ListFunctions, _>(functions::list)
        .add::<p::ListAllTasks, _>(functions::tasks)
        .add::<p::JoinDevice, _>(broker::join)
        .add::<p::ReportDevice, _>(broker::report)
        .add::<p::AcknowledgeShare, _>(broker::acknowledge)
        .add::<p::ListDevices, _>(broker::list)
        .add::<p::Stats, _>(report::stats)
        .add::<p::Diagnostics, _>(report::diagnostics)
        .add::<p::Recommendations, _>(report::recommendations)
        .add::<p::Optimize, _>(report::optimize)
        .add::<p::RecordCopies, _>(report::record_copies)
        .add::<p::RecordReady, _>(report::record_ready)
        .add::<p::Sessions, _>(service::sessions)
        .add::<p::GetStatus, _>(service::status)
        .add::<p::Stop, _>(service::stop)
        .add::<p::HttpAddress, _>(service::http_address)
        .add::<p::HttpListen, _>(service::listen)
        .add::<p::StartModels, _>(service::start_models)
        .add::<p::OfferLibrary, _>(service::offer_library)
        .add::<p::HttpDashboard, _>(service::open_dashboard)
        .add::<p::Discover, _>(service::discover);
    methods
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_methods_and_handlers_are_the_same() {
        let methods = methods();
        let mut answered: Vec<_> = methods.names().collect();
        let mut described: Vec<_> = p::METHODS.iter().map(|method| method.name).collect();
        answered.sort_unstable();
        described.sort_unstable();
        assert_eq!(answered, described);
    }
}
