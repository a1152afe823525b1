"""Tensors of a store in files."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

import cotensor  # noqa: E402


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "complex64", "complex128"])
def test_npy_files_are_those_of_numpy(store: cotensor.Store, tmp_path: Path, dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    tensor, file = store.put("x", array), tmp_path / "x.npy"
    for given, expected in ((tensor, array), (tensor[:, 1, ::2], array[:, 1, ::2]), (array.T, array.T)):
        cotensor.save_file(given, file)
        found = np.load(file)
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    assert list(tmp_path.iterdir()) == [file], "the file is replaced as a whole"


def test_safetensors_files_have_every_tensor(store: cotensor.Store, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    file = str(tmp_path / "x.safetensors")
    group = store.put_group("quantized", {"codes": np.arange(6, dtype="uint8"), "scales": np.ones(2, "float16")})
    big = store.put("big", np.random.default_rng(0).normal(size=(300, 400)))
    cotensor.save_file({"big": big, "row": big[7], "own": [1.5, 2.5], "q": group, "codes": group["codes"]}, file)
    found = safetensors.load_file(file)
    assert set(found) == {"big", "row", "own", "q.codes", "q.scales", "codes"}
    assert np.array_equal(found["big"], big.numpy()) and np.array_equal(found["row"], big.numpy()[7])
    assert found["own"].tolist() == [1.5, 2.5] and found["q.scales"].tolist() == [1.0, 1.0]
    assert found["q.codes"].tolist() == found["codes"].tolist() == list(range(6))
    names = store.names("big")
    cotensor.save_file(store.get_many(names), file)
    assert set(safetensors.load_file(file)) == set(names)


def test_refused_files_leave_nothing(store: cotensor.Store, tmp_path: Path) -> None:
    tensor = store.put("x", np.zeros(2, "complex128"))
    (tmp_path / "kept.safetensors").write_bytes(b"before")
    wrong = {
        "kept.safetensors": ({"x": tensor}, cotensor.UnsupportedError, "complex128"),
        "two.npy": ({"x": tensor, "y": tensor}, cotensor.InvalidError, "more than one"),
        "x.pt": (tensor, cotensor.InvalidError, "x.pt"),
        "absent/x.npy": (tensor, cotensor.NotFoundError, "absent"),
        "keys.safetensors": ({1: tensor}, cotensor.InvalidError, "strings"),
        "object.npy": (object(), cotensor.InvalidError, "object"),
    }
    for name, (tensors, error, message) in wrong.items():
        with pytest.raises(error, match=message):
            cotensor.save_file(tensors, tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["kept.safetensors"]
    assert (tmp_path / "kept.safetensors").read_bytes() == b"before"
