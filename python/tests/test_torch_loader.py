"""Tensors of a store in the workers of a DataLoader."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from first_week_common import check_pair  # noqa: E402

import cotensor  # noqa: E402


class Rows(torch.utils.data.Dataset):
    """The rows of a tensor of the daemon. Workers receive a handle."""

    def __init__(self, rows: cotensor.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index].torch().clone(), self.rows.private_bytes


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dataset_of_a_store_in_workers(daemon: Any, method: str) -> None:
    with daemon.connect() as store:
        want = torch.arange(40_000, dtype=torch.float32).reshape(8, 5000)
        dataset = Rows(store.put("rows", want))
        loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context=method)
        batches = list(loader)
        assert torch.equal(torch.cat([rows for rows, _ in batches]), want)
        assert not any(written.any() for _, written in batches)


def test_data_loader_of_the_first_week_prints_the_same(daemon: Any) -> None:
    check_pair("data_loader.py", 4, daemon)
