"""Programs that run in the interpreter of one build, by `python programs.py NAME [ARGUMENT...]`.

COTENSOR_SOCKET names their daemon.
"""

from __future__ import annotations

import sys
from typing import Any, Dict

import numpy as np

import cotensor


def arrays() -> Dict[str, Any]:
    """Arrays in slabs and, above 256 KiB, in memory of their own."""
    return {
        "small": np.arange(15, dtype="float32").reshape(3, 5),
        "large": np.arange(600 * 600, dtype="int32").reshape(600, 600),
        "empty": np.zeros((0, 4), "float64"),
        "flags": np.array([True, False, True]),
        "strided": np.arange(24, dtype="int16").reshape(4, 6)[::2, ::3],
    }


def write(prefix: str) -> None:
    with cotensor.connect(client="writer") as store:
        for name, array in arrays().items():
            store.put(prefix + name, array, metadata={"shape": list(array.shape)})
        store.put_group(prefix + "group", {"small": arrays()["small"], "large": arrays()["large"]}, kind="weight")
        with store.empty(prefix + "built", (300, 300), "float64") as built:
            built.numpy()[:] = 0.5
        store.put(prefix + "removed", arrays()["small"])
        del store[prefix + "removed"]


def read(prefix: str) -> None:
    with cotensor.connect(client="reader") as store:
        for name, array in arrays().items():
            tensor = store.get(prefix + name)
            np.testing.assert_array_equal(tensor.numpy(), array)
            assert tensor.numpy().dtype == array.dtype and tensor.metadata == {"shape": list(array.shape)}
        members = store.get(prefix + "group").members()
        np.testing.assert_array_equal(members["large"].numpy(), arrays()["large"])
        np.testing.assert_array_equal(members["small"].numpy(), arrays()["small"])
        assert (store.get(prefix + "built").numpy() == 0.5).all()
        assert store.names(prefix) == sorted(prefix + name for name in [*arrays(), "group", "built"]), store.names(prefix)
        try:
            store.get(prefix + "removed")
        except cotensor.NotFoundError:
            return
        raise AssertionError("a removed tensor can be read")


def publish(name: str, value: str) -> None:
    """Publishes 1 MiB of the number."""
    with cotensor.connect(client="publisher") as store:
        store.put(name, np.full(1 << 18, int(value), "int32"))


def hold(name: str, value: str) -> None:
    """Holds a tensor of `publish` until a line comes. If it has a name, publishes an equal tensor by the same connection."""
    with cotensor.connect(client="holder") as store:
        array = store.get(name).numpy()
        print("holds", flush=True)
        another = sys.stdin.readline().strip()
        assert (array == int(value)).all()
        if another:
            store.put(another, array)


def wait(prefix: str) -> None:
    """Waits for the name `prefix`x, and for a change of it, as `publish` makes both."""
    with cotensor.connect(client="waiter") as store, store.watch(prefix) as changes:
        print("waits", flush=True)
        first = store.wait(prefix + "x", timeout=60)
        change = changes.get(timeout=60)
        assert (change.name, change.version) == (prefix + "x", first.version), change
        print("found", flush=True)
        assert (store.wait(prefix + "x", after=first, timeout=60).numpy() == 2).all()


def compute(key: str) -> None:
    """Claims a result and publishes it when a line comes."""
    with cotensor.connect(client="computer") as store:
        ticket = store.claim(cotensor.content_hash(key), timeout=60)
        assert isinstance(ticket, cotensor.Ticket)
        print("computes", flush=True)
        sys.stdin.readline()
        result = store.empty("result of " + key, (100_000,), "float32")
        result.numpy()[:] = 7
        ticket.publish([result])


def claim(key: str) -> None:
    """Waits for the result of `compute`."""
    with cotensor.connect(client="claimer") as store:
        print("claims", flush=True)
        (result,) = store.claim(cotensor.content_hash(key), timeout=60)
        assert (result.numpy() == 7).all() and result.shape == (100_000,)


def provide() -> None:
    from cotensor.provider import SharedTensorProvider

    provider = SharedTensorProvider(execution_mode="server")

    @provider.share(name="scale")
    def scale(x: Any, factor: float) -> Any:
        return x * factor

    @provider.share(name="same")
    def same(value: Any) -> Any:
        return value

    @provider.share(name="fail")
    def fail() -> None:
        raise ValueError("on purpose")

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, n: int) -> int:
            self.count += n
            return self.count

    provider.share(name="counter", managed=True)(Counter)
    provider.serve()


def call() -> None:
    from cotensor.async_client import AsyncSharedTensorClient
    from cotensor.client import SharedTensorClient
    from cotensor.errors import RemoteError

    with SharedTensorClient(retry_count=0, tensors="numpy") as client:
        for array in arrays().values():
            if array.dtype != bool:
                np.testing.assert_array_equal(client.call_function("scale", [array, 2]), array * 2)
        value = {"list": [1, -2.5, None, "text", True], "bytes": b"\x00\xff", "tuple": (float("inf"), 2), "long": "a" * 100_000}
        assert client.call_function("same", [value]) == value
        with cotensor.connect() as store:
            stored = store.put("argument", arrays()["large"])
            np.testing.assert_array_equal(client.call_function("scale", [stored, 3]), arrays()["large"] * 3)
        try:
            client.call_function("fail")
        except RemoteError as error:
            assert isinstance(error, ValueError) and error.message == "on purpose", error
        else:
            raise AssertionError("the function's error did not arrive")
        with client.call_function("counter") as counter:
            assert [counter.add(2), counter.add(3)] == [2, 5]
    with AsyncSharedTensorClient(retry_count=0, tensors="numpy") as client:
        task = client.submit_task("scale", [arrays()["small"], 4])
        np.testing.assert_array_equal(client.get_task_result(task), arrays()["small"] * 4)
        assert client.get_task_status(task) == "completed"


def embed(model: str, *texts: str) -> None:
    """Prints the embeddings of the daemon's model process."""
    embedder = cotensor.Embedder(model, store=cotensor.connect(client="embedder"))
    print(embedder.embed(list(texts)).tolist())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
