"""Metadata that a publisher keeps with a tensor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from conftest import command, serving  # noqa: E402

import cotensor  # noqa: E402

METADATA = {"step": 3, "loss": 0.25, "text": "Größe", "nested": {"list": [1, None, True]}, "empty": {}}


def test_metadata_stays_with_its_version(store: cotensor.Store) -> None:
    first = store.put("x", [1.0], metadata=METADATA)
    assert first.metadata == METADATA and list(first.metadata) == list(METADATA)
    builder = store.empty("x", 2, metadata={"step": 4})
    second = builder.publish()
    third = store.put_group("g", {"a": [1]}, metadata={"group": True})
    assert (store["x"].metadata, second.metadata, third.metadata) == ({"step": 4}, {"step": 4}, {"group": True})
    assert first.metadata == METADATA and second[0].metadata == {"step": 4}
    assert first.detach().metadata == METADATA
    store["x"] = [1]
    assert store["x"].metadata == {}


@pytest.mark.parametrize(
    "metadata", [1, [1], "x", {1: 2}, {"x": object()}, {"x": float("nan")}, {"x": "y" * 5000}, {"x": {1, 2}}]
)
def test_metadata_is_a_small_dict_of_json(store: cotensor.Store, metadata: Any) -> None:
    with pytest.raises(cotensor.InvalidError, match="metadata"):
        store.put("refused", [1], metadata=metadata)
    assert "refused" not in store


def test_metadata_outlives_the_server_and_is_in_stat() -> None:
    with serving() as daemon, daemon.connect() as store:
        store.put("x", np.zeros(100_000), metadata=METADATA)
        store.put("small", [1], metadata=METADATA)
        os.kill(daemon.info["server"], signal.SIGKILL)
        with daemon.connect() as other:
            assert other["x"].metadata == METADATA and other["small"].metadata == METADATA
        stat = [*command(), "stat", "x", "--socket", str(daemon.socket)]
        listed = json.loads(subprocess.run([*stat, "--json"], capture_output=True, check=True).stdout)
        assert listed["tensors"][0]["versions"][0]["metadata"] == METADATA
        assert '"step":3' in subprocess.run(stat, capture_output=True, check=True, text=True).stdout


def test_metadata_is_spilled_and_restored_with_its_tensor(tmp_path: Any) -> None:
    with serving("--max-memory", "4MiB", "--spill", str(tmp_path / "spill")) as daemon, daemon.connect() as store:
        for number in range(5):
            store.put(f"{number}", np.zeros(1 << 20, "uint8"), metadata={"number": number}).release()
        assert store.get_stats()["spilled_now"] > 0
        assert len(store) == 5 and "0" in store
        assert [store[f"{number}"].metadata["number"] for number in range(5)] == list(range(5))


def test_metadata_counts_in_the_budget() -> None:
    with serving() as daemon, daemon.connect() as store:

        def counted() -> int:
            return int(store.get_stats()["metadata_bytes"])

        before = counted()
        store["a"] = [1]
        plain = counted() - before
        store.put("b", [1], metadata={"x": "y" * 1000})
        assert counted() - before - plain >= plain + 1000
