"""Copies between nodes in network namespaces. They are skipped where a process may not make them."""

import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

sys.path.insert(0, str(Path(__file__).parent.parent / "benches"))
from ray_namespaces import Network, why_not  # noqa: E402

from cotensor.ray import transfer  # noqa: E402

NBYTES = 16 << 20


@pytest.fixture(scope="module", autouse=True)
def permitted():
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


def checks(found):
    return {check for _, check, _ in found}


def test_nodes_pass_a_tensor_on():
    with Network(3, NBYTES, rate=50) as network:
        found = network.copy()
        assert len(checks(found)) == 1 and isinstance(found[0][1], int), found
        # On a machine with other load, a node may also leave a source that is too slow.
        assert [sent > 0 for _, _, sent in found] == [True, True, False]


@pytest.mark.parametrize("delay", [0, 4])
def test_copies_arrive_with_loss_and_delay(delay):
    reason = why_not(delay)
    if reason is not None:
        pytest.skip(reason)
    with Network(2, NBYTES, rate=50, delay=delay, loss=1) as network:
        found = network.copy()
        assert len(checks(found)) == 1 and isinstance(found[0][1], int), found


@pytest.mark.parametrize("how", ["killed", "cut"])
def test_a_node_that_is_lost_while_it_serves_is_replaced(how):
    with Network(3, NBYTES, rate=4) as network:

        def lose():
            time.sleep(1)
            network.processes[1].kill() if how == "killed" else network.cut(1)

        first, *others = network.copy(meanwhile=lose)
        assert isinstance(first[1], str), "it has failed"
        assert len(checks(others)) == 1 and isinstance(others[0][1], int), others


def test_a_node_that_loses_all_sources_has_an_error_in_time():
    with Network(2, NBYTES, rate=4) as network:
        cut = []

        def lose():
            time.sleep(1)
            network.cut(0)
            cut.append(time.monotonic())

        for ended, error, _ in network.copy(meanwhile=lose):
            assert "did not come" in error
            # Sources that say that they wait themselves, too.
            assert transfer.SILENCE_TIMEOUT / 2 < ended - cut[0] < 20
