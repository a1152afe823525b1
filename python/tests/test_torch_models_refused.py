"""Modules and models that cannot be published or attached are refused without an effect."""

from __future__ import annotations

import gc
import json
import os
import struct
from pathlib import Path
from typing import Any, Dict

import pytest

torch = pytest.importorskip("torch")

from modules_common import same, state  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402
from cotensor.torch.weights import manifest  # noqa: E402


def test_tensors_that_do_not_fit_are_named(store: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    ct.publish(module, "fits", store)

    def refused(other: Any, field: str, text: str, **options: Any) -> None:
        before = state(other)
        with pytest.raises(cotensor.InvalidError, match=text) as error:
            ct.attach(other, "fits", store, **options)
        assert error.value.field == field
        same(state(other), before)
        assert ct.attachment(other) is None

    norm = torch.nn.BatchNorm1d(4)
    refused(torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5)), "0.weight", "shape")
    refused(torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), norm), "0.bias", "not in the module: 0.bias")
    refused(torch.nn.Sequential(torch.nn.Linear(4, 4), norm, torch.nn.Linear(4, 4)), "2.weight", "not published")
    refused(torch.nn.Sequential(torch.nn.Linear(4, 4).double(), norm), "0.weight", "float64", same_dtype=True)
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.BatchNorm1d(4))
    with pytest.raises(cotensor.InvalidError, match="0.weight"):
        ct.attach(lazy, "fits", store)
    swapped = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    del swapped[1].running_mean
    swapped[1].running_mean = torch.nn.Parameter(torch.zeros(4))
    refused(swapped, "1.running_mean", "published as a buffer")

    more = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), norm, torch.nn.Linear(4, 4))
    done = ct.attach(more, "fits", store, strict=False)
    assert done.missing_keys == ("2.weight", "2.bias")
    assert done.unexpected_keys == ("0.bias",)
    assert torch.equal(more[0].weight, module[0].weight)
    with pytest.raises(cotensor.NotFoundError):
        ct.attach(module, "no such model", store)


def test_wrong_options_are_named(store: Any) -> None:
    module = torch.nn.Linear(2, 2)
    ct.publish(module, "options", store)
    for call, field in (
        (lambda: ct.publish(None, "x", store), "module"),
        (lambda: ct.publish(module, "x", 5), "store"),
        (lambda: ct.publish(module, "x", store, attach="no"), "attach"),
        (lambda: ct.publish(module, "x", store, source=5), "source"),
        (lambda: ct.publish(module, "x", store, source={"a": object()}), "source"),
        (lambda: ct.publish_state_dict(1, "x", store), "mapping"),
        (lambda: ct.publish_state_dict({"é" * 2049: torch.ones(1)}, "x", store), "é" * 80),
        (lambda: ct.publish_state_dict({"\ud800": torch.ones(1)}, "x", store), "\ud800"),
        (lambda: ct.attach("module", "options", store), "module"),
        (lambda: ct.attach(module, "options", store, strict="no"), "strict"),
        (lambda: ct.attach(module, "options", store, follow="no"), "follow"),
        (lambda: ct.attach(module, "options", store, requires_grad="no"), "requires_grad"),
        (lambda: ct.attach(module, "options", store, version=-1), "version"),
        (lambda: ct.state_dict("options", store, version=2**70), "version"),
        (lambda: ct.attachment(None), "module"),
        (lambda: ct.refresh(5), "module"),
    ):
        with pytest.raises(cotensor.InvalidError) as raised:
            call()
        assert raised.value.field == field, str(raised.value)
    assert "x" not in store.names()


def test_paths_that_are_not_files_are_refused(store: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "model.safetensors").mkdir()
    for path, error in (
        (tmp_path / "pipe.safetensors", cotensor.InvalidError),
        (tmp_path / "empty.safetensors", cotensor.CorruptError),
        (tmp_path, cotensor.NotFoundError),
        (tmp_path / "a\0b", cotensor.InvalidError),
        ("/proc/self/mem", cotensor.CotensorError),
    ):
        with pytest.raises(error):
            ct.publish_file(path, "x", store)


class Subclass(torch.Tensor):
    pass


def bad_parameters() -> Dict[str, Any]:
    with torch.device("meta"):
        meta = torch.zeros(3)
    found = {
        "meta": (meta, cotensor.InvalidError),
        "sparse": (torch.eye(3).to_sparse(), cotensor.UnsupportedError),
        "complex of halves": (torch.empty(3, dtype=torch.complex32), cotensor.UnsupportedError),
        "conjugate": (torch.zeros(3, dtype=torch.complex64).conj(), cotensor.UnsupportedError),
        "float8": (torch.zeros(3).to(torch.float8_e4m3fnuz), cotensor.UnsupportedError),
        "subclass": (torch.zeros(3).as_subclass(Subclass), cotensor.UnsupportedError),
    }
    try:
        found["nested"] = (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), cotensor.UnsupportedError)
        found["quantized"] = (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), cotensor.UnsupportedError)
    except (RuntimeError, AttributeError):
        pass  # newer versions of torch lack them
    return found


@pytest.mark.parametrize("kind", sorted(bad_parameters()))
def test_unsupported_tensors_are_not_published(store: Any, kind: str) -> None:
    tensor, expected = bad_parameters()[kind]
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module[0].register_buffer("odd_one", tensor)
    before = store.get_stats()["memory_usage_bytes"]
    with pytest.raises(expected, match="0.odd_one") as error:
        ct.publish(module, "refused", store)
    assert error.value.field == "0.odd_one"
    with pytest.raises(expected, match="0.odd_one"):
        ct.publish_state_dict({"0.odd_one": tensor}, "refused", store)
    assert "refused" not in store.names()
    assert store.get_stats()["memory_usage_bytes"] == before


def test_lazy_parameters_and_invalid_state_dicts_are_refused(store: Any) -> None:
    with pytest.raises(cotensor.InvalidError, match="weight"):
        ct.publish(torch.nn.LazyLinear(3), "refused", store)
    with pytest.raises(cotensor.UnsupportedError, match="extra"):
        ct.publish_state_dict({"extra": object()}, "refused", store)
    with pytest.raises(cotensor.UnsupportedError, match="float"):
        ct.publish_state_dict({3.5: torch.ones(1)}, "refused", store)
    with pytest.raises(cotensor.InvalidError):
        ct.publish(torch.nn.Linear(2, 2), "", store)
    assert "refused" not in store.names()


def test_over_budget_leaves_the_module_unchanged() -> None:
    store = cotensor.Store(max_memory_mb=1)
    module = torch.nn.Linear(1024, 1024)
    address = module.weight.data_ptr()
    with pytest.raises(cotensor.OverBudgetError):
        ct.publish(module, "large", store)
    assert module.weight.data_ptr() == address
    assert store.names() == []
    assert store.get_stats()["memory_usage_bytes"] == 0


def test_interrupted_publish_publishes_nothing(store: Any) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    before = store.get_stats()["memory_usage_bytes"]
    with pytest.raises(KeyboardInterrupt):
        ct.publish(torch.nn.Linear(64, 64), "half", store, progress=stop)
    gc.collect()
    assert "half" not in store.names()
    assert store.get_stats()["memory_usage_bytes"] == before


def test_plain_tensor_is_not_a_model(store: Any) -> None:
    store.put("plain", torch.ones(3))
    with pytest.raises(cotensor.CorruptError, match="model"):
        ct.attach(torch.nn.Linear(2, 2), "plain", store)
    store.put("bytes", torch.zeros(300, dtype=torch.uint8))
    with pytest.raises(cotensor.CorruptError, match="model"):
        ct.state_dict("bytes", store)
    # A model can be published under the name of a plain tensor.
    ct.publish(torch.nn.Linear(2, 2), "plain", store)
    ct.attach(torch.nn.Linear(2, 2), "plain", store)


def header(**changes: Any) -> bytes:
    """A published model of one tensor of four float32, with changes of its header."""
    tensor = {
        "places": [["w", "parameter"]],
        "dtype": "float32",
        "shape": [4],
        "stride": [1],
        "storage": 0,
        "offset": 0,
        "requires_grad": True,
    }
    tensor.update({key: value for key, value in changes.items() if key in tensor})
    top = {"module": "m", "storages": [[0, 16]], "tensors": [tensor], "source": {}}
    top.update({key: value for key, value in changes.items() if key in top})
    text = changes.get("text", json.dumps(top).encode())
    prefix = struct.pack("<8sIIQ", changes.get("magic", b"COTMODEL"), changes.get("version", 1), 0, len(text))
    raw = prefix + text
    return raw + bytes(manifest.aligned(len(raw)) - len(raw)) + bytes(16)


BAD_HEADERS: Dict[str, Any] = {
    "magic": header(magic=b"COTMODEM"),
    "a newer version": header(version=2),
    "no JSON": header(text=b"{"),
    "deep JSON": header(text=b"[" * 200_000),
    "a key twice": header(text=b'{"module":"","module":""}'),
    "NaN": header(text=b'{"module":NaN}'),
    "no UTF-8": header(text=b"\xff\xfe"),
    "a long number": header(text=b"9" * 10_000),
    "a list": header(text=b"[]"),
    "unaligned": header(storages=[[4, 8]]),
    "past the end": header(storages=[[0, 1 << 20]]),
    "overlapping": header(storages=[[0, 16], [0, 16]]),
    "negative": header(storages=[[0, -16]]),
    "huge": header(storages=[[0, 1 << 80]]),
    "no storage": header(storage=1),
    "an offset past the end": header(offset=1),
    "a negative offset": header(offset=-1),
    "a shape past the end": header(shape=[5]),
    "a stride past the end": header(stride=[2]),
    "a stride too many": header(stride=[1, 1]),
    "a negative stride": header(stride=[-1]),
    "65 dimensions": header(shape=[1] * 65, stride=[1] * 65),
    "an element count that overflows": header(shape=[1 << 40, 1 << 40], stride=[0, 0]),
    "fractions": header(shape=[4.0]),
    "true as a number": header(shape=[True]),
    "a dtype": header(dtype="object"),
    "a dtype of another type": header(dtype=["float32"]),
    "a name twice": header(places=[["w", "parameter"], ["w", "parameter"]]),
    "no name": header(places=[]),
    "an empty name": header(places=[["", "parameter"]]),
    "a kind": header(places=[["w", "module"]]),
    "requires_grad": header(requires_grad=1),
    "module": header(module=3),
    "source": header(source=[]),
    "tensors": header(tensors={}),
    "cut": header()[:30],
    "cut shorter": header()[:10],
    "cut in the data": header()[:-1],
}


@pytest.mark.parametrize("what", sorted(BAD_HEADERS))
def test_invalid_header_is_refused(what: str) -> None:
    store = cotensor.Store()
    raw = bytearray(BAD_HEADERS[what])
    store.put("bad", torch.frombuffer(raw, dtype=torch.uint8))
    with pytest.raises(cotensor.CorruptError):
        ct.state_dict("bad", store)


def test_unchanged_header_is_accepted() -> None:
    store = cotensor.Store()
    store.put("good", torch.frombuffer(bytearray(header()), dtype=torch.uint8))
    assert torch.equal(ct.state_dict("good", store)["w"], torch.zeros(4))


def test_changed_header_bytes_never_crash() -> None:
    """A header with a changed byte is read or refused with CorruptError."""
    store = cotensor.Store()
    ct.publish(torch.nn.Linear(2, 2), "model", store)
    whole = store.get("model")
    good = bytearray(whole.tobytes())
    refused = 0
    for position in range(0, manifest.aligned(len(good)) - 64, 3):
        for change in (0x01, 0x20, 0x80):
            raw = bytearray(good)
            raw[position] ^= change
            store.put("maybe", torch.frombuffer(raw, dtype=torch.uint8))
            try:
                sum(float(tensor.double().sum()) for tensor in ct.state_dict("maybe", store).values())
            except cotensor.CorruptError:
                refused += 1
    assert refused > 100
