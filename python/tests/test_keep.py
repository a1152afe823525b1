"""``keep`` of new tensors: for ever, not at all, or for a time without holders."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from conftest import Daemon  # noqa: E402
from functions_common import until  # noqa: E402

import cotensor  # noqa: E402


@pytest.mark.parametrize("time", [datetime.timedelta(milliseconds=1), 0.001, np.float32(0.001)])
def test_tensor_that_is_kept_for_a_time_is_freed_by_the_daemon(daemon: Daemon, time: Any) -> None:
    store = daemon.connect()
    store.put("hour", np.zeros(4), keep=3600)
    tensor = store.put("moment", np.zeros(4), keep=time)
    group = store.put_group("group", {"a": np.zeros(4)}, keep=time)
    del tensor, group
    until(lambda: "moment" not in store and "group" not in store)
    assert "hour" in store


def test_store_in_the_process_frees_kept_tensors_when_it_publishes() -> None:
    store = cotensor.Store()
    store.put("moment", np.zeros(4), keep=datetime.timedelta(microseconds=1)).release()
    until(lambda: store.put("other", np.zeros(4)).version > 0 and "moment" not in store)


@pytest.mark.parametrize("keep", [0, -1, float("nan"), float("inf"), datetime.timedelta(-1), "10min", None])
def test_times_that_are_none_are_refused(store: cotensor.Store, keep: Any) -> None:
    with pytest.raises(cotensor.InvalidError, match="keep.*timedelta"):
        store.put("x", np.zeros(4), keep=keep)
