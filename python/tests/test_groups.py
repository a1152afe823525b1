"""Groups: several arrays under one name."""

from __future__ import annotations

import gc
import pickle
from typing import Any, Dict

import pytest

np = pytest.importorskip("numpy")

from functions_common import providing  # noqa: E402

import cotensor  # noqa: E402
from cotensor.client import SharedTensorClient  # noqa: E402


def quantized(fill: int = 1) -> Dict[str, Any]:
    return {
        "codes": np.full((3, 5), fill, np.uint8),
        "empty": np.zeros((0, 2), np.float32),
        "scales": np.arange(6, dtype=np.float16).reshape(2, 3).T,
        "zero": np.int64(7) * np.ones((), np.int64),
    }


def is_equal(tensor: cotensor.Tensor, arrays: Dict[str, Any]) -> bool:
    members = tensor.members()
    pairs = zip(members.values(), arrays.values())
    return list(members) == list(arrays) and all(
        member.numpy().dtype == array.dtype and np.array_equal(member.numpy(), array) for member, array in pairs
    )


def test_group_is_one_tensor(store: cotensor.Store) -> None:
    arrays = quantized()
    made = store.put_group("one", arrays, kind="weight", producer="p")
    found = store.get("one")
    assert is_equal(made, arrays) and is_equal(found, arrays)
    assert (found.kind, found.producer, found.dtype, found.ndim) == ("weight", "p", "uint8", 1)
    assert [name for name in store.names() if "codes" in name or "scales" in name] == []
    assert found["scales"].shape == (3, 2) and found["scales"][1:, 0].numpy().tolist() == [1.0, 2.0]
    assert found["codes"].data_ptr == found.data_ptr and found["scales"].data_ptr % 64 == 0
    assert "group of 4" in repr(found) and "view of" in repr(found["codes"])
    listed = {tensor["name"]: tensor["member_count"] for tensor in store.get_diagnostics()["tensors"]}
    assert listed["one"] == 4
    assert made.identity == found.identity != store.put_group("other", quantized(2)).identity


def test_member_keeps_the_version_of_its_group(store: cotensor.Store) -> None:
    codes = store.put_group("versions", quantized(1), keep=False)["codes"]
    array = codes.numpy()
    del codes
    second = store.put_group("versions", {"codes": np.full((2, 2), 2, np.uint8)}, keep=False)
    assert second.version == 2 and (array == 1).all() and list(store.get("versions").members()) == ["codes"]
    del second, array
    gc.collect()
    with pytest.raises(cotensor.NotFoundError):
        store.get("versions")


def test_plain_tensors_and_views_have_no_members(store: cotensor.Store) -> None:
    plain, group = store.put("plain", np.zeros(4)), store.put_group("group", quantized())
    assert plain.members() == {} and group["codes"].members() == {}
    with pytest.raises(cotensor.NotFoundError, match="not a group"):
        plain["codes"]
    with pytest.raises(KeyError, match="the members are codes, empty, scales, zero"):
        group["bias"]
    with pytest.raises(cotensor.InvalidError, match="a view has no members"):
        group["codes"]["codes"]


def test_wrong_members_raise(store: cotensor.Store) -> None:
    for arrays in ([np.zeros(1)], {1: np.zeros(1)}, None):
        with pytest.raises(cotensor.InvalidError, match="mapping of strings to arrays") as raised:
            store.put_group("wrong", arrays)
        assert raised.value.field == "arrays"
    with pytest.raises(cotensor.InvalidError) as raised:
        store.put_group("wrong", {})
    assert raised.value.field == "members"
    with pytest.raises(cotensor.CotensorError) as raised:
        store.put_group("wrong", {"good": np.zeros(1), "bad": np.array(["text"])})
    assert raised.value.field == "bad"
    with pytest.raises(cotensor.InvalidError) as raised:
        store.put_group("wrong", {"": np.zeros(1)})
    assert raised.value.field == ""
    assert "wrong" not in store


def test_pickled_handles_open_groups_and_members(daemon: Any) -> None:
    with daemon.connect() as store:
        group = store.put_group("w", quantized())
        again, codes = pickle.loads(pickle.dumps((group, group["codes"])))
        assert is_equal(again, quantized()) and (codes.numpy() == 1).all()


def test_functions_receive_groups(daemon: Any) -> None:
    echo = "@provider.share(name='groups.sum')\ndef add(w):\n    return [int(m.numpy().sum()) for m in w.members().values()]\n"
    with providing(daemon.socket, echo, 'tensors="cotensor"'), daemon.connect() as store:
        # Of the caller's own connection, of another connection, and of a local store.
        with SharedTensorClient(socket=daemon.socket) as client:
            for other in (client.store, store, cotensor.Store()):
                group = other.put_group("argument", {"a": np.full(3, 2, np.uint8), "b": np.arange(4)})
                assert client.call_function("groups.sum", [group]) == [6, 6]


def test_torch_shows_members() -> None:
    torch = pytest.importorskip("torch")
    group = cotensor.Store().put_group("w", {"a": torch.ones(2, 3, dtype=torch.bfloat16), "b": torch.arange(4)})
    assert group["a"].torch().dtype == torch.bfloat16 and group["b"].torch().tolist() == [0, 1, 2, 3]
    group["b"].torch().fill_(9)
    assert group["b"].tobytes() == torch.arange(4).numpy().tobytes(), "a write in place stays private"
