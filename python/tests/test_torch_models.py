"""Modules published and attached: tied, strided, trained, in several processes."""

from __future__ import annotations

import copy
import gc
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from conftest import serving  # noqa: E402
from modules_common import UnusualModule, on_meta, same, state  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402
from cotensor.torch.weights import manifest, write  # noqa: E402


def test_attached_module_equals_the_published_module(store: Any) -> None:
    module = UnusualModule()
    want, objects = state(module), {name: id(p) for name, p in module.named_parameters()}
    x = torch.randn(3, 16)
    outputs = module.eval()(x)
    published = ct.publish(module, "odd", store)
    same(state(module), want)
    assert objects == {name: id(p) for name, p in module.named_parameters()}
    assert torch.equal(module(x), outputs)

    other = on_meta(UnusualModule)
    attached = ct.attach(other, "odd", store)
    assert (attached.id, attached.missing_keys, attached.unexpected_keys) == (published.id, (), ())
    assert ct.attachment(other) == attached
    same(state(other), want)
    assert other.training
    assert torch.equal(other.eval()(x), outputs)
    assert other.tied.weight is other.first.weight
    assert other.turned.stride() == module.turned.stride() == (1, 7)
    assert other.wide.stride() == (1, 0)
    assert not other.frozen.requires_grad
    assert other.first.weight.requires_grad
    assert isinstance(other.first.weight, torch.nn.Parameter)
    assert other.positions.shape == (1, 10)
    assert "positions" not in other.state_dict()
    # Tensors that share memory in the module still do.
    assert other.high.data_ptr() - other.low.data_ptr() == 4 * 8
    other.low[4] = 99.0
    assert other.high[0, 0] == 99.0
    assert module.high[0, 0] == 4.0


def test_storages_are_not_longer_than_their_tensors(store: Any) -> None:
    ct.publish(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), "sizes", store)
    module = on_meta(lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)))
    ct.attach(module, "sizes", store)
    for parameter in module.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
        assert parameter.data_ptr() % 64 == 0


def test_attach_copies_nothing(store: Any) -> None:
    ct.publish(torch.nn.Linear(300, 300), "zero copy", store)
    before = store.get_stats()
    module = on_meta(lambda: torch.nn.Linear(300, 300))
    ct.attach(module, "zero copy", store)
    after = store.get_stats()
    assert before["copies"] == after["copies"], "attaching copies nothing"


def test_publish_copies_once(store: Any) -> None:
    before = store.get_stats()["copies"]
    published = ct.publish(torch.nn.Linear(50, 50), "one copy", store)
    after = store.get_stats()["copies"]
    copied = copied_bytes(after) - copied_bytes(before)
    assert published.nbytes - 64 < copied <= published.nbytes, "each byte once, without padding"


def copied_bytes(copies: Any) -> int:
    """The sum of all copied bytes in the store's nested counters."""
    if isinstance(copies, dict):
        return copies["bytes"] if "bytes" in copies else sum(copied_bytes(part) for part in copies.values())
    if isinstance(copies, list):
        return sum(copied_bytes(part) for part in copies)
    return 0


def test_each_tensor_keeps_the_memory_alive() -> None:
    store = cotensor.Store()
    module = torch.nn.Linear(1000, 100)
    want = module.weight.detach().clone()
    ct.publish(module, "alive", store, keep=False)
    del module
    gc.collect()
    with pytest.raises(cotensor.NotFoundError):
        store.get("alive")  # freed with the module

    module = torch.nn.Linear(1000, 100)
    want = module.weight.detach().clone()
    ct.publish(module, "alive", store, keep=False)
    other = on_meta(lambda: torch.nn.Linear(1000, 100))
    ct.attach(other, "alive", store)
    weight = other.weight.detach()
    del module, other
    gc.collect()
    assert "alive" in store.names()
    store.close()
    del store
    gc.collect()
    assert torch.equal(weight, want)


def test_training_is_private_until_published(daemon: Any) -> None:
    with daemon.connect() as store, daemon.connect() as reader:
        torch.manual_seed(1)
        trainer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
        optimizer = torch.optim.Adam(trainer.parameters(), lr=0.1)
        before = state(trainer)
        ct.publish(trainer, "trained", store)
        follower = on_meta(lambda: copy.deepcopy(trainer).to("meta"))
        ct.attach(follower, "trained", reader)
        for _ in range(3):
            optimizer.zero_grad()
            trainer(torch.ones(2, 64)).sum().backward()
            optimizer.step()
        assert not torch.equal(trainer[0].weight, before["0.weight"]), "training continues after publishing"
        same(state(follower), before)
        same({k: v.clone() for k, v in ct.state_dict("trained", reader).items()}, before)

        assert ct.newer_version(follower) is None
        assert not ct.refresh(follower)
        ct.publish(trainer, "trained", store)
        after = state(trainer)
        same(state(follower), before)
        objects = [id(p) for p in follower.parameters()]
        assert ct.newer_version(follower) == 2
        assert ct.refresh(follower)
        same(state(follower), after)
        assert objects == [id(p) for p in follower.parameters()]
        assert ct.attachment(follower).version == 2
        assert not ct.refresh(follower)


def test_training_of_an_attached_module_is_private(store: Any) -> None:
    torch.manual_seed(2)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    twin = copy.deepcopy(module)
    ct.publish(module, "to train", store, attach=False)
    attached = on_meta(lambda: copy.deepcopy(module).to("meta"))
    ct.attach(attached, "to train", store)
    for each in (attached, twin):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.5, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            (each(torch.ones(2, 8) * step) ** 2).sum().backward()
            optimizer.step()
    same(state(attached), state(twin))
    assert not torch.equal(attached[0].weight, module[0].weight)
    same(ct.state_dict("to train", store), state(module))
    # Publishes a module of which some pages are private.
    ct.publish(attached, "to train", store)
    same(ct.state_dict("to train", store), state(twin))


def test_attach_selects_a_version(store: Any) -> None:
    modules = [torch.nn.Linear(4, 4) for _ in range(3)]
    for module in modules:
        ct.publish(module, "versions", store)
    for number, module in enumerate(modules, 1):
        other = on_meta(lambda: torch.nn.Linear(4, 4))
        assert ct.attach(other, "versions", store, version=number).version == number
        assert torch.equal(other.weight, module.weight)
        same(ct.state_dict("versions", store, version=number), state(module))
    with pytest.raises(cotensor.NotFoundError):
        ct.attach(modules[0], "versions", store, version=7)


def test_publish_without_attach_leaves_the_module_unchanged(store: Any) -> None:
    module = torch.nn.Linear(4, 4)
    address = module.weight.data_ptr()
    ct.publish(module, "left alone", store, attach=False)
    assert module.weight.data_ptr() == address
    assert ct.attachment(module) is None
    with pytest.raises(cotensor.InvalidError):
        ct.refresh(module)


def test_requires_grad_option(store: Any) -> None:
    module = torch.nn.Linear(4, 4)
    module.bias.requires_grad_(False)
    ct.publish(module, "gradients", store)
    for wanted, expected in ((None, (True, False)), (True, (True, True)), (False, (False, False))):
        for other in (on_meta(lambda: torch.nn.Linear(4, 4)), torch.nn.Linear(4, 4)):
            ct.attach(other, "gradients", store, requires_grad=wanted)
            assert (other.weight.requires_grad, other.bias.requires_grad) == expected


def test_publish_and_attach_in_modes_of_torch(store: Any) -> None:
    module = torch.nn.Linear(4, 4)
    ct.publish(module, "modes", store)
    other = on_meta(lambda: torch.nn.Linear(4, 4))
    with torch.inference_mode(), torch.device("meta"):
        ct.attach(other, "modes", store)
    other(torch.ones(1, 4)).sum().backward()
    assert other.weight.grad is not None
    with torch.inference_mode(), torch.device("meta"):
        ct.publish(other, "modes", store)
    same(state(other), state(module))


def test_tied_and_untied_modules(store: Any) -> None:
    ct.publish(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), "untied", store)
    tied = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(cotensor.InvalidError, match="1.weight.*tied|tied.*1.weight|0.weight"):
        ct.attach(tied, "untied", store)
    ct.publish(tied, "tied", store)
    loose = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    ct.attach(loose, "tied", store)
    assert loose[0].weight is loose[1].weight


def test_state_dict_is_published_and_attached(store: Any) -> None:
    module = UnusualModule()
    saved = module.state_dict()
    ct.publish_state_dict(saved, "state", store)
    shown = ct.state_dict("state", store)
    assert shown.keys() == saved.keys()
    same(dict(shown), {name: value.clone() for name, value in saved.items()})
    assert shown["first.weight"] is shown["tied.weight"]
    other = UnusualModule()
    other.frozen.requires_grad_(True)
    ct.attach(other, "state", store)
    assert other.frozen.requires_grad, "a state dict does not record requires_grad"
    same(state(other), state(module))
    third = UnusualModule()
    third.load_state_dict(ct.state_dict("state", store), assign=True)
    same(state(third), state(module))
    # A state dict lacks non-persistent buffers, so the module needs values for them.
    with pytest.raises(cotensor.InvalidError, match="positions"):
        ct.attach(on_meta(UnusualModule), "state", store)


def test_progress_and_log_lines(store: Any, caplog: Any) -> None:
    seen = []
    with caplog.at_level(logging.INFO, logger="cotensor"):
        ct.publish(torch.nn.Linear(64, 64), "logged", store, progress=lambda done, total: seen.append((done, total)))
        ct.attach(torch.nn.Linear(64, 64), "logged", store)
    assert seen[0][0] == 0
    assert seen == sorted(seen)
    assert seen[-1][0] <= seen[-1][1]
    assert seen[-1][0] == 64 * 64 * 4 + 64 * 4
    assert any("published logged version 1" in record.message for record in caplog.records)
    assert any("attached logged version 1" in record.message for record in caplog.records)
    ct.publish(torch.nn.Linear(4, 4), "logged", store, progress=True)


def test_module_follows_new_versions(store: Any) -> None:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    ct.publish(first, "followed", store, attach=False)
    module = on_meta(lambda: torch.nn.Linear(4, 4))
    ct.attach(module, "followed", store, follow=True)
    x = torch.randn(2, 4)
    assert torch.equal(module(x), first(x))
    ct.publish(second, "followed", store, attach=False)
    twin = copy.deepcopy(module)
    assert torch.equal(module(x), second(x))
    assert torch.equal(twin(x), first(x)), "a copy does not follow"
    # The module does not switch to a version that does not fit.
    ct.publish(torch.nn.Linear(5, 5), "followed", store)
    assert torch.equal(module(x), second(x))
    with pytest.raises(cotensor.InvalidError):
        ct.refresh(module)
    store.remove("followed")
    assert torch.equal(module(x), second(x))
    assert ct.attachment(module).version == 2


def test_following_module_outlives_the_daemon(caplog: Any) -> None:
    with serving() as own:
        store = own.connect()
        first = torch.nn.Linear(4, 4)
        ct.publish(first, "followed", store, attach=False)
        module = on_meta(lambda: torch.nn.Linear(4, 4))
        ct.attach(module, "followed", store, follow=True)
        x = torch.randn(2, 4)
        ct.publish(module, "followed", store)
        ct.publish(first, "followed", store, attach=False)
        assert torch.equal(module(x), first(x))
        assert ct.attachment(module).version == 3, "a module that publishes continues to follow"
    store.close()
    for _ in range(3):
        assert torch.equal(module(x), first(x))
    assert sum("version 3 stays" in record.message for record in caplog.records) == 1


def test_forward_pass_uses_one_version(store: Any) -> None:
    """The product of the weights is 1 in every version, but not for weights of two versions."""

    class Pair(torch.nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.full((4,), value))
            self.b = torch.nn.Parameter(torch.full((4,), 1 / value))

        def forward(self, x: Any) -> Any:
            half = x * self.a
            for _ in range(20):
                torch.ones(64, 64) @ torch.ones(64, 64)
            return half * self.b

    ct.publish(Pair(1.0), "pair", store)
    module = Pair(1.0)
    ct.attach(module, "pair", store, follow=True)
    wrong = []
    done = threading.Event()

    def use() -> None:
        while not done.is_set():
            out = module(torch.ones(4))
            if not torch.equal(out, torch.ones(4)):
                wrong.append(out)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for power in range(1, 30):
        ct.publish(Pair(2.0**power), "pair", store)
        ct.refresh(module)
        assert ct.attachment(module).version >= power + 1
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


CHILD = """
import sys, torch, cotensor, cotensor.torch as ct
sys.path.insert(0, sys.argv[2])
from test_torch_models import UnusualModule
with cotensor.connect(sys.argv[1]) as store:
    with torch.device("meta"):
        module = UnusualModule()
    ct.attach(module, "crossing", store)
    module.eval()
    assert module.tied.weight is module.first.weight
    x = torch.linspace(-1, 1, 48).reshape(3, 16)
    with torch.no_grad():
        print(module(x).numpy().tobytes().hex())
        module.first.weight.add_(1)
        assert "positions" not in module.state_dict()
"""


def test_another_process_computes_the_same_result(daemon: Any) -> None:
    with daemon.connect() as store:
        module = UnusualModule().eval()
        x = torch.linspace(-1, 1, 48).reshape(3, 16)
        with torch.no_grad():
            want = module(x).numpy().tobytes().hex()
        ct.publish(module, "crossing", store)
        for _ in range(2):  # writes of the first child are private to it
            child = subprocess.run(
                [sys.executable, "-c", CHILD, str(daemon.socket), str(Path(__file__).parent)],
                capture_output=True,
                text=True,
                timeout=100,
            )
            assert child.returncode == 0, child.stderr
            assert child.stdout.strip() == want
        with torch.no_grad():
            assert module(x).numpy().tobytes().hex() == want


def test_default_store_is_the_daemon(daemon: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COTENSOR_SOCKET", str(daemon.socket))
    monkeypatch.setattr("cotensor.torch.store._default", None)
    module = torch.nn.Linear(3, 3)
    ct.publish(module, "by default")
    ct.attach(torch.nn.Linear(3, 3), "by default")
    shared = ct.share(module.eval(), name="shared by default")
    with torch.no_grad():
        module(torch.ones(3))
    assert shared.computed == 1
    with daemon.connect() as store:
        assert "by default" in store.names()
        assert any(name.startswith("shared by default/") for name in store.names())


def test_cotensor_does_not_import_torch() -> None:
    code = "import sys, cotensor; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_views_share_one_mapping(store: Any) -> None:
    ct.publish(torch.nn.Linear(100, 100), "mapping", store)
    whole = store.get("mapping")
    read, data = manifest.read_manifest(whole)
    shown = write.views(whole, read, data)
    base = whole.torch().data_ptr()
    for entry, tensor in zip(read.tensors, shown):
        assert tensor.data_ptr() == base + data + read.storages[entry.storage][0]
