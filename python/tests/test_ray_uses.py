"""Other uses of Ray: Ray Client, ray.data, async actors; and several versions, and errors, on one node of this machine."""

import asyncio
import os
import socket
import subprocess
import sys
import textwrap

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")

from ray.cluster_utils import Cluster  # noqa: E402
from test_ray_cluster import COUNT, NODE, counts, nothing_is_kept  # noqa: E402

import cotensor  # noqa: E402
import cotensor.ray  # noqa: E402
from cotensor.ray.agent import running_agent  # noqa: E402

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_AUTH_MODE"] = "disabled"
    # Ray's server of clients starts processes by fork while its threads use gRPC. On a busy machine, gRPC's handlers of fork
    # can abort the new process ("Check failed: next_worker->state == KICKED").
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    options = {**NODE, "include_dashboard": False}
    if has("grpc"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            options["ray_client_server_port"] = free.getsockname()[1]
    cluster = Cluster(initialize_head=True, head_node_args=options)
    cluster.client = f"ray://127.0.0.1:{options.get('ray_client_server_port')}"
    cotensor.ray.init(cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def has(module):
    try:
        __import__(module)
    except ImportError:
        return False
    return True


@ray.remote(num_cpus=0.1)
class Worker:
    def make(self, version=None):
        if version is not None:
            cotensor.ray.serialization.__version__ = version
        return {"x": np.ones(COUNT, "f4")}

    def total(self, value):
        return float(value["x"].sum())

    def break_opening(self):
        def own(self, handle):
            raise cotensor.NotFoundError("broken by the test")

        cotensor.ray.process.Process._own = own

    def expect_agent(self, version):
        cotensor.ray.process.__version__ = version
        cotensor.ray.store()


@ray.remote(num_cpus=0.1)
class Async:
    async def make(self):
        return {"x": np.ones(COUNT, "f4")}

    async def total(self, value):
        await asyncio.sleep(0)
        return float(value["x"].sum())

    async def total_inside(self, values):
        return float((await values[0])["x"].sum())


def test_async_actors_send_and_open_handles(cluster):
    one, other = Async.remote(), Async.remote()
    made = [one.make.remote() for _ in range(8)]
    assert ray.get([other.total.remote(value) for value in made]) == [COUNT] * 8
    assert sum(counts("kept")) == 8
    assert ray.get(other.total_inside.remote(made[:1])) == COUNT
    del made
    nothing_is_kept()


def test_a_tensor_that_cannot_be_opened_is_released(cluster):
    worker = Worker.remote()
    made = ray.put({"x": np.ones(COUNT, "f4")})
    ray.get(worker.break_opening.remote())
    with pytest.raises(Exception, match="broken by the test"):
        ray.get(worker.total.remote(made))
    del made
    # The worker lives, and has nothing to do.
    nothing_is_kept()
    ray.kill(worker)


def test_other_versions_of_cotensor_are_named(cluster):
    worker = Worker.remote()
    made = worker.make.remote("0.0.1")
    expected = f"of Cotensor 0.0.1 cannot be opened by Cotensor {cotensor.__version__} on node .*: install one version"
    # Not here: pytest keeps errors that are logged.
    with pytest.raises(Exception, match=expected):
        ray.get(Worker.remote().total.remote(made))
    with pytest.raises(Exception, match=f"has Cotensor {cotensor.__version__}, and this process 0.0.2: use one version"):
        ray.get(Worker.remote().expect_agent.remote("0.0.2"))
    assert ray.get(running_agent(ray.get_runtime_context().get_node_id()).version.remote()) == cotensor.__version__
    del made
    nothing_is_kept()


def test_other_versions_of_ray_are_refused_by_ray(cluster):
    done = run("import ray, cotensor.ray, sys; ray.__version__ = '2.59.0'; cotensor.ray.init(sys.argv[1])", cluster.address)
    assert done.returncode != 0 and "RuntimeError: Version mismatch" in done.stderr


def run(program, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_actors_and_tasks_alone_can_have_the_runtime_environment(cluster):
    done = run(
        """
        import sys, numpy as np, ray, cotensor.ray
        ray.init(sys.argv[1], log_to_driver=False)
        cotensor.ray.setup()

        @ray.remote(num_cpus=0.1)
        def make(count):
            return np.ones(count, "f4")

        @ray.remote(num_cpus=0.1)
        class Maker:
            def make(self, count):
                return np.ones(count, "f4")

        def kept():
            return sum(one.get("kept", 0) for one in cotensor.ray.status().values())

        held = []
        for env, added in (({}, 0), (cotensor.ray.runtime_env({"env_vars": {"A": "1"}}), 1)):
            maker = Maker.options(runtime_env=env).remote()
            for function in (maker.make, make.options(runtime_env=env)):
                before, made = kept(), function.remote(1 << 18)
                ray.wait([made])
                assert kept() == before + added, (env, before, kept())
                assert ray.get(made).sum() == 1 << 18
                held.append(made)
        """,
        cluster.address,
    )
    assert done.returncode == 0, done.stderr
    nothing_is_kept()


def test_programs_of_ray_client_run_as_without_cotensor(cluster):
    pytest.importorskip("grpc")
    done = run(
        """
        import sys, numpy as np, ray, cotensor, cotensor.ray
        cotensor.ray.init(sys.argv[1], log_to_driver=False)

        @ray.remote(num_cpus=0.1)
        class Worker:
            def make(self):
                return {"x": np.ones(1 << 18, "f4")}

            def total(self, value):
                return float(value["x"].sum())

            def is_set_up(self):
                return "cotensor.ray" in sys.modules

        worker = Worker.remote()
        print("set up:", ray.get(worker.is_set_up.remote()))
        assert ray.get(worker.total.remote({"x": np.ones(1 << 18, "f4")})) == 1 << 18
        made = worker.make.remote()
        assert ray.get(worker.total.remote(made)) == 1 << 18
        assert ray.get(made)["x"].sum() == 1 << 18
        try:
            cotensor.ray.store()
        except cotensor.UnsupportedError as error:
            print(error)
        """,
        cluster.client,
    )
    assert done.returncode == 0, done.stderr
    assert "set up: True" in done.stdout and "is on no node: call this in a task or an actor" in done.stdout
    nothing_is_kept()


def test_batches_of_ray_data_are_as_without_cotensor(cluster):
    pytest.importorskip("pyarrow")
    import ray.data

    batches = ray.data.from_numpy([np.full((256, 1024), number, "f4") for number in range(4)])
    doubled = batches.map_batches(lambda batch: {"data": batch["data"] * 2}, batch_format="numpy")
    assert sum(float(batch["data"].sum()) for batch in doubled.iter_batches()) == 2 * 256 * 1024 * (1 + 2 + 3)
