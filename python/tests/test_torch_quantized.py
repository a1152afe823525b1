"""Weights that are neither parameters nor buffers are refused, because a module without them computes other results."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict

import pytest
from conftest import local_store

torch = pytest.importorskip("torch")
quantization = pytest.importorskip("torch.ao.quantization")

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402

store = local_store()


def dynamic(*modules: Any) -> Any:
    model = torch.nn.Sequential(*modules)
    return quantization.quantize_dynamic(model, {type(module) for module in modules}, dtype=torch.qint8)


def static() -> Any:
    model = torch.nn.Sequential(quantization.QuantStub(), torch.nn.Conv2d(1, 2, 3), quantization.DeQuantStub()).eval()
    model.qconfig = quantization.get_default_qconfig()
    prepared = quantization.prepare(model)
    prepared(torch.randn(1, 1, 5, 5))
    return quantization.convert(prepared)


def embedding() -> Any:
    return torch.nn.Sequential(torch.ao.nn.quantized.Embedding(4, 4))


#: Quantized modules of every kind, and the start of the field in the error.
QUANTIZED: Dict[str, Any] = {
    "linear": (lambda: dynamic(torch.nn.Linear(4, 4)), "0."),
    "recurrent": (lambda: dynamic(torch.nn.LSTM(4, 4)), "0._all_weight_values"),
    "static convolution": (static, "1."),
    "embedding": (embedding, "0."),
    "scripted": (lambda: torch.jit.script(dynamic(torch.nn.Linear(4, 4))), "0."),
    "one of many": (lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), dynamic(torch.nn.Linear(4, 4))), "1.0."),
}


@pytest.mark.parametrize("what", sorted(QUANTIZED))
def test_packed_weights_are_refused(store: cotensor.Store, what: str) -> None:
    make: Callable[[], Any]
    make, name = QUANTIZED[what]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = make()
    with pytest.raises(cotensor.UnsupportedError, match="before quantization") as error:
        ct.publish(module, "quantized", store)
    assert str(error.value.field).startswith(name)
    assert store.names() == []


def test_modules_without_packed_weights_are_published(store: cotensor.Store) -> None:
    class Renamed(torch.nn.Module):
        """A module whose state dict has another name for a parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))
            self._register_state_dict_hook(self.rename)

        @staticmethod
        def rename(module: Any, found: Any, prefix: str, local: Any) -> None:
            found[prefix + "other"] = found.pop(prefix + "weight")

    parametrized = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))
    for number, module in enumerate([Renamed(), parametrized, torch.jit.script(torch.nn.Linear(2, 2))]):
        ct.publish(module, f"plain {number}", store)
    assert len(store.names()) == 3
