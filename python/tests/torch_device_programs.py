"""What processes with modules on a GPU do in the tests: `python torch_device_programs.py NAME SOCKET`."""

from __future__ import annotations

import gc
import logging
import tempfile
from typing import Any, List

import device_common as devices
import pytest
import torch
from device_common import Driver
from device_programs_common import machine, main, step
from functions_common import until
from torch_device_common import OnDevice, bytes_of, elements, fill, to_device

import cotensor
import cotensor.torch as shared


class Model(torch.nn.Module):
    """Tied weights, a weight with gaps, a scalar, an empty and a non-persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(300, 200)
        self.norm = torch.nn.BatchNorm1d(200)
        self.last = torch.nn.Linear(300, 200)
        self.last.weight = self.first.weight
        self.gaps = torch.nn.Parameter(torch.randn(50, 64)[:, :40])
        self.turned = torch.nn.Parameter(torch.randn(30, 20).t(), requires_grad=False)
        whole = torch.arange(100)
        self.register_buffer("head", whole[:60])
        self.register_buffer("tail", whole[40:])
        self.register_buffer("row", torch.arange(7, dtype=torch.int16).expand(5, 7))
        self.register_buffer("flags", torch.tensor([True, False, True]), persistent=False)
        self.register_buffer("none", torch.empty(0, 3))


def names(module: torch.nn.Module) -> List[str]:
    return [name for name, _ in [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]]


def module_is_one_tensor_on_its_device(store: cotensor.Store) -> None:
    driver, module = Driver(), Model().eval()
    before = to_device(driver, module)
    assert sorted(before) == sorted(names(module))
    used, parameters = machine().used(), list(module.parameters())
    published = shared.publish(module, "m", store)
    whole = store["m"]
    assert (whole.device, whole.nbytes, whole.id) == ("cuda:0", published.nbytes, published.id)
    assert machine().used() == used + devices.UNIT, "one segment"
    assert all(now is then for now, then in zip(module.parameters(), parameters)), "optimizers keep their parameters"
    with shared.on_meta():
        other = Model().eval()
    shared.attach(other, "m", store)
    state = shared.state_dict("m", store)
    assert set(state) == set(names(module)) - {"flags"}
    for name, tensor in before.items():
        for shown in (module, other):
            found = dict([*shown.named_parameters(remove_duplicate=False), *shown.named_buffers()])[name]
            assert isinstance(found, OnDevice) and found.device == torch.device("cuda:0")
            assert found.dtype == tensor.dtype and found.shape == tensor.shape
            assert torch.equal(elements(driver, found), tensor), name
            assert not tensor.numel() or whole.data_ptr <= found.address < whole.data_ptr + whole.nbytes
            assert not found.requires_grad, "the memory cannot be written"
        if name != "flags":
            assert torch.equal(elements(driver, state[name]), tensor)
    assert other.first.weight is other.last.weight and other.gaps.stride() == (64, 1) and other.turned.stride() == (1, 20)
    head, tail = other.head, other.tail
    assert isinstance(head, OnDevice) and isinstance(tail, OnDevice)
    assert tail.address - head.address == 40 * 8, "tensors that overlap are stored once"
    assert fill(driver, other.norm.weight, 1) == devices.INVALID_VALUE
    shared.attach(other, "m", store, requires_grad=True)
    assert other.norm.weight.requires_grad and not other.norm.num_batches_tracked.requires_grad
    # The module's own memory, the leases and the store are the owners.
    del module, other, state, found, shown, head, tail, whole, parameters, tensor
    store.remove("m")
    gc.collect()
    until(lambda: machine().used() == used)


def publication_follows_the_work_of_the_device(store: cotensor.Store) -> None:
    driver, module = Driver(), torch.nn.Linear(64, 64)
    to_device(driver, module)
    assert fill(driver, module.weight, 3) == 0
    with_gradient = module.weight.requires_grad
    shared.publish(module, "m", store, attach=False)
    assert module.weight.requires_grad == with_gradient, "the module stays as it is"
    assert bytes_of(elements(driver, shared.state_dict("m", store)["weight"])) == b"\3" * 64 * 64 * 4
    # A new version, with which the attached module is refreshed.
    with shared.on_meta():
        other = torch.nn.Linear(64, 64)
    shared.attach(other, "m", store)
    assert fill(driver, module.weight, 4) == 0
    shared.publish(module, "m", store, attach=False)
    parameter = other.weight
    assert shared.newer_version(other) == 2 and shared.refresh(other) and other.weight is parameter
    assert bytes_of(elements(driver, other.weight)) == b"\4" * 64 * 64 * 4


def training_module_is_warned_of(store: cotensor.Store) -> None:
    module, messages = torch.nn.Linear(4, 4), []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger = logging.getLogger("cotensor.torch")
    logger.addHandler(Handler(logging.WARNING))
    to_device(Driver(), module)
    shared.publish(module, "m", store, attach=False)
    assert messages == []
    shared.publish(module, "m", store)
    assert len(messages) == 1 and "attach=False" in messages[0], messages
    assert not any(parameter.requires_grad for parameter in module.parameters())


def buffers_of_parts_in_training_mode_are_private(store: cotensor.Store) -> None:
    driver, module = Driver(), Model()
    before = to_device(driver, module)
    module.norm.eval()
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
    layouts = {name: (tensor.dtype, tensor.stride()) for name, tensor in named}
    shared.publish(module, "m", store)
    whole = store["m"]
    with shared.on_meta():
        other = Model()
    shared.attach(other, "m", store)
    for shown, has_statistics in ((module, True), (other, False)):
        for name, tensor in [*shown.named_parameters(remove_duplicate=False), *shown.named_buffers()]:
            assert isinstance(tensor, OnDevice)
            assert (tensor.dtype, tensor.stride()) == layouts[name]
            assert torch.equal(elements(driver, tensor), before[name]), name
            is_shared = isinstance(tensor, torch.nn.Parameter) or name.startswith("norm") and has_statistics
            if tensor.numel():
                assert (whole.data_ptr <= tensor.address < whole.data_ptr + whole.nbytes) == is_shared, name
        head, tail = shown.head, shown.tail
        assert isinstance(head, OnDevice) and isinstance(tail, OnDevice)
        assert tail.address - head.address == 40 * 8, "tensors that overlap still do"
    assert fill(driver, module.norm.running_mean, 1) == devices.INVALID_VALUE
    assert fill(driver, other.norm.running_mean, 1) == fill(driver, other.norm.num_batches_tracked, 1) == 0
    assert bytes_of(elements(driver, other.norm.running_mean)) == b"\1" * 4 * 200
    assert torch.equal(elements(driver, module.norm.running_mean), before["norm.running_mean"])
    buffer = other.norm.running_mean
    shared.publish(module, "m", store)
    assert shared.refresh(other) and other.norm.running_mean is buffer
    assert torch.equal(elements(driver, buffer), before["norm.running_mean"]), "local writes are lost"


def places_that_differ_are_named(store: cotensor.Store) -> None:
    driver, host = Driver(), torch.nn.Linear(4, 4)
    mixed = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    to_device(driver, mixed[1])
    with pytest.raises(cotensor.UnsupportedError, match="1.weight.*cuda:0.*0.weight.*cpu") as raised:
        shared.publish(mixed, "m", store)
    assert raised.value.field == "1.weight" and "m" not in store
    device = torch.nn.Linear(4, 4)
    to_device(driver, device)
    shared.publish(host, "host", store, attach=False)
    shared.publish(device, "device", store, attach=False)
    with pytest.raises(cotensor.UnsupportedError, match="weight: the parameter is on cpu.*cuda:0") as raised:
        shared.attach(host, "device", store)
    assert raised.value.field == "weight" and host.weight.is_cpu
    with pytest.raises(cotensor.UnsupportedError, match="on cuda:0.*on the host.*meta"):
        shared.attach(device, "host", store)
    # More parts than a copy may have.
    scattered = torch.nn.Module()
    scattered.w = torch.nn.Parameter(torch.zeros(70_000, 2)[:, 0])
    to_device(driver, scattered)
    with pytest.raises(cotensor.UnsupportedError, match="70000 parts.*contiguous") as raised:
        shared.publish(scattered, "m", store)
    assert raised.value.field == "w"
    with pytest.raises(cotensor.UnsupportedError, match="share.* on the host"):
        shared.share(device, store=store)
    with pytest.raises(cotensor.CorruptError, match="not a model"):
        store.put("bytes", torch.zeros(100, dtype=torch.uint8), device="cuda:0")
        shared.state_dict("bytes", store)
    with pytest.raises(cotensor.UnsupportedError):
        shared.publish(device, "m", cotensor.Store())


def failed_copy_publishes_nothing(store: cotensor.Store) -> None:
    driver, module = Driver(), torch.nn.Linear(64, 64)
    to_device(driver, module)
    used = machine().used()
    machine().set("fail cuMemcpyDtoDAsync_v2 999")
    with pytest.raises(cotensor.IoError, match="copying"):
        shared.publish(module, "m", store)
    machine().set()
    assert "m" not in store
    until(lambda: machine().used() == used)
    builder = store.empty("b", 10, "uint8", device="cuda:0")
    for parts, error in (
        ([(0, 4096, 4)], cotensor.InvalidError),
        ([(8, module.weight.data_ptr(), 4)], cotensor.InvalidError),
        ([(1 << 63, module.weight.data_ptr(), 4)], cotensor.InvalidError),
    ):
        with pytest.raises(error):
            builder._copy_parts(parts)
    with pytest.raises(cotensor.InvalidError):
        builder._write_bytes(8, b"123")
    builder._write_bytes(8, b"12")
    assert builder.publish().tobytes() == bytes(8) + b"12"
    with pytest.raises(cotensor.UnsupportedError, match="not on a GPU"):
        store.empty("c", 10, "uint8")._copy_parts([])


def shared_weights_of_another_device_are_refused(store: cotensor.Store) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    with tempfile.TemporaryDirectory() as folder:
        model = BertModel(config)
        model.save_pretrained(folder)
        to_device(Driver(), model)
        shared.publish(model, "bert", store, attach=False)
        with pytest.raises(cotensor.ConflictError, match="bert is published on cuda:0.*made for cpu"):
            with shared.shared_weights("bert", store):
                BertModel.from_pretrained(folder)
        with shared.shared_weights("other", store):
            loaded = BertModel.from_pretrained(folder)
    assert store["other"].device == "cpu" and loaded.embeddings.word_embeddings.weight.is_cpu


def models_of_configurations_are_attached_on_the_default_device(store: cotensor.Store) -> None:
    from transformers import BertConfig, BertModel, PreTrainedModel

    driver, made, states = Driver(), [], [torch.zeros(16, dtype=torch.uint8)]
    original = vars(PreTrainedModel)["_from_config"].__func__

    def from_config(cls: Any, config: Any, **options: Any) -> Any:
        """As on a device: PyTorch without CUDA makes the model on the host."""
        if torch.get_default_device() != torch.device("cuda", 0):
            return original(cls, config, **options)
        with torch.device("cpu"):
            model = original(cls, config, **options)
        made.append(to_device(driver, model))
        # The generator of the device.
        states.append(states[-1] + 1)
        return model

    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreTrainedModel, "_from_config", classmethod(from_config))
        patch.setattr(torch.cuda, "get_rng_state", lambda device: states[-1])
        patch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.append(state))
        for _ in range(3):
            torch.manual_seed(1)
            states.append(torch.zeros(16, dtype=torch.uint8))
            with shared.shared_weights("bert", store), torch.device("cuda", 0):
                model = BertModel._from_config(config)
            for name, tensor in model.named_parameters():
                assert isinstance(tensor, OnDevice) and torch.equal(elements(driver, tensor), made[0][name])
            assert states[-1].tolist() == [1] * 16, "the generator goes on as where the model was made"
        torch.manual_seed(1)
        states.append(torch.ones(16, dtype=torch.uint8))
        with pytest.raises(cotensor.ConflictError, match="weights of BertModel from a configuration"):
            with shared.shared_weights("bert", store), torch.device("cuda", 0):
                BertModel._from_config(config)
        with pytest.raises(cotensor.ConflictError, match="bert is published on cuda:0.*made for cpu.*torch.device"):
            with shared.shared_weights("bert", store):
                BertModel._from_config(config)
    assert len(made) == 1 and store["bert"].device == "cuda:0" and store["bert"].version == 1


def publishes(store: cotensor.Store) -> None:
    """Publishes, and stays."""
    module = torch.nn.Linear(600, 600)
    to_device(Driver(), module)
    shared.publish(module, "m", store)
    step("published")


def attaches(store: cotensor.Store) -> None:
    """Uses the same memory, and stays."""
    driver = Driver()
    with shared.on_meta():
        module = torch.nn.Linear(600, 600)
    shared.attach(module, "m", store)
    before = bytes_of(elements(driver, module.weight))
    step("attached")
    assert bytes_of(elements(driver, module.weight)) == before
    step("read again")


if __name__ == "__main__":
    main(globals())
