"""Nested state dicts: checkpoints with the state of an optimizer."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from conftest import local_store, serving  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402
from cotensor import _native  # noqa: E402

store = local_store()


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if type(left) is not type(right) and not (isinstance(left, dict) and isinstance(right, dict)):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


def trained() -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_training_continues_in_another_process_store() -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": float("inf")}
    with serving() as daemon, daemon.connect() as writer, daemon.connect() as reader:
        ct.publish_state_dict(state, "checkpoint", writer)
        published = copy.deepcopy(state)
        found = ct.state_dict("checkpoint", reader)
        assert same(found, published)
        other, other_optimizer = trained()
        other.load_state_dict(found["model"], assign=True)
        other_optimizer = torch.optim.Adam(other.parameters(), lr=1.0)
        other_optimizer.load_state_dict(found["optimizer"])
        data = torch.randn(5, 4)
        for each, step in ((model, optimizer), (other, other_optimizer)):
            each(data).square().mean().backward()
            step.step()
        assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters()))
        # A step writes private pages, and no other reader sees them.
        part, fresh = trained()[0], ct.state_dict("checkpoint", reader)
        assert same(fresh, published)
        ct.attach(part, "checkpoint", reader, prefix="model.")
        assert same(dict(part.state_dict()), dict(fresh["model"]))


@pytest.mark.parametrize(
    "state",
    [
        {},
        [],
        {"a": {"b": torch.ones(2)}, "a.b": torch.zeros(3)},
        [torch.ones(1), (1, 2.5, "x", None, True), {0: "int", "0": "str", True: 1, None: [[]]}],
        {"nan": math.nan, "big": 1 << 80, "negative": -math.inf, "tiny": 5e-324, "text": "é\u2028"},
        {"shared": [torch.arange(3)] * 2},
        {3: torch.ones(1)},
    ],
    ids=str,
)
def test_structures_round_trip(store: cotensor.Store, state: Any) -> None:
    ct.publish_state_dict(state, "x", store)
    assert same(ct.state_dict("x", store), state)


def test_flat_state_dict_stays_a_dict_of_tensors(store: cotensor.Store) -> None:
    flat = {"a": torch.ones(2), "b.c": torch.zeros(1)}
    ct.publish_state_dict(flat, "x", store)
    assert same(ct.state_dict("x", store), flat)


def test_values_of_other_types_are_refused_with_their_path(store: cotensor.Store) -> None:
    itself: list[Any] = []
    itself.append(itself)
    wrong = {
        "optimizer.groups.1.lr": ({"optimizer": {"groups": [1, {"lr": object()}]}}, cotensor.UnsupportedError),
        "a": ({"a": {1.5: 2}}, cotensor.UnsupportedError),
        "levels": (itself, cotensor.InvalidError),
        "state dict": (3, cotensor.InvalidError),
        "sparse": ({"x": [torch.eye(2).to_sparse()]}, cotensor.UnsupportedError),
    }
    for message, (state, error) in wrong.items():
        with pytest.raises(error, match=message):
            ct.publish_state_dict(state, "refused", store)
        assert "refused" not in store
    with pytest.raises(cotensor.InvalidError, match="publish_state_dict"):
        ct.publish({"a": torch.ones(1)}, "refused", store)


@pytest.mark.parametrize(
    "structure",
    [
        1,
        ["tensor", "missing"],
        ["tensor", ["x"]],
        ["list", 3],
        ["dict", [["key"]]],
        ["dict", [[{}, ["value", 1]]]],
        ["value", {}],
        ["float", "1e999"],
        ["other", []],
        ["value"],
        {"dict": []},
    ],
    ids=str,
)
def test_damaged_structures_are_refused(store: cotensor.Store, structure: Any) -> None:
    header = _native.encode_manifest("", [], [], json.dumps({"structure": structure}))
    builder = store.empty("damaged", (len(header),), "uint8")
    builder.torch().copy_(torch.frombuffer(bytearray(header), dtype=torch.uint8))
    builder.publish()
    with pytest.raises(cotensor.CorruptError, match="damaged"):
        ct.state_dict("damaged", store)


def test_deep_structure_is_refused(store: cotensor.Store) -> None:
    structure: Any = ["value", 1]
    for _ in range(200):
        structure = ["list", [structure]]
    test_damaged_structures_are_refused(store, structure)
