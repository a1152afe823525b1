"""Arrays take few mappings, and the limit of mappings is an error."""

from __future__ import annotations

import numpy
import pytest

import cotensor


def mapping_count() -> int:
    with open("/proc/self/maps") as maps:
        return sum(1 for _ in maps)


def test_arrays_of_small_tensors_share_mappings(daemon):
    producer, consumer = daemon.connect(), cotensor.connect(daemon.socket, client="consumer")
    count = 5000
    tensors = [producer.put(f"x {i}", numpy.full(1024, i, numpy.float32), keep=False) for i in range(count)]
    for store in (producer, consumer):
        before = mapping_count()
        arrays = [store.get(f"x {i}").numpy() for i in range(count)]
        assert mapping_count() - before < 100
        assert all((array == i).all() for i, array in enumerate(arrays))
    del tensors


def test_limit_of_mappings_is_an_error_that_names_the_setting(daemon):
    with open("/proc/sys/vm/max_map_count") as setting:
        limit = int(setting.read())
    if limit > 1 << 18:
        pytest.skip(f"vm.max_map_count is {limit}: too many arrays for a test")
    store = daemon.connect()
    store.put("x", numpy.full(1024, 7, numpy.float32))
    # Each `Tensor` object has pages of its own, so that many of one tensor do not share mappings.
    arrays = []
    with pytest.raises(cotensor.OverBudgetError, match="vm.max_map_count"):
        for _ in range(limit):
            arrays.append(store.get("x").numpy())
    assert len(arrays) > limit / 2
    assert all(array[-1] == 7 for array in arrays)
    del arrays
    assert (store.get("x").numpy() == 7).all()
