"""Complex numbers and floats of 8 bits as torch tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from conftest import local_store  # noqa: E402

import cotensor  # noqa: E402

store = local_store()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits_round_trip(store: cotensor.Store, name: str) -> None:
    dtype = getattr(torch, name)
    values = torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 16)
    for given in (values, values.t(), values[::2, 1::3]):
        tensor = store.put("x", given)
        shown = tensor.torch()
        assert (tensor.dtype, shown.dtype, shown.shape) == (name, dtype, given.shape)
        assert torch.equal(shown.view(torch.uint8), given.contiguous().view(torch.uint8))
    assert tensor.to(torch.float32).dtype == torch.float32
    assert shown.data_ptr() == tensor.torch().data_ptr(), "no copy"
    builder = store.empty("made", (4,), dtype)
    builder.torch().copy_(torch.ones(4))
    assert builder.publish().to(torch.float32).tolist() == [1.0] * 4


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_round_trip(store: cotensor.Store, dtype: torch.dtype) -> None:
    values = torch.randn(3, 4, dtype=dtype)
    for given in (values, values.t(), values.conj(), values[1:, ::2], torch.view_as_real(values).mul(2)):
        tensor = store.put("x", given)
        assert torch.equal(tensor.torch(), given)
    assert store.put("x", values.imag).torch().equal(values.imag)
    assert cotensor.as_tensor(store.put("y", values).torch()).dtype == str(dtype).removeprefix("torch.")
