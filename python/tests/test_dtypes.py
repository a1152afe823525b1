"""Complex numbers and floats of 8 bits."""

from __future__ import annotations

import math
from typing import Any

import pytest

np = pytest.importorskip("numpy")

import cotensor  # noqa: E402

SMALL = ["float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_round_trip(store: cotensor.Store, dtype: str) -> None:
    array = (np.arange(12) - 5j * np.arange(12)).astype(dtype).reshape(3, 4)
    tensor = store.put("complex", array.T)
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (dtype, (4, 3), array.nbytes)
    assert tensor.numpy().dtype == array.dtype and np.array_equal(tensor.numpy(), array.T)
    assert tensor[1, 2].item() == array[2, 1].item() and isinstance(tensor[1, 2].item(), complex)
    assert np.array_equal(np.asarray(memoryview(tensor)), array.T)
    builder = store.empty("made", (2,), dtype)
    builder.numpy()[:] = [1j, 2]
    assert builder.publish().numpy().tolist() == [1j, 2]
    assert store.empty("named", 1, np.dtype(dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", SMALL)
def test_floats_of_8_bits_round_trip(store: cotensor.Store, dtype: str) -> None:
    kind = getattr(pytest.importorskip("ml_dtypes"), dtype)
    every = np.arange(256, dtype="uint8").view(kind)
    tensor = store.put("small", every.reshape(16, 16))
    assert (tensor.dtype, tensor.nbytes) == (dtype, 256)
    shown = tensor.numpy()
    assert shown.dtype == np.dtype(kind) and shown.tobytes() == every.tobytes()
    for index in range(256):
        found, expected = tensor[index // 16, index % 16].item(), float(every[index])
        assert found == expected or (math.isnan(found) and math.isnan(expected))
        assert math.copysign(1, found) == math.copysign(1, expected) or math.isnan(expected)
    assert store.empty("made", 2, kind).dtype == dtype


@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float8_e8m0fnu", "int4", "longdouble", "datetime64[s]"])
def test_other_dtypes_are_refused_by_name(store: cotensor.Store, dtype: str) -> None:
    ml_dtypes: Any = pytest.importorskip("ml_dtypes")
    array = np.zeros(2, getattr(ml_dtypes, dtype, dtype))
    with pytest.raises(cotensor.UnsupportedError, match=str(array.dtype.name)[:6]):
        store.put("refused", array)
