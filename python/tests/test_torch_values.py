"""Tensors of a store as torch tensors of another dtype or device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from conftest import local_store  # noqa: E402

import cotensor  # noqa: E402
from cotensor.sharing import SharedTensor  # noqa: E402

store = local_store()


def test_to_copies_only_where_torch_needs_it(store: cotensor.Store) -> None:
    tensor = store.put("x", torch.arange(6, dtype=torch.float32).reshape(2, 3))
    same = tensor.to("cpu")
    assert same.data_ptr() == tensor.torch().data_ptr()
    half = tensor.to(torch.float16)
    assert half.dtype == torch.float16 and torch.equal(half.float(), same)
    assert tensor.to(device="meta", dtype=torch.float64).is_meta


def test_detached_copy_is_writable_by_torch_alone(store: cotensor.Store) -> None:
    tensor = store.put("x", torch.zeros(4))
    own = tensor.detach()
    tensor.torch().fill_(1.0)
    assert torch.equal(own.torch(), torch.zeros(4))


def test_operators_beside_a_torch_tensor_are_those_of_torch(store: cotensor.Store) -> None:
    values = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    tensor, other = store.put("x", values), torch.full((2, 3), 2.0)
    for got, wanted in [
        (tensor + other, values + other),
        (other - tensor, other - values),
        (tensor == other, values == other),
        (other @ tensor.torch().T, other @ values.T),
        (tensor[0] @ other.T, values[0] @ other.T),
        (divmod(tensor, 2)[1], values.numpy() % 2),
    ]:
        assert isinstance(got, type(wanted)) and (got == wanted).all()
    shared = SharedTensor("beside torch", (2, 3), "float32")
    shared.write(values.numpy())
    shared += other
    assert (shared.numpy() == (values + other).numpy()).all()
    assert torch.tensor(5.0) in tensor and torch.tensor(7.0) not in tensor
    assert tensor.dtype == torch.float32 == tensor.dtype and tensor.dtype != torch.float64
