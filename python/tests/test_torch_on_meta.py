"""Modules on the meta device: made without memory and initialization."""

from __future__ import annotations

import collections
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402


class Counting(TorchDispatchMode):
    """Counts the operators that run, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Any = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def make() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Conv2d(1, 2, 3), torch.nn.Embedding(3, 4))


def test_initialization_is_skipped_on_meta() -> None:
    with Counting() as plain, torch.device("meta"):
        make()
    assert plain.found["uniform_"] == 4 and plain.found["normal_"] == 1, "torch initializes on the meta device too"
    with Counting() as counted, ct.on_meta():
        module = make()
    assert not counted.found["uniform_"] and not counted.found["normal_"]
    assert all(parameter.is_meta for parameter in module.parameters())
    with cotensor.Store() as store:
        other = make()
        ct.publish(other, "made", store)
        ct.attach(module, "made", store)
        assert torch.equal(module[0].weight, other[0].weight)


def test_shared_weights_skips_initialization(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    from torch_models import family, run

    kind, config, inputs = family("bert")
    want = run(saved := kind(config), inputs)
    saved.save_pretrained(tmp_path)
    with Counting() as plain:
        kind.from_pretrained(tmp_path)
    assert plain.found["uniform_"] or plain.found["normal_"], "transformers initializes without shared weights"
    with cotensor.Store() as store:
        for name in ("loaded", "attached", "made"):
            with Counting() as counted, ct.shared_weights("bert", store, force=name == "made"):
                model = kind._from_config(config) if name == "made" else kind.from_pretrained(tmp_path)
            assert not counted.found["uniform_"] and not counted.found["normal_"]
            assert run(model, inputs) == want
        # Weights that no file has are initialized.
        with ct.shared_weights("head", store):
            head = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
        assert head.classifier.weight.abs().sum() > 0


def test_other_tensors_and_other_threads_are_initialized() -> None:
    with ct.on_meta():
        here = torch.nn.Linear(4, 4, device="cpu")
        torch.nn.init.constant_(here.weight, 3)
        made = []
        thread = threading.Thread(target=lambda: made.append(torch.nn.Linear(64, 64)))
        thread.start()
        thread.join()
    assert torch.equal(here.weight, torch.full((4, 4), 3.0))
    assert made[0].weight.abs().sum() > 0 and not made[0].weight.is_meta
    assert not torch.nn.Linear(2, 2).weight.is_meta
