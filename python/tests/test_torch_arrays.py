"""torch and JAX on shared memory: no copy, and writes in place are private to the writer."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import cotensor  # noqa: E402

PAGE = 4096
DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "uint32", "int32", "float32", "uint64", "int64",
    "float64",
]  # fmt: skip


def copied_on_write(store: cotensor.Store) -> int:
    """The bytes that the store counted as copied on write."""
    gc.collect()
    copies = {copy["reason"]: copy["bytes"] for copy in store.get_diagnostics()["copies"]}
    return int(copies.get("copy on write", 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_round_trips(store: cotensor.Store, dtype: str) -> None:
    array = (torch.arange(24).reshape(2, 3, 4) % 2).to(getattr(torch, dtype))
    tensor = store.put("t", array)
    assert tensor.dtype == dtype and tensor.shape == (2, 3, 4)
    for shown in (tensor.torch(), torch.from_dlpack(tensor), torch.utils.dlpack.from_dlpack(tensor)):
        assert shown.dtype == array.dtype and torch.equal(shown, array)
    with store.empty("t", (4,), array.dtype) as builder:
        builder.torch()[:] = array[0, 0]
    assert torch.equal(store.get("t").torch(), array[0, 0])


def test_put_accepts_every_layout(store: cotensor.Store) -> None:
    base = torch.arange(60.0).reshape(3, 4, 5)
    for array in (
        base.transpose(0, 2), base[:, ::2], base[1:, 1:, 1:], base.expand(2, 3, 4, 5), base[0, 0, 0], base[:0], base.mT,
        base.to(memory_format=torch.contiguous_format), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ):  # fmt: skip
        tensor = store.put("l", array)
        assert tensor.shape == tuple(array.shape) and torch.equal(tensor.torch(), array)


def test_writes_in_place_are_local_and_counted(store: cotensor.Store) -> None:
    before = copied_on_write(store)
    store.put("w", torch.zeros(64, PAGE // 4))
    mine, others = store.get("w"), store.get("w")
    array = mine.torch()
    assert mine.private_bytes == 0
    array[3] += 1
    array[60].fill_(2)
    assert array[3, 0] == 1 and array[60, 5] == 2 and mine.torch()[3, 0] == 1, "arrays of one tensor object share writes"
    assert not others.numpy().any() and not mine.numpy().any() and not others.torch().any(), "writes are private"
    assert not store.get("w").numpy().any()
    assert mine.private_bytes in (2 * PAGE, 3 * PAGE, 4 * PAGE)
    expected = mine.private_bytes
    assert others.private_bytes == 0
    assert cotensor.as_tensor(array) is None, "a written array differs from the tensor"
    del mine, array
    assert copied_on_write(store) - before == expected


def test_torch_views_are_found_by_as_tensor(store: cotensor.Store) -> None:
    tensor = store.put("k", torch.arange(6.0).reshape(2, 3))
    array = tensor.torch()
    for same in (array, array.detach(), array.view(2, 3), array[:]):
        found = cotensor.as_tensor(same)
        assert found is not None and found.id == tensor.id
    for other in (array[0], array.t(), array.clone(), array.view(3, 2)):
        assert cotensor.as_tensor(other) is None


def test_arrays_outlive_tensor_and_store(daemon: Any) -> None:
    for store in (cotensor.Store(), daemon.connect()):
        array = store.put("o", torch.arange(100_000.0), keep=False).torch()
        store.close()
        del store
        gc.collect()
        assert array[99_999] == 99_999
        array += 1
        assert array[99_999] == 100_000


def test_parameters_are_put_without_their_gradients(store: cotensor.Store) -> None:
    parameter = torch.nn.Parameter(torch.arange(3.0))
    assert not store.put("p", parameter).torch().requires_grad
    assert torch.equal(store.get("p").torch(), parameter.detach())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unsupported_torch_tensors_are_refused(store: cotensor.Store) -> None:
    quantized = torch.quantize_per_tensor(torch.arange(4.0), 0.1, 0, torch.qint8)
    ragged = [torch.zeros(2), torch.zeros(3)]
    refused = {
        "sparse": (torch.eye(3).to_sparse(), "torch.sparse_coo; use to_dense()"),
        "csr": (torch.eye(3).to_sparse_csr(), "torch.sparse_csr; use to_dense()"),
        "quantized": (quantized, "dequantize()"),
        "complex of halves": (torch.zeros(2, dtype=torch.complex32), "32 bits"),
        "meta": (torch.zeros(2, device="meta"), "meta"),
        "nested": (torch.nested.nested_tensor(ragged), "to_padded_tensor"),
        "jagged": (torch.nested.nested_tensor(ragged, layout=torch.jagged), "to_padded_tensor"),
        "bits": (torch.zeros(2, dtype=torch.float8_e4m3fnuz), "8 bits"),
    }
    for name, (array, message) in refused.items():
        with pytest.raises(cotensor.UnsupportedError) as raised:
            store.put(name, array)
        assert message in str(raised.value) and raised.value.field == "array", (name, str(raised.value))
        assert name not in store


def test_operators_read_shared_memory(store: cotensor.Store) -> None:
    weight, data = torch.randn(64, 32), torch.randn(5, 32)
    shared = store.put("weight", weight).torch()
    assert torch.equal(torch.nn.functional.linear(data, shared), torch.nn.functional.linear(data, weight))
    with torch.no_grad():
        layer = torch.nn.Linear(32, 64, bias=False)
        layer.weight = torch.nn.Parameter(shared)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(data).sum().backward()
    optimizer.step()
    assert not torch.equal(layer.weight, weight)
    assert np.array_equal(store.get("weight").numpy(), weight.numpy()), "training writes private pages"


def test_jax_arrays_round_trip(store: cotensor.Store) -> None:
    jax = pytest.importorskip("jax")
    array = np.arange(4096, dtype="float32").reshape(64, 64)
    tensor = store.put("j", array)
    shown = tensor.jax()
    assert shown.shape == (64, 64) and np.array_equal(np.asarray(shown), array)
    assert np.array_equal(np.asarray(jax.numpy.from_dlpack(tensor)), array)
    assert np.array_equal(np.asarray(jax.numpy.asarray(tensor)), array)
    put = store.put("j2", shown * 2)
    assert np.array_equal(put.numpy(), array * 2)
    half = store.put("j3", jax.numpy.arange(4, dtype="bfloat16"))
    assert half.dtype == "bfloat16" and half.jax().dtype == jax.numpy.bfloat16


def test_torch_writes_shared_tensors_of_models() -> None:
    from cotensor.sharing import SharedTensor

    tensor = SharedTensor("x", [2, 3], torch.float32, producer_model="a")
    own = tensor.torch()
    own.copy_(torch.arange(6.0).reshape(2, 3))
    assert own.data_ptr() == tensor.numpy().ctypes.data
    tensor.acquire("b")
    own.zero_()
    seen = tensor.torch()
    assert seen.tolist() == [[0, 1, 2], [3, 4, 5]]
    seen += 1
    assert tensor.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    view = tensor.create_view("v", [0, 1], [2, 1])
    assert view.torch().tolist() == [[1], [4]]


def test_negative_bit_is_resolved(store):
    x = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    assert x.is_neg()
    assert store.put("x", x).numpy().tolist() == [-2, -4]


def test_tensor_without_memory_is_refused(store: Any) -> None:
    fake = pytest.importorskip("torch._subclasses").FakeTensorMode
    with fake():
        tensor = torch.zeros(3)
    with pytest.raises(cotensor.UnsupportedError):
        store.put("fake", tensor)


def test_tensor_is_copied_into_an_array_of_the_program(store):
    for length in (1000, 12 << 20):
        source = np.random.default_rng(0).integers(0, 255, (length // 100, 100), "u1")
        tensor = store.put("x", source)
        for target in (np.zeros_like(source), torch.zeros(source.shape, dtype=torch.uint8)):
            tensor.copy_to(target)
            assert np.array_equal(np.asarray(target), source)
        part = np.zeros((source.shape[0], 50), "u1")
        tensor[:, ::2].copy_to(part)
        assert np.array_equal(part, source[:, ::2])
    target = np.zeros_like(source)
    target.flags.writeable = False
    for wrong, why in [
        (target, "cannot be written"),
        (np.zeros(source.T.shape, "u1").T, "side by side"),
        (np.zeros(3, "u1"), "does not fit"),
        (np.zeros(source.shape, "i1"), "does not fit"),
    ]:
        with pytest.raises(cotensor.InvalidError, match=why):
            tensor.copy_to(wrong)
    conjugate = store.put("z", np.ones(3, np.complex64))
    with pytest.raises(cotensor.InvalidError, match="cannot be written"):
        conjugate.copy_to(torch.zeros(3, dtype=torch.complex64).conj())
    with pytest.raises(cotensor.InvalidError, match="cannot be written"):
        tensor.copy_to(tensor.numpy())
