"""Processes that are killed while the files of a model come to their node, on a Ray cluster."""

import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("numpy")

from conftest import REPOSITORY  # noqa: E402
from functions_common import stop_process  # noqa: E402
from ray_common import COMMIT, add_model, agent_pid, cluster_of, counts, daemon, nothing_is_kept, until  # noqa: E402

import cotensor.ray  # noqa: E402
from cotensor.ray.daemon import folders_of_models  # noqa: E402

pytestmark = pytest.mark.timeout(240)
# Workers cannot import this module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

NAME = "tests/large"
#: Weights that no graph names, but that are a model's by their name. The file has no blocks on the disk.
LARGE, LARGE_BYTES = "onnx/model.onnx_data_1", 1 << 30


@ray.remote(num_cpus=0.1)
class User:
    def node(self):
        return ray.get_runtime_context().get_node_id()

    def folder(self, name):
        return cotensor.ray.model(name)

    def socket(self):
        return str(cotensor.ray.store().socket)


@pytest.fixture
def cluster(tmp_path):
    head, others = tmp_path / "head", tmp_path / "others"
    source = add_model(REPOSITORY / "fixtures" / "tiny" / "bert", head, NAME)
    with open(source / LARGE, "wb") as large:
        large.truncate(LARGE_BYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(head))
        patch.setenv("HF_HUB_OFFLINE", "1")
        with cluster_of("one", variables={"HF_HUB_CACHE": str(others)}) as cluster:
            cluster.user = User.options(resources={"one": 1}).remote()
            cluster.head, cluster.one = ray.get_runtime_context().get_node_id(), ray.get(cluster.user.node.remote())
            cluster.root = folders_of_models() / f"ray-{cluster.one[:32]}"
            # Hashed before, and the agents of both nodes run.
            cotensor.ray.store()
            ray.get(cluster.user.socket.remote())
            yield cluster
            ray.kill(cluster.user)
            nothing_is_kept()


@contextmanager
def copying(cluster):
    """A block while the bytes of the large file come: its node's agent does not run."""
    pid = agent_pid(cluster.head)
    end, asked = time.monotonic() + 120, cluster.user.folder.remote(NAME)
    while not list(cluster.root.glob(f"partial-*/*/*/*/{LARGE}")):
        assert time.monotonic() < end and not ray.wait([asked], timeout=0)[0], "the copy has not begun"
    stop_process(pid)
    try:
        assert list(cluster.root.glob("partial-*")), "the copy is not over"
        yield asked, pid
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def folder_of(user):
    """The folder; None while an agent or a daemon starts again."""
    try:
        return ray.get(user.folder.remote(NAME))
    except (cotensor.NoDaemonError, cotensor.NotFoundError):
        return None


def is_whole(cluster, folder):
    path = Path(folder)
    assert path.is_relative_to(cluster.root) and path.name == COMMIT and (path / LARGE).stat().st_size == LARGE_BYTES
    return {each.name for each in cluster.root.iterdir()} == {"lock", path.parts[-4]}


def test_a_killed_agent_of_the_files_node_is_named_and_leaves_nothing(cluster):
    with copying(cluster) as (asked, pid):
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(cotensor.IoError, match=f"{NAME} of node {cluster.head}"):
            ray.get(asked)
        assert time.monotonic() - began < 20
    assert [path.name for path in cluster.root.iterdir()] == ["lock"]
    until("the next agent sends them", lambda: folder_of(cluster.user))
    assert is_whole(cluster, folder_of(cluster.user))


def test_a_killed_agent_of_the_copys_node_begins_again(cluster):
    own = agent_pid(cluster.one)
    with copying(cluster) as (asked, _):
        os.kill(own, signal.SIGKILL)
    assert is_whole(cluster, ray.get(asked)) and agent_pid(cluster.one) != own


def test_a_killed_daemon_of_the_copys_node_costs_no_folder(cluster):
    socket = ray.get(cluster.user.socket.remote())
    with copying(cluster) as (asked, _):
        for pid in daemon(socket):
            os.kill(pid, signal.SIGKILL)
    try:
        ray.get(asked)
    except cotensor.NoDaemonError:
        # The call was one of the daemon.
        pass

    until("the folder is found", lambda: folder_of(cluster.user))
    assert is_whole(cluster, folder_of(cluster.user))
    # The agent of before can have answered without a daemon, and ends then. The next one names the models that it is asked for.
    until("the next agent names the model", lambda: folder_of(cluster.user) and counts("models").get(cluster.one) == [NAME])
