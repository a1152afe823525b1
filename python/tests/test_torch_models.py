"""Modules published and attached: tied, strided, trained, refused; between real processes."""

from __future__ import annotations

import copy
import gc
import json
import logging
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Dict

import pytest

torch = pytest.importorskip("torch")

from conftest import serving  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402
from cotensor.torch import _format, _write  # noqa: E402


class Odd(torch.nn.Module):
    """A parameter or buffer of every odd kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.tied = torch.nn.Linear(16, 16, bias=False)
        self.tied.weight = self.first.weight
        self.turned = torch.nn.Parameter(torch.randn(5, 7).t())
        self.sliced = torch.nn.Parameter(torch.randn(6, 10)[:, 2:5])
        self.frozen = torch.nn.Parameter(torch.randn(3), requires_grad=False)
        self.whole_numbers = torch.nn.Parameter(torch.arange(5), requires_grad=False)
        self.recurrent = torch.nn.LSTM(16, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.empty = torch.nn.Parameter(torch.zeros(0, 3))
        self.scalar = torch.nn.Parameter(torch.tensor(2.5, dtype=torch.bfloat16))
        self.register_buffer("positions", torch.arange(10).expand(1, -1), persistent=False)
        self.register_buffer("wide", torch.arange(3.0)[:, None].expand(3, 1000))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("short", torch.randn(4).half())
        memory = torch.arange(12, dtype=torch.float64)
        self.register_buffer("low", memory[:8])
        self.register_buffer("high", memory[4:].reshape(2, 4))
        self.register_buffer("nothing", None)

    def forward(self, x: Any) -> Any:
        out, _ = self.recurrent(self.tied(self.first(x)) + self.positions[0, 1] + self.sliced.sum() + self.turned.sum())
        return self.norm(out) * self.scalar


def state(module: Any) -> Dict[str, Any]:
    """Everything in a module, copied."""
    found = dict(module.named_parameters(remove_duplicate=False))
    found.update(module.named_buffers(remove_duplicate=False))
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def same(left: Dict[str, Any], right: Dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert torch.equal(left[name], right[name]), name


def on_meta(make: Any) -> Any:
    with torch.device("meta"):
        return make()


def test_everything_of_a_module(store: Any) -> None:
    module = Odd()
    want, objects = state(module), {name: id(p) for name, p in module.named_parameters()}
    x = torch.randn(3, 16)
    outputs = module.eval()(x)
    published = ct.publish(module, "odd", store)
    same(state(module), want)
    assert objects == {name: id(p) for name, p in module.named_parameters()}
    assert torch.equal(module(x), outputs)

    other = on_meta(Odd)
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
    # What showed the same memory still does.
    assert other.high.data_ptr() - other.low.data_ptr() == 4 * 8
    other.low[4] = 99.0
    assert other.high[0, 0] == 99.0
    assert module.high[0, 0] == 4.0


def test_no_module_shares_a_storage_that_is_longer_than_it_needs(store: Any) -> None:
    ct.publish(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), "sizes", store)
    module = on_meta(lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)))
    ct.attach(module, "sizes", store)
    for parameter in module.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
        assert parameter.data_ptr() % 64 == 0


def test_attached_tensors_are_the_shared_memory(store: Any) -> None:
    ct.publish(torch.nn.Linear(300, 300), "zero copy", store)
    before = store.get_stats()
    module = on_meta(lambda: torch.nn.Linear(300, 300))
    ct.attach(module, "zero copy", store)
    after = store.get_stats()
    assert before["copies"] == after["copies"], "attaching copies nothing"


def test_publishing_is_one_copy(store: Any) -> None:
    before = store.get_stats()["copies"]
    published = ct.publish(torch.nn.Linear(50, 50), "one copy", store)
    after = store.get_stats()["copies"]
    copied = copied_bytes(after) - copied_bytes(before)
    assert published.nbytes - 64 < copied <= published.nbytes, "all of it once, but for padding"


def copied_bytes(copies: Any) -> int:
    """All bytes that were copied, of whatever shape the store's counters are."""
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
        store.get("alive")  # nobody held it any more

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


def test_readers_never_see_a_trainers_steps(daemon: Any) -> None:
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
        assert not torch.equal(trainer[0].weight, before["0.weight"]), "the optimizer works on"
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


def test_an_attached_module_is_trained_by_itself(store: Any) -> None:
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
    # And published in turn, from memory that is half shared.
    ct.publish(attached, "to train", store)
    same(ct.state_dict("to train", store), state(twin))


def test_versions(store: Any) -> None:
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


def test_without_attach_a_module_stays_as_it_is(store: Any) -> None:
    module = torch.nn.Linear(4, 4)
    where = module.weight.data_ptr()
    ct.publish(module, "left alone", store, attach=False)
    assert module.weight.data_ptr() == where
    assert ct.attachment(module) is None
    with pytest.raises(cotensor.InvalidError):
        ct.refresh(module)


def test_requires_grad(store: Any) -> None:
    module = torch.nn.Linear(4, 4)
    module.bias.requires_grad_(False)
    ct.publish(module, "gradients", store)
    for wanted, expected in ((None, (True, False)), (True, (True, True)), (False, (False, False))):
        for other in (on_meta(lambda: torch.nn.Linear(4, 4)), torch.nn.Linear(4, 4)):
            ct.attach(other, "gradients", store, requires_grad=wanted)
            assert (other.weight.requires_grad, other.bias.requires_grad) == expected


def test_in_inference_mode_and_on_a_default_device(store: Any) -> None:
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


def test_what_does_not_fit(store: Any) -> None:
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
    refused(swapped, "1.running_mean", "published as buffer")

    more = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), norm, torch.nn.Linear(4, 4))
    done = ct.attach(more, "fits", store, strict=False)
    assert done.missing_keys == ("2.weight", "2.bias")
    assert done.unexpected_keys == ("0.bias",)
    assert torch.equal(more[0].weight, module[0].weight)
    with pytest.raises(cotensor.NotFoundError):
        ct.attach(module, "no such model", store)


def test_tied_here_but_not_there(store: Any) -> None:
    ct.publish(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), "untied", store)
    tied = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(cotensor.InvalidError, match="1.weight.*tied|tied.*1.weight|0.weight"):
        ct.attach(tied, "untied", store)
    ct.publish(tied, "tied", store)
    loose = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    ct.attach(loose, "tied", store)
    assert loose[0].weight is loose[1].weight


class Subclass(torch.Tensor):
    pass


def bad_parameters() -> Dict[str, Any]:
    with torch.device("meta"):
        meta = torch.zeros(3)
    found = {
        "meta": (meta, cotensor.InvalidError),
        "sparse": (torch.eye(3).to_sparse(), cotensor.UnsupportedError),
        "complex": (torch.zeros(3, dtype=torch.complex64), cotensor.UnsupportedError),
        "float8": (torch.zeros(3).to(torch.float8_e4m3fn), cotensor.UnsupportedError),
        "subclass": (torch.zeros(3).as_subclass(Subclass), cotensor.UnsupportedError),
    }
    try:
        found["quantized"] = (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), cotensor.UnsupportedError)
    except (RuntimeError, AttributeError):
        pass  # this torch has none any more
    return found


@pytest.mark.parametrize("kind", sorted(bad_parameters()))
def test_what_cannot_be_published(store: Any, kind: str) -> None:
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


def test_lazy_parameters_and_odd_state_dicts(store: Any) -> None:
    with pytest.raises(cotensor.InvalidError, match="weight"):
        ct.publish(torch.nn.LazyLinear(3), "refused", store)
    with pytest.raises(cotensor.InvalidError, match="extra"):
        ct.publish_state_dict({"extra": 3}, "refused", store)
    with pytest.raises(cotensor.InvalidError):
        ct.publish_state_dict({3: torch.ones(1)}, "refused", store)  # type: ignore[dict-item]
    with pytest.raises(cotensor.InvalidError):
        ct.publish(torch.nn.Linear(2, 2), "", store)
    assert "refused" not in store.names()


def test_over_budget() -> None:
    store = cotensor.Store(max_memory_mb=1)
    module = torch.nn.Linear(1024, 1024)
    where = module.weight.data_ptr()
    with pytest.raises(cotensor.OverBudgetError):
        ct.publish(module, "large", store)
    assert module.weight.data_ptr() == where
    assert store.names() == []
    assert store.get_stats()["memory_usage_bytes"] == 0


def test_a_failure_in_the_middle_publishes_nothing(store: Any) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    before = store.get_stats()["memory_usage_bytes"]
    with pytest.raises(KeyboardInterrupt):
        ct.publish(torch.nn.Linear(64, 64), "half", store, progress=stop)
    gc.collect()
    assert "half" not in store.names()
    assert store.get_stats()["memory_usage_bytes"] == before


def test_a_name_that_is_a_plain_tensor(store: Any) -> None:
    store.put("plain", torch.ones(3))
    with pytest.raises(cotensor.CorruptError, match="no model"):
        ct.attach(torch.nn.Linear(2, 2), "plain", store)
    store.put("bytes", torch.zeros(300, dtype=torch.uint8))
    with pytest.raises(cotensor.CorruptError, match="no model"):
        ct.state_dict("bytes", store)
    # The other way round: a model takes the name's next version.
    ct.publish(torch.nn.Linear(2, 2), "plain", store)
    ct.attach(torch.nn.Linear(2, 2), "plain", store)


def header(**changes: Any) -> bytes:
    """A model of one tensor of four float32, with changes."""
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
    return raw + bytes(_format.aligned(len(raw)) - len(raw)) + bytes(16)


BAD_HEADERS: Dict[str, Any] = {
    "magic": header(magic=b"COTMODEM"),
    "a version to come": header(version=2),
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
    "elements without end": header(shape=[1 << 40, 1 << 40], stride=[0, 0]),
    "fractions": header(shape=[4.0]),
    "true as a number": header(shape=[True]),
    "a dtype": header(dtype="object"),
    "a dtype that is none": header(dtype=["float32"]),
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
def test_bad_bytes(what: str) -> None:
    store = cotensor.Store()
    raw = bytearray(BAD_HEADERS[what])
    store.put("bad", torch.frombuffer(raw, dtype=torch.uint8))
    with pytest.raises(cotensor.CorruptError):
        ct.state_dict("bad", store)


def test_the_header_of_these_tests_is_good() -> None:
    store = cotensor.Store()
    store.put("good", torch.frombuffer(bytearray(header()), dtype=torch.uint8))
    assert torch.equal(ct.state_dict("good", store)["w"], torch.zeros(4))


def test_any_byte_of_a_header_may_be_wrong() -> None:
    """Attached or refused, never anything else."""
    store = cotensor.Store()
    ct.publish(torch.nn.Linear(2, 2), "model", store)
    whole = store.get("model")
    good = bytearray(whole.tobytes())
    refused = 0
    for position in range(0, _format.aligned(len(good)) - 64, 3):
        for change in (0x01, 0x20, 0x80):
            raw = bytearray(good)
            raw[position] ^= change
            store.put("maybe", torch.frombuffer(raw, dtype=torch.uint8))
            try:
                sum(float(tensor.double().sum()) for tensor in ct.state_dict("maybe", store).values())
            except cotensor.CorruptError:
                refused += 1
    assert refused > 100


def test_state_dicts(store: Any) -> None:
    module = Odd()
    saved = module.state_dict()
    ct.publish_state_dict(saved, "state", store)
    shown = ct.state_dict("state", store)
    assert shown.keys() == saved.keys()
    same(dict(shown), {name: value.clone() for name, value in saved.items()})
    assert shown["first.weight"] is shown["tied.weight"]
    other = Odd()
    other.frozen.requires_grad_(True)
    ct.attach(other, "state", store)
    assert other.frozen.requires_grad, "a state dict does not say"
    same(state(other), state(module))
    third = Odd()
    third.load_state_dict(ct.state_dict("state", store), assign=True)
    same(state(third), state(module))
    # A buffer that no state dict has needs a value of the module's own.
    with pytest.raises(cotensor.InvalidError, match="positions"):
        ct.attach(on_meta(Odd), "state", store)


def test_progress_and_logging(store: Any, caplog: Any) -> None:
    seen = []
    with caplog.at_level(logging.INFO, logger="cotensor"):
        ct.publish(torch.nn.Linear(64, 64), "told", store, progress=lambda done, total: seen.append((done, total)))
        ct.attach(torch.nn.Linear(64, 64), "told", store)
    assert seen[0][0] == 0
    assert seen == sorted(seen)
    assert seen[-1][0] <= seen[-1][1]
    assert seen[-1][0] == 64 * 64 * 4 + 64 * 4
    assert any("published told version 1" in record.message for record in caplog.records)
    assert any("attached told version 1" in record.message for record in caplog.records)
    ct.publish(torch.nn.Linear(4, 4), "told", store, progress=True)


def test_following(store: Any) -> None:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    ct.publish(first, "followed", store, attach=False)
    module = on_meta(lambda: torch.nn.Linear(4, 4))
    ct.attach(module, "followed", store, follow=True)
    x = torch.randn(2, 4)
    assert torch.equal(module(x), first(x))
    ct.publish(second, "followed", store, attach=False)
    twin = copy.deepcopy(module)
    assert torch.equal(module(x), second(x))
    assert torch.equal(twin(x), first(x)), "a copy is on its own"
    # A version that does not fit is not switched to.
    ct.publish(torch.nn.Linear(5, 5), "followed", store)
    assert torch.equal(module(x), second(x))
    with pytest.raises(cotensor.InvalidError):
        ct.refresh(module)
    store.remove("followed")
    assert torch.equal(module(x), second(x))
    assert ct.attachment(module).version == 2


def test_who_follows_outlives_the_daemon(caplog: Any) -> None:
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
        assert ct.attachment(module).version == 3, "publishing itself does not end following"
    store.close()
    for _ in range(3):
        assert torch.equal(module(x), first(x))
    assert sum("version 3 stays" in record.message for record in caplog.records) == 1


def test_a_forward_pass_is_of_one_version(store: Any) -> None:
    """The layers' products are 1 for every version; a mixture would show."""

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
from test_torch_models import Odd
with cotensor.connect(sys.argv[1]) as store:
    with torch.device("meta"):
        module = Odd()
    ct.attach(module, "crossing", store)
    module.eval()
    assert module.tied.weight is module.first.weight
    x = torch.linspace(-1, 1, 48).reshape(3, 16)
    with torch.no_grad():
        print(module(x).numpy().tobytes().hex())
        module.first.weight.add_(1)
        assert "positions" not in module.state_dict()
"""


def test_another_process_computes_the_same_bits(daemon: Any) -> None:
    with daemon.connect() as store:
        module = Odd().eval()
        x = torch.linspace(-1, 1, 48).reshape(3, 16)
        with torch.no_grad():
            want = module(x).numpy().tobytes().hex()
        ct.publish(module, "crossing", store)
        for _ in range(2):  # what the first writes, the second does not see
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


def test_the_daemon_is_the_store_that_is_meant(daemon: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COTENSOR_SOCKET", str(daemon.socket))
    monkeypatch.setattr("cotensor.torch._store._default", None)
    module = torch.nn.Linear(3, 3)
    ct.publish(module, "by default")
    ct.attach(torch.nn.Linear(3, 3), "by default")
    with daemon.connect() as store:
        assert "by default" in store.names()


def test_cotensor_does_not_import_torch() -> None:
    code = "import sys, cotensor; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_views_lie_in_one_mapping(store: Any) -> None:
    ct.publish(torch.nn.Linear(100, 100), "mapping", store)
    whole = store.get("mapping")
    manifest, data = _write.read(whole)
    shown = _write.views(whole, manifest, data)
    base = whole.torch().data_ptr()
    for entry, tensor in zip(manifest.tensors, shown):
        assert tensor.data_ptr() == base + data + manifest.storages[entry.storage][0]
