"""Arrays keep their memory and contents after their tensors and stores are released."""

from __future__ import annotations

import sys
import threading

import numpy
import pytest

import cotensor


def reuse_freed_memory(store, count=40):
    """Publishes tensors, so that the store reuses the memory of freed ones."""
    for number in range(count):
        store.put(f"other {number}", numpy.full(64, 9, numpy.float32), keep=False)
        store.put(f"large {number % 2}", numpy.full(1 << 20, 9, numpy.float32), keep=False)


@pytest.mark.parametrize("elements", [64, 1 << 20], ids=["small", "large"])
@pytest.mark.parametrize("how", ["release", "with", "dropped"])
def test_numpy_arrays_keep_their_memory(store, elements, how):
    tensor = store.put("x", numpy.full(elements, 7, numpy.float32), keep=False)
    window, whole, again = tensor[1:5].numpy(), tensor.numpy(), numpy.asarray(tensor)
    if how == "release":
        tensor.release()
    elif how == "with":
        with tensor:
            pass
    else:
        del tensor
    reuse_freed_memory(store)
    for array in (window, whole, again):
        assert (array == 7).all()


def test_arrays_outlive_their_store(daemon):
    producer, consumer = daemon.connect(), cotensor.connect(daemon.socket, client="consumer")
    tensor = producer.put("x", numpy.full(64, 7, numpy.float32), keep=False)
    array = consumer.get("x").numpy()
    consumer.close()
    with pytest.raises(cotensor.ConflictError, match="closed"):
        consumer.get("x")
    tensor.release()
    reuse_freed_memory(producer)
    assert (array == 7).all()
    producer.close()


def test_builder_is_readable_while_another_thread_writes_it(store):
    builder = store.empty("x", (1 << 24,))
    source = numpy.ones(1 << 24, numpy.float32)
    started = threading.Event()

    def write():
        started.set()
        builder.write(source)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    started.wait()
    while thread.is_alive():
        assert not builder.published and "unpublished" in repr(builder)
    thread.join()
    assert (builder.publish().numpy() == 1).all()


def test_concurrent_errors_do_not_block_threads(store):
    tensor = store.put("x", numpy.ones(4))
    tensor.release()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def read_released():
        for _ in range(300):
            with pytest.raises(cotensor.ConflictError):
                tensor.name  # noqa: B018

    try:
        threads = [threading.Thread(target=read_released, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(before)


def test_builder_is_written_from_its_own_array(store):
    builder = store.empty("x", (6,))
    builder.numpy()[:] = numpy.arange(6)
    builder.write(builder.numpy()[::-1])
    builder.write(builder.numpy())
    assert list(builder.publish().numpy()) == [5, 4, 3, 2, 1, 0]


def test_asarray_takes_a_dtype_and_a_copy(store):
    tensor = store.put("x", numpy.arange(4, dtype=numpy.float32))
    assert numpy.asarray(tensor, dtype=numpy.float64).dtype == numpy.float64
    copy = numpy.array(tensor)
    copy[0] = 5
    assert tensor.numpy()[0] == 0
