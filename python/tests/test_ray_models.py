"""Models, tensors and groups that are found by name on other nodes of a Ray cluster."""

import os
import signal
import sys

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from ray_common import cluster_of, counts, nothing_is_kept, until  # noqa: E402

import cotensor.ray  # noqa: E402
import cotensor.torch  # noqa: E402
from cotensor import ConflictError, InvalidError, NotFoundError, OverBudgetError  # noqa: E402
from cotensor.ray.peers import running_agent  # noqa: E402

pytestmark = pytest.mark.timeout(180)
# Workers cannot import this module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def cluster():
    with cluster_of("one", "two") as cluster:
        yield cluster


def model(seed):
    torch.manual_seed(seed)
    last = torch.nn.Linear(512, 3, dtype=torch.bfloat16)
    return torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512), last)


@ray.remote(num_cpus=0.1)
class User:
    """A process that uses models."""

    def pid(self):
        return os.getpid()

    def node(self):
        return ray.get_runtime_context().get_node_id()

    def publish(self, name, seed):
        return cotensor.torch.publish(model(seed), name, cotensor.ray.store()).nbytes

    def attach(self, name, **options):
        with cotensor.torch.on_meta():
            self.model = model(0)
        done = cotensor.torch.attach(self.model, name, cotensor.ray.store(), **options)
        return done.nbytes, {key: value.clone() for key, value in self.model.state_dict().items()}

    def weight(self):
        return self.model[0].weight.detach().numpy()[0, 0].item()

    def get(self, name):
        tensor = cotensor.ray.get(name)
        with pytest.raises(ValueError):
            next(iter((tensor.members() or {"": tensor}).values())).numpy().setflags(write=True)
        members = {key: (str(one.dtype), one.tobytes()) for key, one in tensor.members().items()}
        return tensor.kind, tensor.producer, tensor.metadata, tensor.shape, members or tensor.tobytes()

    def remove(self, *names):
        self.model = None
        for name in names:
            cotensor.ray.store().remove(name, missing_ok=True)


@pytest.fixture
def users(cluster):
    """Makes processes on nodes."""
    made = []

    def start(*resources):
        new = [User.options(resources={resource: 1}).remote() for resource in resources]
        made.extend(new)
        return new if len(new) > 1 else new[0]

    yield start
    for user in made:
        ray.kill(user)
    # At the origin first: an agent copies no newer version then.
    names = ("m", "plain", "group")
    for name in names:
        cotensor.ray.store().remove(name, missing_ok=True)
    cleaning = [User.options(resources={resource: 1}).remote() for resource in ("one", "two")]
    ray.get([user.remove.remote(*names) for user in cleaning])
    nothing_is_kept()


def test_model_is_attached_elsewhere_with_one_transfer_for_all_processes(users):
    published = model(1)
    nbytes = cotensor.torch.publish(published, "m", cotensor.ray.store()).nbytes
    before = sum(counts("sent_bytes").values())
    processes = users("one", "one", "one", "two")
    expected = published.state_dict()
    for found, state in ray.get([process.attach.remote("m") for process in processes]):
        assert found == nbytes and list(state) == list(expected)
        assert all(state[key].dtype == one.dtype and torch.equal(state[key], one) for key, one in expected.items())
    # The second node's copy can come from the first one's. The largest tensor of each result comes here.
    sent = 2 * nbytes + 4 * published[0].weight.nbytes
    until("all is counted that was sent, once for each node", lambda: sum(counts("sent_bytes").values()) - before == sent)
    names = counts("names")
    assert [names[ray.get(process.node.remote())] for process in processes] == [["m"]] * 4


def test_tensors_and_groups_keep_what_belongs_to_them(users):
    store = cotensor.ray.store()
    members = {"codes": np.arange(1000, dtype="u1"), "scales": np.ones((10, 3), "f4")}
    store.put("plain", np.ones((4, 5), "f8"), kind="text_embedding", producer="p", metadata={"a": [1]})
    store.put_group("group", members, producer="q", metadata={"bits": 2})
    user = users("one")
    kind, producer, metadata, shape, value = ray.get(user.get.remote("plain"))
    assert (kind, producer, metadata, shape) == ("text_embedding", "p", {"a": [1]}, (4, 5)) and value == np.ones((4, 5)).tobytes()
    _, producer, metadata, _, value = ray.get(user.get.remote("group"))
    assert (producer, metadata) == ("q", {"bits": 2})
    assert value == {key: (str(one.dtype), one.tobytes()) for key, one in members.items()}
    with pytest.raises(NotFoundError, match="no node has a tensor 'nothing'"):
        cotensor.ray.get("nothing")


def test_a_name_is_found_while_the_agent_of_its_node_is_started_again(users):
    user = users("one")
    for number in range(2):
        cotensor.ray.store().put("plain", np.full(1000, number, "f8"))
        # The first name starts the agent of the user's node.
        if number:
            ray.kill(running_agent(ray.get_runtime_context().get_node_id()), no_restart=False)
        *_, value = ray.get(user.get.remote("plain"))
        assert value == np.full(1000, number, "f8").tobytes()
        cotensor.ray.store().remove("plain")
        ray.get(user.remove.remote("plain"))


def test_two_models_of_one_name_are_refused(users):
    one, two = users("one", "two")
    ray.get([one.publish.remote("m", 1), two.publish.remote("m", 1)])
    assert cotensor.ray.get("m").nbytes
    cotensor.ray.store().remove("m")
    cotensor.torch.publish(torch.nn.Linear(2, 2), "m", cotensor.ray.store())
    three = users("one")
    ray.get(one.remove.remote("m"))
    with pytest.raises(ConflictError, match="m: node .* and node .* have published different tensors"):
        ray.get(three.attach.remote("m"))
    # The own node's is the nearest.
    cotensor.ray.get("m")
    with pytest.raises(InvalidError):
        cotensor.torch.attach(model(1), "m", cotensor.ray.store())


def test_newer_version_replaces_a_copy_that_is_used(users):
    store = cotensor.ray.store()
    first, second = model(1), model(2)
    cotensor.torch.publish(first, "m", store)
    one, two = users("one", "two")
    ray.get([one.attach.remote("m", follow=True), two.attach.remote("m")])
    ray.get(two.remove.remote("m"))
    ray.get(two.get.remote("m"))
    cotensor.torch.publish(second, "m", store)
    node, unused = ray.get([one.node.remote(), two.node.remote()])
    until("the unused copy is freed", lambda: "m" not in counts("names")[unused])
    again = users("one")
    weight = second[0].weight[0, 0].item()

    def is_new():
        ray.get(again.attach.remote("m"))
        return ray.get(again.weight.remote()) == weight

    until("the used copy is the new version", is_new)
    assert counts("names")[node] == ["m"]


def test_shared_weights_loads_on_one_node(users, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=500
    )
    transformers.BertModel(config).save_pretrained(tmp_path)

    def load(folder):
        import transformers

        import cotensor.torch

        with cotensor.torch.shared_weights("m", cotensor.ray.store()):
            model = transformers.AutoModel.from_pretrained(folder)
        return cotensor.torch.attachment(model).nbytes, {key: value.clone() for key, value in model.state_dict().items()}

    nbytes, expected = load(tmp_path)
    own = ray.get_runtime_context().get_node_id()
    before = counts("sent_bytes")[own]
    task = ray.remote(num_cpus=0.1)(load)
    for found, state in ray.get([task.options(resources={"one": 1}).remote(tmp_path) for _ in range(2)]):
        assert found == nbytes and all(torch.equal(state[key], one) for key, one in expected.items())
    assert counts("sent_bytes")[own] - before == nbytes
    # Another origin under the same name.
    config.hidden_act = "relu"
    transformers.BertModel(config).save_pretrained(tmp_path / "other")
    with pytest.raises(ConflictError, match="m has weights of"):
        ray.get(task.options(resources={"two": 1}).remote(tmp_path / "other"))


def test_copy_outlives_its_origin_and_needs_room(users, cluster):
    late = cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"late": 1})
    publisher = User.options(resources={"late": 0.1}).remote()
    ray.get(publisher.publish.remote("m", 3))
    one = users("one")
    ray.get(one.attach.remote("m"))
    os.kill(ray.get(publisher.pid.remote()), signal.SIGKILL)
    cluster.remove_node(late, allow_graceful=False)
    until("the node has ended", lambda: len([node for node in ray.nodes() if node["Alive"]]) == 3)
    two = users("two")
    ray.get(two.attach.remote("m"))
    assert ray.get([user.weight.remote() for user in (one, two)]) == [model(3)[0].weight[0, 0].item()] * 2
    small = cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"small": 1}, memory=2 << 20)
    with pytest.raises(OverBudgetError):
        ray.get(User.options(resources={"small": 0.1}).remote().attach.remote("m"))
    cluster.remove_node(small)
