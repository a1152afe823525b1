"""The sharing manager: holders, views, reports, limits, logging."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import re
from typing import Any, Iterator

import pytest

np = pytest.importorskip("numpy")

from conftest import serving  # noqa: E402
from memory_common import mapped_at  # noqa: E402

import cotensor  # noqa: E402
from cotensor.sharing import SharedTensor, TensorSharingManager  # noqa: E402


@pytest.fixture(params=["local", "daemon"])
def manager(request: pytest.FixtureRequest) -> Iterator[TensorSharingManager]:
    """A manager over a store of each kind, with a limit of 8 MiB."""
    if request.param == "local":
        yield TensorSharingManager(max_memory_mb=8)
        return
    with serving("--max-memory", "8MiB") as daemon, daemon.connect() as store:
        yield TensorSharingManager(store=store)


def test_producer_writes_until_another_model_acquires(manager: TensorSharingManager) -> None:
    tensor = manager.register_shared_tensor(
        "bert_embedding", [1, 768], storage_type="cpu", producer_model="bert", consumer_models=["t5", "llama"]
    )
    assert (tensor.shape, tensor.dtype, tensor.nbytes, tensor.kind) == ((1, 768), "float32", 3072, "text_embedding")
    own = tensor.numpy()
    assert own.flags.writeable and not own.any()
    own[:] = 1
    assert np.asarray(tensor).ctypes.data == own.ctypes.data, "every array shows the same memory"
    assert not tensor.published and tensor.holders == {"bert": 1}
    assert manager.analyze_sharing_opportunities() == {"bert_embedding": ["llama", "t5"]}

    seen = manager.get_shared_tensor("bert_embedding", "t5")
    assert seen.published and tensor.published and seen.holders == {"bert": 1, "t5": 1}
    shown = seen.numpy()
    assert not shown.flags.writeable and (shown == 1).all()
    own[:] = 2
    assert (shown == 1).all() and (tensor.numpy() == 1).all(), "writes after publishing are private to the writer"
    assert (own == 2).all()
    with pytest.raises(cotensor.ConflictError):
        tensor.write(own)
    assert manager.analyze_sharing_opportunities() == {"bert_embedding": ["llama"]}


def test_counts_are_per_model() -> None:
    tensor = SharedTensor(name="embedding", shape=[1, 768], dtype="float32", storage_type="cpu", producer_model="bert")
    tensor.acquire("t5")
    tensor.acquire("t5")
    assert tensor.get_reference_count() == tensor.getReferenceCount() == 3
    assert tensor.holders == {"bert": 1, "t5": 2}
    with pytest.raises(cotensor.ConflictError):
        tensor.release("llama")
    tensor.release("t5")
    tensor.release("t5")
    with pytest.raises(cotensor.ConflictError):
        tensor.release("t5")
    assert not tensor.freed
    tensor.release("bert")
    assert tensor.freed and tensor.get_reference_count() == 0
    for use in (lambda: tensor.acquire("t5"), lambda: tensor.numpy(), lambda: tensor.create_view("v", [0, 0], [1, 1])):
        with pytest.raises(cotensor.NotFoundError):
            use()


def test_views_share_and_keep_the_memory() -> None:
    tensor = SharedTensor("x", [4, 6], "int32", "cpu", "a")
    view = tensor.create_view("rows", offset=[1, 2], size=[2, 3])
    inner = view.create_view("cell", [1, 1], [1, 1])
    own = tensor.numpy()
    own[2, 3] = 42
    assert inner.numpy().tolist() == [[42]], "a view shows the producer's writes"
    assert view.numpy().ctypes.data == own.ctypes.data + 4 * (6 + 2)
    assert not view.numpy().flags.writeable
    assert (view.name, view.parent_name, view.shape, view.nbytes) == ("rows", "x", (2, 3), 24)
    tensor.acquire("b")
    own[:] = 7
    assert inner.numpy().tolist() == [[42]]
    published = tensor.numpy()
    inode, offset = mapped_at(published.ctypes.data)
    shown = view.numpy()
    assert mapped_at(shown.ctypes.data) == (inode, offset + 4 * (6 + 2)), "the same memory"
    for offset, size in (([3, 0], [2, 6]), ([0], [1]), ([0, 7], [1, 0]), ([0, 0], [5, 1])):
        with pytest.raises(cotensor.InvalidError):
            tensor.create_view("out", offset, size)
    del published, own, shown
    gc.collect()
    tensor.release("a")
    tensor.release("b")
    view.release()
    assert not tensor.freed, "a view keeps the tensor"
    array = inner.numpy()
    inner.release()
    gc.collect()
    assert not tensor.freed and array.tolist() == [[42]], "an array of a view keeps the tensor"
    with pytest.raises(cotensor.ConflictError):
        inner.numpy()
    del array
    gc.collect()
    assert tensor.freed


def test_array_outlives_its_tensor_object(manager: TensorSharingManager) -> None:
    tensor = manager.register_shared_tensor("x", 1 << 20, producer_model="a", dtype="uint8")
    array = tensor.numpy()
    array[:] = 5
    assert manager.release_model_tensors("a") == 1
    assert manager.optimize_memory_usage()["freed_tensors_count"] == 0
    with pytest.raises(cotensor.ConflictError):
        manager.register_shared_tensor("x", 4, producer_model="b")
    assert manager.get_shared_tensor("x", "b").numpy().sum() == 5 << 20
    manager.release_model_tensors("b")
    del array
    gc.collect()
    report = manager.optimize_memory_usage()
    assert report["freed_tensors"] == ["x"] and report["current_memory_bytes"] == 0
    with pytest.raises(KeyError):
        manager.get_shared_tensor("x", "b")


def test_reports_have_the_documented_keys(manager: TensorSharingManager) -> None:
    manager.register_shared_tensor("held", [256], producer_model="a", dtype="float32").acquire("b")
    manager.register_shared_tensor("free", [512], producer_model="a", consumer_models=["c"], dtype="float16")
    manager.get_shared_tensor("free", "a")
    with pytest.raises(cotensor.NotFoundError):
        manager.get_shared_tensor("never", "b")
    stats = manager.get_stats()
    assert {
        "total_tensors", "total_models", "memory_usage_bytes", "memory_usage_mb", "cache_hits", "cache_misses",
        "hit_rate", "models", "sharing_opportunities",
    } <= set(stats)  # fmt: skip
    assert stats["total_tensors"] == 2 and {"a", "b"} <= set(stats["models"])
    assert stats["cache_hits"] >= 1 and stats["cache_misses"] >= 1
    assert stats["hit_rate"] == stats["cache_hits"] / (stats["cache_hits"] + stats["cache_misses"])
    assert manager.get_tensor_memory_usage("held") == 1024
    assert manager.get_model_memory_usage("a") == 2048 and manager.get_model_memory_usage("b") == 1024
    found = manager.get_optimization_recommendations()
    assert set(found) == {
        "largest_tensors", "low_reference_tensors", "sharing_opportunities", "total_memory_mb", "potential_savings_mb",
        "cache_efficiency",
    }  # fmt: skip
    assert found["sharing_opportunities"] == {"free": ["c"]} and found["cache_efficiency"] == stats["hit_rate"]
    manager.release_model_tensors("a")
    report = manager.optimize_memory_usage()
    assert set(report) == {
        "initial_memory_bytes", "current_memory_bytes", "freed_memory_bytes", "freed_tensors_count", "freed_tensors",
        "memory_reduction_percent", "remaining_tensor_count",
    }  # fmt: skip
    assert report["freed_tensors"] == ["free"] and report["remaining_tensor_count"] == 1
    names = {tensor["name"]: tensor for tensor in manager.get_diagnostics()["tensors"]}
    assert "held" in names and {"holders", "bytes", "device", "age_seconds", "hits"} <= set(names["held"])


def test_memory_limit_is_enforced(manager: TensorSharingManager) -> None:
    manager.register_shared_tensor("a", 5 << 20, producer_model="m", dtype="uint8")
    with pytest.raises(MemoryError) as raised:
        manager.register_shared_tensor("b", 5 << 20, producer_model="n", dtype="uint8")
    assert re.search(r"5\.00 MiB do not fit the budget of .*, of which 5\.0\d MiB are in use", str(raised.value))
    manager.get_shared_tensor("a", "reader")
    with pytest.raises(MemoryError) as raised:
        manager.register_shared_tensor("b", 5 << 20, producer_model="n", dtype="uint8")
    assert "m holds" in str(raised.value) or "reader holds" in str(raised.value)
    manager.release_model_tensors("m")
    manager.release_model_tensors("reader")
    manager.register_shared_tensor("b", 5 << 20, producer_model="n", dtype="uint8")


def test_share_between_models_acquires_for_all_or_none(manager: TensorSharingManager) -> None:
    manager.register_shared_tensor("x", [2], producer_model="m")
    with pytest.raises(cotensor.ConflictError):
        manager.share_tensor_between_models("x", "stranger", ["n"])
    shared = manager.share_tensor_between_models("x", "m", ["n", "o"])
    assert shared.holders == {"m": 1, "n": 1, "o": 1}
    view = manager.create_tensor_view("x", "half", [0], [1])
    assert view.shape == (1,)
    for call in (
        lambda: manager.create_tensor_view("y", "v", [0], [1]),
        lambda: manager.share_tensor_between_models("y", "m", ["n"]),
        lambda: manager.get_tensor_memory_usage("y"),
    ):
        with pytest.raises(cotensor.NotFoundError):
            call()
    with pytest.raises(cotensor.ConflictError):
        manager.register_shared_tensor("x", [2], producer_model="m")


@pytest.mark.parametrize(
    ("storage", "error"),
    [("cuda", cotensor.UnsupportedError), ("cuda:1", cotensor.UnsupportedError), ("floppy", cotensor.InvalidError)],
)
def test_other_storage_types_are_refused(manager: TensorSharingManager, storage: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        manager.register_shared_tensor("x", [2], storage_type=storage, producer_model="m")
    assert storage in str(raised.value) and raised.value.field == "storage_type"
    with pytest.raises(error):
        SharedTensor("x", [2], storage_type=storage)


@pytest.mark.parametrize("storage", ["webgpu", "webnn"])
def test_tensor_for_a_browser_is_on_the_cpu_with_the_reason(manager: TensorSharingManager, storage: str) -> None:
    registered = manager.register_shared_tensor("x", [2], storage_type=storage, producer_model="m")
    registered.numpy()[:] = 3
    for tensor in (manager.get_shared_tensor("x", "other"), SharedTensor("x", [2], storage_type=storage)):
        assert tensor.storage_type == "cpu" and "browser" in tensor.skipped[storage]
    assert manager.get_shared_tensor("x", "other").numpy().tolist() == [3, 3]
    assert manager.register_shared_tensor("y", [2], producer_model="m").skipped == {}


def test_limit_of_a_daemon_cannot_be_set_by_a_client(daemon: Any) -> None:
    with daemon.connect() as store, pytest.raises(cotensor.UnsupportedError):
        TensorSharingManager(max_memory_mb=1, store=store)


def test_configuration_keeps_tensors_private() -> None:
    store = cotensor.Store(allowed_types=["text_embedding"])
    manager = TensorSharingManager(store=store)
    assert manager.store is store
    tensor = manager.register_shared_tensor("vit_embedding", [4], producer_model="vit", consumer_models=["clip"])
    assert tensor.private and tensor.kind == "vision_embedding"
    tensor.numpy()[:] = 1
    assert (tensor.numpy() == 1).all()
    with pytest.raises(cotensor.RefusedError):
        manager.get_shared_tensor("vit_embedding", "clip")
    assert sum(manager.get_stats()["refused"].values()) == 1


def test_write_copies_any_layout_and_is_counted(manager: TensorSharingManager) -> None:
    tensor = manager.register_shared_tensor("x", (2, 3), producer_model="m", dtype="int16")
    tensor.write(np.arange(6, dtype="int16").reshape(3, 2).T[:, ::-1])
    assert tensor.numpy().tolist() == [[4, 2, 0], [5, 3, 1]]
    copies = {copy["reason"]: copy for copy in manager.get_diagnostics()["copies"]}
    assert copies["put"]["bytes"] == 12
    for wrong in (np.zeros(6, "int16"), np.zeros((2, 3), "int32")):
        with pytest.raises(cotensor.InvalidError):
            tensor.write(wrong)


def test_verbose_logging_reports_events(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cotensor")
    SharedTensor.setVerboseLogging(True)
    try:
        tensor = SharedTensor("logged", [2], producer_model="a")
        tensor.acquire("b")
        tensor.release("a")
        tensor.release("b")
    finally:
        SharedTensor.set_verbose_logging(False)
    SharedTensor("silent", [2], producer_model="a")
    SharedTensor.set_verbose_logging(False)
    lines = [record.getMessage().split(":")[0] for record in caplog.records]
    assert lines[:3] == ["register logged", "publish logged", "acquire logged"]
    assert lines.count("release logged") == 2 and lines.count("free logged") == 1
    assert not any("silent" in line for line in lines)


def test_diagnostics_list_tensors_of_the_process() -> None:
    tensor = SharedTensor("diagnosed", [3], producer_model="me")
    found = [one for one in SharedTensor.getDiagnostics()["tensors"] if one["name"] == "diagnosed"]
    assert len(found) == 1 and found[0]["memory"] == "unpublished" and found[0]["holders"] == {"me": 1}
    tensor.acquire("you")
    found = [one for one in SharedTensor.get_diagnostics()["tensors"] if one["name"] == "diagnosed"]
    assert found[0]["holders"] == {"me": 1, "you": 1} and found[0]["bytes"] == 12
    for word in ('"diagnosed"', "12 bytes", "cpu", "published", "you: 1"):
        assert word in repr(tensor)


def test_parents_tensors_raise_in_forked_child() -> None:
    manager = TensorSharingManager()
    tensor = manager.register_shared_tensor("x", [1000], producer_model="a")
    tensor.numpy()[:] = 3
    shown = manager.get_shared_tensor("x", "b").numpy()
    child = os.fork()
    if child == 0:
        try:
            assert (shown == 3).all()
            for use in (lambda: manager.get_stats(), lambda: tensor.acquire("c"), lambda: tensor.numpy()):
                try:
                    use()
                except cotensor.ConflictError:
                    continue
                os._exit(2)
            del manager, tensor, shown
            gc.collect()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tensor.holders == {"a": 1, "b": 1} and (shown == 3).all()


def test_tensor_is_published_while_a_forked_child_runs() -> None:
    tensor = SharedTensor("x", [1 << 20], "uint8", producer_model="a")
    own = tensor.numpy()
    own[:] = 1
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        own[0] = 9  # the child keeps the inherited memory until it exits
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    tensor.acquire("b")
    shown = tensor.numpy()
    before = shown.tobytes()
    own[1] = 7
    assert shown.tobytes() == before and shown[1] == 1
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for end in (*ready, *done):
        os.close(end)


def _get(socket: str, results: Any) -> None:
    with cotensor.connect(socket) as store:
        shown = store.get("between").numpy()
        results.put((shown.sum().item(), shown.flags.writeable))


def test_registered_tensor_is_readable_in_another_process(daemon: Any) -> None:
    with daemon.connect() as store:
        manager = TensorSharingManager(store=store)
        manager.register_shared_tensor("between", [1000], producer_model="a").numpy()[:] = 2
        manager.get_shared_tensor("between", "b")
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        child = context.Process(target=_get, args=(str(daemon.socket), results))
        child.start()
        assert results.get(timeout=60) == (2000.0, False)
        child.join()


def test_arrays_stay_when_publishing_fails() -> None:
    with serving() as daemon:
        store = daemon.connect()
        tensor = TensorSharingManager(store=store).register_shared_tensor("x", 100_000, producer_model="a")
        builder = store.empty("y", 100_000)
        arrays = [tensor.numpy(), builder.numpy()]
        for array in arrays:
            array[:] = 1
        daemon.stop()
        with pytest.raises(cotensor.CotensorError):
            tensor.acquire("b")
        with pytest.raises(cotensor.CotensorError):
            builder.publish()
        del tensor, builder
        gc.collect()
        others = [cotensor.Store().put("z", np.zeros(100_000, "float32")) for _ in range(4)]
        for array in arrays:
            assert array.sum() == 100_000
            array[:] = 2
        assert not any(other.numpy().any() for other in others)
        store.close()
