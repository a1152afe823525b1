//! The conformance suite of stores.

use super::fixtures::OpenStore;
use super::{groups, names, room, tensors, versions, work};

type Check = fn(&dyn Fn(u64) -> OpenStore);

/// Runs the conformance suite: `make` gives an empty store with room for that many bytes.
///
/// Releases and results may reach other clients later. A store may put a prefix before the names of holders.
///
/// # Panics
/// When the store breaks a promise of [`Store`].
pub fn conformance(make: &dyn Fn(u64) -> OpenStore) {
    let all: [(&str, Check); 30] = [
        ("published bytes reach other clients", tensors::published_bytes_reach_other_clients),
        ("many tensors are published and leased together", tensors::many_tensors_are_published_and_leased_together),
        ("leased version outlives its successor", tensors::leased_version_outlives_its_successor),
        ("unleased tensor is freed unless cached", tensors::unleased_tensor_is_freed_unless_cached),
        ("publication can expect a version", tensors::publication_can_expect_a_version),
        ("removed name keeps its leases", tensors::removed_name_keeps_its_leases),
        ("views and clones keep the tensor", tensors::views_and_clones_keep_the_tensor),
        ("private tensor is unlisted", tensors::private_tensor_is_unlisted),
        ("invalid requests are refused", tensors::invalid_requests_are_refused),
        ("group is published and leased as one", groups::group_is_published_and_leased_as_one),
        ("leased group outlives its successor", groups::leased_group_outlives_its_successor),
        ("invalid groups are refused", groups::invalid_groups_are_refused),
        ("names are listed in order", names::names_are_listed_in_order),
        ("changes of names reach waiting callers", names::changes_of_names_reach_waiting_callers),
        ("changes are filtered and coalesced", names::changes_are_filtered_and_coalesced),
        ("every version is seen in order", versions::every_version_is_seen_in_order),
        ("slow reader of every version counts drops", versions::slow_reader_of_every_version_counts_drops),
        ("existing versions and removals are queued", versions::existing_versions_and_removals_are_queued),
        ("queued versions are given up for memory", versions::queued_versions_are_given_up_for_memory),
        ("budget is enforced and error names holders", room::budget_is_enforced_and_error_names_holders),
        ("cheapest tensor is evicted first", room::cheapest_tensor_is_evicted_first),
        ("reports count tensors copies and lookups", room::reports_count_tensors_copies_and_lookups),
        ("result is computed once", work::result_is_computed_once),
        ("abandoned claim passes to a waiter", work::abandoned_claim_passes_to_a_waiter),
        ("claim waits at most its timeout", work::claim_waits_at_most_its_timeout),
        (
            "many computations are claimed and published together",
            work::many_computations_are_claimed_and_published_together,
        ),
        ("private or missing results are refused", work::private_or_missing_results_are_refused),
        ("blobs are filled once", work::blobs_are_filled_once),
        ("a blob has the metadata of its first caller", work::blob_has_the_metadata_of_its_first_caller),
        ("failing source publishes nothing", work::failing_source_publishes_nothing),
    ];
    for (what, check) in all {
        println!("{what}");
        check(make);
    }
}
