"""Arrays put into a store and read from it: every dtype, shape and stride."""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import Any, Callable, Iterator

import pytest

np = pytest.importorskip("numpy")
hypothesis = pytest.importorskip("hypothesis")

from conftest import serving  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402
from memory_common import mapped_at  # noqa: E402

import cotensor  # noqa: E402

DTYPES = [
    "bool",
    *(f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
]
UNHURRIED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def same(a: Any, b: Any) -> bool:
    """Whether the arrays are bitwise equal, including NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@st.composite
def arrays(draw: Any) -> Any:
    """Arrays of every dtype and order: sliced, transposed, reversed, broadcast."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    array = draw(hnp.arrays(dtype, shape))
    if draw(st.booleans()):
        array = np.asfortranarray(array)
    if array.ndim and draw(st.booleans()):
        array = array[
            tuple(draw(st.sampled_from([slice(None), slice(None, None, -1), slice(1, None, 2)])) for _ in shape)
        ]
    if draw(st.booleans()):
        array = array.transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
    return array


@UNHURRIED
@given(array=arrays())
def test_get_returns_the_put_array(store: cotensor.Store, array: Any) -> None:
    put = store.put("any", array)
    got = store.get("any")
    assert (got.shape, got.dtype, got.nbytes, got.size, got.ndim) == (
        array.shape,
        array.dtype.name,
        array.nbytes if array.ndim == 0 or 0 not in array.strides else array.size * array.itemsize,
        array.size,
        array.ndim,
    )
    assert got.version == put.version and got.id == put.id
    assert same(got.numpy(), np.ascontiguousarray(array).reshape(array.shape))
    assert got.tobytes() == array.tobytes()


@UNHURRIED
@given(array=arrays())
def test_writes_before_publishing_are_visible_afterwards(store: cotensor.Store, array: Any) -> None:
    builder = store.empty("builder", array.shape, array.dtype)
    shown = builder.numpy()
    assert shown.flags.writeable and not np.any(shown)
    shown[...] = array
    published = builder.publish()
    assert builder.published
    assert same(store.get("builder").numpy(), np.ascontiguousarray(array).reshape(array.shape))
    assert published.id == store.get("builder").id
    with pytest.raises(cotensor.ConflictError):
        builder.publish()
    if array.size:
        before = published.tobytes()
        shown.fill(array.dtype.type(not shown.flat[0]))
        assert published.tobytes() == before, "writes after publishing are private to the writer"


@UNHURRIED
@given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6))
def test_views_equal_numpy_slices(store: cotensor.Store, data: Any, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype="int32").reshape(shape)
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=False, allow_ellipsis=True))
    parts = index if isinstance(index, tuple) else (index,)
    tensor = store.put("windows", array)
    if any(isinstance(part, slice) and part.step is not None and part.step < 0 for part in parts):
        with pytest.raises(cotensor.UnsupportedError):
            tensor[index]
        return
    # With an ellipsis numpy returns a view and not a number.
    whole = parts if any(part is Ellipsis for part in parts) else (*parts, ...)
    window, expected = tensor[index], array[whole]
    assert (window.shape, window.nbytes) == (expected.shape, expected.nbytes)
    assert same(window.numpy(), np.ascontiguousarray(expected).reshape(expected.shape))
    if expected.size:
        offset = expected.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        assert window.data_ptr == tensor.data_ptr + offset, "the same memory"


def test_bfloat16_round_trips(store: cotensor.Store) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    array = np.array([[1.5, -2.0, np.inf], [0.0, 3.0e38, 1e-40]], dtype=bfloat16)
    tensor = store.put("bf16", array)
    assert tensor.dtype == "bfloat16"
    shown = tensor.numpy()
    assert shown.dtype == bfloat16 and shown.tobytes() == array.tobytes()
    assert not shown.flags.writeable and shown.ctypes.data == tensor.data_ptr
    with store.empty("bf16", 3, bfloat16) as builder:
        builder.numpy()[:] = array[0]
    assert store.get("bf16").numpy().tolist() == array[0].tolist()


def test_numpy_shows_the_shared_memory_read_only(store: cotensor.Store) -> None:
    tensor = store.put("x", np.arange(12, dtype="float32").reshape(3, 4))
    for shown in (tensor.numpy(), np.asarray(tensor)):
        assert shown.ctypes.data == tensor.data_ptr
        assert not shown.flags.writeable
        with pytest.raises(ValueError):
            shown[0, 0] = 1
        with pytest.raises(ValueError):
            shown.flags.writeable = True
    again = np.asarray(store.get("x")).ctypes.data
    assert mapped_at(again) == mapped_at(tensor.data_ptr), "every get maps the same memory"
    assert again != tensor.data_ptr, "each get has a private mapping"


def test_builder_and_published_tensor_share_memory(store: cotensor.Store) -> None:
    builder = store.empty("placed", 1 << 20, "uint8")
    builder.numpy()[:] = 3
    assert builder.numpy().ctypes.data == builder.data_ptr
    published = builder.publish()
    assert mapped_at(builder.data_ptr) == mapped_at(published.data_ptr) == mapped_at(store.get("placed").data_ptr)


def test_put_copies_once_and_is_counted(store: cotensor.Store) -> None:
    def puts() -> tuple[int, int]:
        copies = {copy["reason"]: copy for copy in store.get_diagnostics()["copies"]}
        found = copies.get("put", {"count": 0, "bytes": 0})
        return found["count"], found["bytes"]

    before = puts()
    store.put("counted", np.zeros((100, 10), "float32")[::-1, ::2])
    after = puts()
    assert (after[0] - before[0], after[1] - before[1]) == (1, 2000)
    with store.empty("uncounted", (100, 10)) as builder:
        builder.numpy()[:] = 1
    assert puts() == after, "writing in place is not a copy"


def test_versions_and_holders(store: cotensor.Store) -> None:
    first = store.put("v", np.array([1]), holder="a", kind="text_embedding", producer="bert")
    second = store.put("v", np.array([2]), holder="b")
    assert second.version == first.version + 1
    assert (first.kind, first.producer, first.holder) == ("text_embedding", "bert", "a")
    again = store.get("v", holder="c")
    assert again.numpy()[0] == 2 and first.numpy()[0] == 1
    assert store.lease(first.id, "d").numpy()[0] == 1
    assert set(again.holders) == {"b", "c"}
    for word in ('"v"', "int64[1]", "8 bytes", "cpu", "b: 1"):
        assert word in repr(again)
    assert "v" in store and "v" in store.names()
    store.remove("v")
    assert "v" not in store and again.numpy()[0] == 2
    with pytest.raises(KeyError):
        store.get("v")


def test_released_tensor_raises_and_its_arrays_stay(store: cotensor.Store) -> None:
    tensor = store.put("r", np.arange(1000), keep=False)
    array = tensor.numpy()
    tensor.release()
    tensor.release()
    assert tensor.released and "released" in repr(tensor)
    for use in ("numpy", "name", "data_ptr", "tobytes", "__getitem__"):
        with pytest.raises(cotensor.ConflictError):
            found = getattr(tensor, use)
            found(0) if use == "__getitem__" else found()
    assert array[999] == 999
    del array, tensor
    gc.collect()
    assert "r" not in store, "without keep, the last release frees the tensor"


def test_identity_depends_on_the_content(store: cotensor.Store) -> None:
    a, b = store.put("a", np.arange(5)), store.put("b", np.arange(5))
    assert a.identity == b.identity != store.put("c", np.arange(5, dtype="int32")).identity
    with pytest.raises(cotensor.UnsupportedError):
        assert a[1:].identity
    provenance = "0" * 63 + "1"
    assert store.put("d", np.arange(5), provenance=provenance).identity != a.identity


def test_as_tensor_finds_published_tensors(store: cotensor.Store) -> None:
    tensor = store.put("known", np.arange(6.0).reshape(2, 3))
    for array in (tensor, tensor.numpy(), np.asarray(tensor)[:, :], np.asarray(tensor)[...]):
        found = cotensor.as_tensor(array)
        assert found is not None and found.id == tensor.id
    for array in (tensor[1:], tensor.numpy()[1:], tensor.numpy().T, tensor.numpy().copy(), np.zeros(3)):
        assert cotensor.as_tensor(array) is None


def test_numbers_and_lists_are_accepted_as_arrays(store: cotensor.Store) -> None:
    assert store.put("n", 3.5).numpy()[()] == 3.5
    assert store.put("n", [[1, 2], [3, 4]]).shape == (2, 2)
    assert store.put("n", np.float32(2)).dtype == "float32"
    assert store.put("n", store.put("m", [1, 2])).numpy().tolist() == [1, 2]


class NotAnArray:
    pass


#: Calls that are refused, with the exception and a word of its message.
WRONG: dict[str, tuple[Callable[[cotensor.Store], object], type[Exception], str]] = {
    "objects": (lambda s: s.put("w", np.array([object()])), cotensor.UnsupportedError, "object"),
    "strings": (lambda s: s.put("w", np.array(["a"])), cotensor.UnsupportedError, "str"),
    "complex": (lambda s: s.put("w", np.zeros(2, "clongdouble")), cotensor.UnsupportedError, "complex256"),
    "records": (lambda s: s.put("w", np.zeros(2, [("a", "i4")])), cotensor.UnsupportedError, "void"),
    "dates": (lambda s: s.put("w", np.zeros(2, "M8[s]")), cotensor.UnsupportedError, "datetime64"),
    "big endian": (lambda s: s.put("w", np.zeros(2, ">f4")), cotensor.UnsupportedError, "big-endian"),
    "masked": (lambda s: s.put("w", np.ma.masked_array([1, 2], [True, False])), cotensor.UnsupportedError, "mask"),
    "ragged": (lambda s: s.put("w", [[1], [1, 2]]), ValueError, "inhomogeneous"),
    "no array": (lambda s: s.put("w", NotAnArray()), cotensor.InvalidError, "NotAnArray"),
    "none": (lambda s: s.put("w", None), cotensor.InvalidError, "NoneType"),
    "text": (lambda s: s.put("w", "text"), cotensor.InvalidError, "str"),
    "no name": (lambda s: s.put("", np.zeros(2)), cotensor.InvalidError, "name"),
    "a long name": (lambda s: s.put("n" * 2000, np.zeros(2)), cotensor.InvalidError, "1024"),
    "a kind": (lambda s: s.put("w", np.zeros(2), kind="soup"), cotensor.InvalidError, "soup"),
    "seconds": (lambda s: s.put("w", np.zeros(2), recompute_seconds=-1), cotensor.InvalidError, "recompute_seconds"),
    "provenance": (lambda s: s.put("w", np.zeros(2), provenance="x"), cotensor.InvalidError, "provenance"),
    "a dtype": (lambda s: s.empty("w", 2, "complex256"), cotensor.InvalidError, "complex256"),
    "a dtype of objects": (lambda s: s.empty("w", 2, np.dtype(object)), cotensor.InvalidError, "object"),
    "a negative shape": (lambda s: s.empty("w", (2, -1)), cotensor.InvalidError, "shape"),
    "a shape of words": (lambda s: s.empty("w", ("a",)), cotensor.InvalidError, "shape"),
    "a shape that overflows": (lambda s: s.empty("w", (2**40, 2**40)), cotensor.InvalidError, "shape"),
    "many dimensions": (lambda s: s.empty("w", (1,) * 100), cotensor.InvalidError, "dimensions"),
    "unknown name": (lambda s: s.get("never put"), cotensor.NotFoundError, "never put"),
    "unknown id": (lambda s: s.lease((2**60, 1)), cotensor.NotFoundError, ""),
    "removing an unknown name": (lambda s: s.remove("never put"), cotensor.NotFoundError, "never put"),
    "outside": (lambda s: s.put("w", [1])[1], IndexError, "outside"),
    "too many indices": (lambda s: s.put("w", [1])[0, 0], cotensor.InvalidError, "indices"),
    "a bool as index": (lambda s: s.put("w", [1, 2])[True], cotensor.InvalidError, "numpy"),
    "another dtype without a copy": (
        lambda s: s.put("w", [1.5]).__array__("int8", copy=False),
        cotensor.InvalidError,
        "copy",
    ),
    "a list as index": (lambda s: s.put("w", [1])[[0]], cotensor.InvalidError, "numpy"),
    "length of a number": (lambda s: len(s.put("w", 1)), TypeError, "no length"),
    "a builder of another shape": (lambda s: s.empty("w", 3).write(np.zeros(2, "float32")), cotensor.InvalidError, "[2]"),
    "a builder of another dtype": (lambda s: s.empty("w", 3).write(np.zeros(3)), cotensor.InvalidError, "float64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_input_is_refused(store: cotensor.Store, case: str) -> None:
    call, error, word = WRONG[case]
    with pytest.raises(error) as raised:
        call(store)
    assert word in str(raised.value)
    if not issubclass(error, cotensor.CotensorError):
        assert type(raised.value) is error
    if case in ("objects", "big endian", "masked", "no array"):
        assert raised.value.field == "array"


def test_block_of_a_builder_publishes_or_raises(store: cotensor.Store) -> None:
    values = np.ones(8 << 20, np.uint8)
    for _ in range(10):
        builder, done = store.empty("written", values.shape, values.dtype), threading.Event()

        def write(builder: cotensor.TensorBuilder = builder, done: threading.Event = done) -> None:
            with contextlib.suppress(cotensor.ConflictError):  # after it was published
                while not done.is_set():
                    builder.write(values)

        thread = threading.Thread(target=write)
        try:
            with builder:
                thread.start()
                with pytest.raises(cotensor.ConflictError, match="another thread writes it"):
                    while True:
                        builder.record_copy(0)
        except cotensor.ConflictError as error:
            assert "another thread writes it" in str(error)
        else:
            assert builder.published
        finally:
            done.set()
            thread.join()
        if not builder.published:
            builder.publish()


def test_discarded_builder_publishes_nothing(store: cotensor.Store) -> None:
    builder = store.empty("given-up", 4)
    array = builder.numpy()
    builder.discard()
    array[:] = 1
    assert array.tolist() == [1, 1, 1, 1] and "given-up" not in store
    with pytest.raises(cotensor.ConflictError):
        builder.publish()
    with pytest.raises(ZeroDivisionError):
        with store.empty("given-up", 4):
            raise ZeroDivisionError
    assert "given-up" not in store
    with store.empty("given-up", 4) as published:
        published.publish()
    assert "given-up" in store


@pytest.fixture(params=["local", "daemon"])
def small_store(request: pytest.FixtureRequest) -> Iterator[cotensor.Store]:
    """A store with a limit of 8 MiB."""
    if request.param == "local":
        yield cotensor.Store(max_memory_mb=8)
        return
    with serving("--max-memory", "8MiB") as daemon, daemon.connect() as opened:
        yield opened


def test_over_budget_error_names_the_holders(small_store: cotensor.Store) -> None:
    held = small_store.put("big", np.zeros(5 << 20, "uint8"), holder="hoarder")
    with pytest.raises(MemoryError) as raised:
        small_store.put("more", np.zeros(5 << 20, "uint8"))
    assert isinstance(raised.value, cotensor.OverBudgetError)
    assert "hoarder holds 5.00 MiB" in str(raised.value)
    assert "more" not in small_store
    held.release()
    small_store.put("more", np.ones(5 << 20, "uint8"))
    assert "big" not in small_store, "tensors without leases are evicted"


def test_configured_sharing_is_enforced() -> None:
    store = cotensor.Store(max_shared_tensor_size=100, allowed_types=["text_embedding"])
    store.put("ok", np.zeros(10, "uint8"), kind="text_embedding")
    with pytest.raises(cotensor.RefusedError):
        store.put("large", np.zeros(101, "uint8"), kind="text_embedding")
    with pytest.raises(PermissionError):
        store.put("kind", np.zeros(10, "uint8"), kind="vision_embedding")
    assert sum(store.get_stats()["refused"].values()) == 2
    with pytest.raises(cotensor.InvalidError):
        cotensor.Store(allowed_types=["soup"])


def test_closed_store_raises_and_its_arrays_stay(daemon: Any) -> None:
    for store in (cotensor.Store(), daemon.connect()):
        tensor = store.put("closing", np.arange(10_000))
        array = tensor.numpy()
        with store:
            pass
        store.close()
        assert "closed" in repr(store)
        for use, arguments in ((store.get, ("closing",)), (store.put, ("x", [1])), (store.names, ())):
            with pytest.raises(cotensor.ConflictError):
                use(*arguments)
        assert array[9999] == 9999, "arrays stay readable"


def test_threads_share_one_store(store: cotensor.Store) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(50):
                store.put(f"thread-{number % 3}", np.full(1000 + i, number * 1000 + i))
                seen = store.get(f"thread-{(number + 1) % 3}").numpy() if i > 30 else np.zeros(1)
                assert (seen == seen[0]).all()
        except cotensor.NotFoundError:
            pass
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_view_as_another_dtype(store: Any) -> None:
    numbers = np.arange(24, dtype=np.float32).reshape(4, 6)
    raw = np.concatenate([np.zeros(8, np.uint8), numbers.view(np.uint8).ravel()])
    whole = store.put("bytes", raw)
    window = whole.view(8, "float32", (4, 6))
    assert np.array_equal(window.numpy(), numbers) and window.dtype == "float32"
    assert window.data_ptr == whole.data_ptr + 8
    turned = whole.view(12, "float32", [6, 3], strides=[1, 6])
    assert np.array_equal(turned.numpy(), numbers.T[:, :3] + 1)
    # The offset of a view of a view is relative to the view.
    row = window[1].view(4, "int32", (2,))
    assert np.array_equal(row.numpy(), numbers[1, 1:3].view(np.int32))
    assert whole.view(raw.size, "float32", (0,)).shape == (0,)
    for wrong, error in (
        ((9, "float32", (1,)), cotensor.InvalidError),
        ((8, "float33", (1,)), cotensor.InvalidError),
        ((8, "float32", (25,)), cotensor.InvalidError),
        ((8, "float32", (4, 6), (7, 1)), cotensor.InvalidError),
        ((1 << 62, "float32", (1,)), cotensor.InvalidError),
        ((raw.size + 4, "float32", (0,)), cotensor.InvalidError),
        ((8, "float32", (2,), (1, 1)), cotensor.InvalidError),
        ((8, "float32", (1 << 40, 1 << 40)), cotensor.InvalidError),
        ((0, "uint8", (1,) * 17), cotensor.InvalidError),
    ):
        with pytest.raises(error):
            whole.view(*wrong)
    with pytest.raises(cotensor.InvalidError):
        window[1].view(16, "float32", (3,))
    with pytest.raises(cotensor.UnsupportedError):
        window[:, 1].view(0, "float32", (1,))
    whole.release()
    with pytest.raises(cotensor.ConflictError):
        whole.view(8, "float32", (1,))


def test_allocation_beyond_the_machine_is_refused(store: Any) -> None:
    for elements in (1 << 40, 1 << 44):
        with pytest.raises(cotensor.CotensorError) as error:
            store.empty("too large", (elements,), "float32")
        assert isinstance(error.value, (cotensor.OverBudgetError, cotensor.InvalidError)), error.value
    assert store.get_stats()["memory_usage_bytes"] < 1 << 30


def test_values_that_are_not_arrays_are_no_target_of_a_copy(store: cotensor.Store) -> None:
    several, one = store.put("several", [1, 2]), store.put("one", 1)
    for tensor, target in [(several, [0, 0]), (several, (0, 0)), (one, 0), (one, np.int64(0))]:
        with pytest.raises(cotensor.InvalidError, match="cannot be written") as raised:
            tensor.copy_to(target)
        assert raised.value.field == "array"
    target = np.zeros((), np.int64)
    one.copy_to(target)
    assert target == 1
