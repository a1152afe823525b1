"""Models that engines read from files, on nodes of a Ray cluster that lack the files."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")

from conftest import REPOSITORY  # noqa: E402
from ray_common import COMMIT, add_model, cluster_of, counts, nothing_is_kept, until  # noqa: E402

import cotensor  # noqa: E402
import cotensor.ray  # noqa: E402
from cotensor import NotFoundError  # noqa: E402
from cotensor._native import model_files  # noqa: E402
from cotensor.pool import ResourcePoolBridgeIntegration  # noqa: E402

pytestmark = pytest.mark.timeout(240)
# Workers cannot import this module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

BERT, NAME, OTHER = REPOSITORY / "fixtures" / "tiny" / "bert", "tests/tiny-bert", "tests/other"
TEXTS = ["gulls", "a crane lifts grain"]


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """The hub's caches of the head and of the other nodes."""
    head, others = tmp_path_factory.mktemp("head"), tmp_path_factory.mktemp("others")
    add_model(BERT, head, NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(head))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield head, others


@pytest.fixture(scope="module")
def cluster(caches):
    with cluster_of("one", "two", variables={"HF_HUB_CACHE": str(caches[1])}) as cluster:
        yield cluster


def answer(name):
    pool = ResourcePoolBridgeIntegration(store=cotensor.ray.store())
    return asyncio.run(pool.get_model("text_embedding", name))(TEXTS[0])["answer"]


@ray.remote(num_cpus=0.1)
class User:
    def node(self):
        return ray.get_runtime_context().get_node_id()

    def embed(self, name):
        self.embedder = cotensor.Embedder(name, store=cotensor.ray.store())
        return self.embedder.embed(TEXTS), self.embedder.model

    def folder(self, name):
        return cotensor.ray.model(name)

    def answer(self, name):
        return answer(name)


@pytest.fixture
def users(cluster):
    made = []

    def start(*resources):
        new = [User.options(resources={resource: 1}).remote() for resource in resources]
        made.extend(new)
        return new if len(new) > 1 else new[0]

    yield start
    for user in made:
        ray.kill(user)
    nothing_is_kept()


def test_files_come_once_for_all_processes_of_a_node(users, caches):
    nbytes = sum(size for _, size, _ in model_files(NAME, "")[1])
    processes = users("one", "one", "one", "two")
    assert counts("sent_bytes") == {}, "nothing uses Cotensor on the node that has the files"
    nodes = ray.get([process.node.remote() for process in processes])
    embedded = ray.get([process.embed.remote(NAME) for process in processes])
    expected = cotensor.Embedder(NAME, store=cotensor.ray.store()).embed(TEXTS)
    folders = []
    for node, (rows, folder) in zip(nodes, embedded):
        assert np.array_equal(rows, expected)
        # Engines know the name by the end of the path.
        assert folder.endswith(f"models--tests--tiny-bert/snapshots/{COMMIT}") and node[:32] in folder
        folders.append(folder)
    assert len(set(folders)) == 2
    assert sum(counts("sent_bytes").values()) == 2 * nbytes, "once for each node"
    for folder in set(folders):
        for path, size, _ in model_files(folder, "")[1]:
            assert (Path(folder) / path).read_bytes() == (BERT / path).read_bytes() and size
    names = counts("models")
    assert [names[node] for node in nodes] == [[NAME]] * 4 and names[ray.get_runtime_context().get_node_id()] == []
    # The next one has it without a transfer, and a pool, too.
    again = users("one")
    assert ray.get(again.folder.remote(NAME)) == folders[0]
    assert ray.get(again.answer.remote(NAME)) == answer(NAME)
    assert sum(counts("sent_bytes").values()) == 2 * nbytes


def test_a_model_that_no_node_has_is_an_error_that_says_so(users, tmp_path):
    user = users("one")
    with pytest.raises(NotFoundError, match="no node of the cluster has the model 'tests/none'.*cotensor pull tests/none"):
        ray.get(user.folder.remote("tests/none"))
    with pytest.raises(NotFoundError, match="no node of the cluster has the model .*missing"):
        ray.get(user.embed.remote(str(tmp_path / "missing")))
    with pytest.raises(cotensor.CotensorError, match="tests/none"):
        ray.get(user.embed.remote("tests/none"))


def test_files_of_the_own_node_are_used_and_conflicts_are_refused(users, caches):
    head, others = caches
    add_model(BERT, head, OTHER)
    on_one = users("one")
    copy = ray.get(on_one.folder.remote(OTHER))
    # Both nodes have this cache.
    own = add_model(BERT, others, OTHER)
    assert ray.get(on_one.folder.remote(OTHER)) == str(own)
    (own / "tokenizer_config.json").write_text("{}")
    assert cotensor.ray.model(OTHER) == str(head / own.relative_to(others))
    shutil.rmtree(own.parents[1])
    assert ray.get(on_one.folder.remote(OTHER)) == copy


def test_a_copy_serves_other_nodes_after_its_origin(users, caches, cluster):
    """The files of the head are gone, and another agent of the node has the copies of the former one."""
    name = "tests/moved"
    origin = add_model(BERT, caches[0], name)
    on_one = users("one")
    folder = ray.get(on_one.folder.remote(name))
    node = ray.get(on_one.node.remote())
    shutil.rmtree(origin.parents[1])
    sent = counts("sent_bytes")[node]
    on_two = users("two")
    assert ray.get(on_two.folder.remote(name)) != folder
    assert counts("sent_bytes")[node] > sent


def test_an_agent_that_ends_leaves_the_folders(users, caches):
    on_one = users("one")
    folder = ray.get(on_one.folder.remote(NAME))
    node = ray.get(on_one.node.remote())
    before = counts("sent_bytes")
    ray.kill(ray.get_actor(node, "cotensor"), no_restart=False)
    until("the agent has started again", lambda: node in counts("models") and counts("models")[node] == [])
    assert ray.get(on_one.folder.remote(NAME)) == folder
    head = ray.get_runtime_context().get_node_id()
    assert counts("sent_bytes")[head] == before[head], "the folder is known by its content"
