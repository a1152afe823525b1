"""One model on several devices: groups of operations, results that move, gradients, weights that change."""

from __future__ import annotations

import copy
import gc

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from cotensor.errors import InvalidError  # noqa: E402
from cotensor.tensorref import Middleware, Strategy, offload, simulated_device  # noqa: E402

DEVICES = ["simulated:0", "simulated:1"]
X = torch.linspace(-1, 1, 48).reshape(3, 16)
LAYER = 16 * 17 * 4


@pytest.fixture
def memories():
    # Tensors of earlier tests would count.
    gc.collect()
    memories = simulated_device(count=2).memories[:2]
    yield memories
    for memory in memories:
        memory.limit_bytes = None


@pytest.fixture(autouse=True)
def same_attention():
    # The CPU has a fused attention that rounds differently.
    with sdpa_kernel(SDPBackend.MATH):
        yield


def mlp(layers=8, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(layers)])


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config).eval()


class Places(Middleware):
    """The devices to which weights are copied."""

    def __init__(self):
        self.devices = {}

    def after_move(self, move):
        if move.to_device:
            self.devices.setdefault(move.tensor, set()).add(move.device)


def test_simulated_devices_have_memories_of_their_own(memories):
    before = [memory.allocated_bytes for memory in memories]
    host = torch.ones(4)
    one, other = host.to("simulated:0"), host.to("simulated:1")
    assert [one.device.index, other.device.index, (other + 1).device.index] == [0, 1, 1]
    assert [memory.allocated_bytes - size for memory, size in zip(memories, before)] == [16, 16]
    with pytest.raises(RuntimeError, match="simulated:0 and simulated:1"):
        one + other
    assert torch.equal((one + other.to(one.device)).cpu(), host + 1)
    assert torch.zeros(2, device="simulated:1").device.index == 1 and torch.zeros_like(other).device.index == 1
    memories[1].limit_bytes = memories[1].allocated_bytes
    with pytest.raises(torch.OutOfMemoryError):
        host.to("simulated:1")
    host.to("simulated:0")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        host.to("simulated:99")


@pytest.mark.parametrize("strategy", ["genoa", "flow", "lru", "pinned"])
def test_a_model_that_fits_on_two_devices_stays_there(strategy, memories):
    model, places = mlp(), Places()
    limits = [6 * LAYER + memory.allocated_bytes for memory in memories]
    with offload(model, DEVICES, strategy=strategy, memory=limits) as session, torch.no_grad():
        for _ in range(4):
            model(X)
        session.use(places)
        before = session.stats()["copies"]
        y = model(X)
        assert [session.stats(device)["used_bytes"] <= limit for device, limit in zip(DEVICES, limits)] == [True, True]
        if strategy != "genoa":
            assert session.stats()["copies"] == before and y.device == torch.device("simulated", 1)
            assert 8 * LAYER <= session.stats()["used_bytes"] <= session.stats()["budget_bytes"]
        else:
            assert all(len(devices) == 1 for devices in places.devices.values())
            assert {device for devices in places.devices.values() for device in devices} == set(DEVICES)
    torch.testing.assert_close(y.cpu(), model(X), rtol=1e-6, atol=1e-6)


def test_groups_take_turns_where_the_weights_do_not_fit(memories):
    model, places = mlp(16), Places()
    limits = [6 * LAYER + memory.allocated_bytes for memory in memories]
    with offload(model, DEVICES, memory=limits) as session, torch.no_grad():
        session.use(places)
        for turn in range(16):
            if turn == 4:
                places.devices.clear()
                before = session.stats()["copied_bytes"]
            y = model(X)
        copied = (session.stats()["copied_bytes"] - before) / 12
        expected = session.forecast(16)
        assert all(session.stats(device)["used_bytes"] > 0 for device in DEVICES)
    # One device of 6 layers would copy at least 10.
    assert copied < 10 * LAYER
    assert all(len(devices) == 1 for devices in places.devices.values())
    assert [one.uses[0] for one in expected] == [f"{layer}.weight" for layer in range(16)]
    torch.testing.assert_close(y.cpu(), model(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strategy", ["genoa", "flow", "lru"])
def test_middlewares_redirect_operations_to_a_device(strategy, memories):
    model, places = mlp(8), Places()

    class Redirect(Middleware):
        to = {"2.weight": "simulated:1", "5.weight": "host"}

        def before_operation(self, operation):
            return self.to.get(operation.uses[0])

    limits = [6 * LAYER + memory.allocated_bytes for memory in memories]
    with offload(model, DEVICES, memory=limits, strategy=strategy) as session, torch.no_grad():
        session.use(places)
        session.use(Redirect())
        for _ in range(12):
            y = model(X)
        # Plans of the other device may have the redirected weight, too.
        assert "simulated:1" in places.devices["2.weight"] and "5.weight" not in places.devices
        Redirect.to = {"6.weight": "simulated:7"}
        with pytest.raises(InvalidError, match="'simulated:7' is neither \"host\" nor one of"):
            model(X)
    torch.testing.assert_close(y.cpu(), model(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strategy", ["genoa", "flow"])
def test_outputs_tokens_and_training_are_equal(strategy, memories, monkeypatch):
    plain = llama()
    model, ids = copy.deepcopy(plain), torch.tensor([[5, 6, 7, 8, 9, 3], [11, 4, 2, 9, 10, 12]])
    size = sum(parameter.nbytes for parameter in model.parameters())
    # Too small for the model, whatever the activations take.
    monkeypatch.setattr("cotensor.tensorref.memory.DeviceMemory.budget", lambda memory: size // 3)

    def program(run):
        outputs = []
        with torch.no_grad():
            outputs += [run(input_ids=ids).logits.cpu() for _ in range(4)]
            outputs.append(run.generate(input_ids=ids, max_new_tokens=6, min_new_tokens=6, do_sample=False).cpu())
        optimizer = torch.optim.AdamW(run.parameters(), lr=0.05, weight_decay=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            run(input_ids=ids).logits.square().mean().backward()
            optimizer.step()
        return outputs

    expected = program(plain)
    with offload(model, DEVICES, strategy=strategy) as session:
        outputs = program(model)
        assert all(session.stats(device)["copies"] > 0 for device in DEVICES)
    for one, other in zip(outputs, expected):
        assert torch.equal(one, other)
    for one, other in zip(model.parameters(), plain.parameters()):
        assert one.device.type == "cpu" and torch.equal(one, other)


def test_writes_reach_all_devices(memories):
    model, plain = mlp(), mlp()
    batch, other = torch.nn.BatchNorm1d(16), torch.nn.BatchNorm1d(16)
    limits = [6 * LAYER + memory.allocated_bytes for memory in memories]
    with offload([model, batch], DEVICES, memory=limits), torch.no_grad():
        for turn in range(6):
            for one, norm in ((model, batch), (plain, other)):
                norm(one(X))
                for layer in one:
                    layer.weight.mul_(1.5)
                    layer.bias.data.add_(turn)
        y = batch.eval()(model(X))
    torch.testing.assert_close(y.cpu(), other.eval()(plain(X)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(batch.running_mean, other.running_mean, rtol=1e-5, atol=1e-5)


def test_results_of_several_devices_are_used_together(memories):
    model = mlp(8)
    limits = [6 * LAYER + memory.allocated_bytes for memory in memories]

    def program():
        first = model[0](X)
        last = model[1:](first)
        joined = torch.cat([first, last]) + torch.ones(16)
        total = first * 2
        total += last
        torch.add(total, last, out=total)
        picked = first[(last.sum(1) > -1e9).nonzero().squeeze(1)]
        return joined.sum(), total, picked, last - first

    with torch.no_grad():
        expected = program()
        with offload(model, DEVICES, memory=limits) as session:
            for _ in range(4):
                results = program()
            assert {str(mover.device) for mover in session.movers if mover.driver.used} == set(DEVICES)
    for one, other in zip(results, expected):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-6, atol=1e-6)


def test_a_result_is_copied_once_to_another_device(memories):
    model = mlp(8)
    limits = [6 * LAYER + memory.allocated_bytes for memory in memories]

    def program(mask):
        y = mask
        for layer in model:
            y = layer(y) + mask
        return y

    with offload(model, DEVICES, memory=limits) as session:
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                for _ in range(4):
                    mask = X.to("simulated:0").requires_grad_(grad)
                    program(mask)
                memories[1].reset()
                before = session.stats("simulated:1")["copies"]
                program(mask)
                mask.data.mul_(2)
                with torch.no_grad():
                    mask.mul_(0.5)
                # The mask, and the result of the first group.
                assert memories[1].copies_in - (session.stats("simulated:1")["copies"] - before) <= 2
        y = program(mask)
        y.sum().backward()
        gradient = mask.grad.cpu()
        # Writes that the version of the mask does not show.
        version = mask._version
        mask.data.mul_(4)
        program(mask)
        mask.data.mul_(0.25)
        assert mask._version == version
        again = program(mask)
    plain = X.clone().requires_grad_()
    expected = program(plain)
    expected.sum().backward()
    torch.testing.assert_close(y.detach().cpu(), expected.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(again.detach().cpu(), expected.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient, plain.grad, rtol=1e-5, atol=1e-5)


def test_a_program_without_a_period_is_divided(memories):
    model = mlp(12)
    limits = [8 * LAYER + memory.allocated_bytes for memory in memories]
    order = torch.Generator().manual_seed(0)
    with offload(model, DEVICES, memory=limits) as session, torch.no_grad():
        for _ in range(20):
            chosen = torch.randint(12, (5,), generator=order).tolist()
            y = X
            for layer in chosen:
                y = model[layer](y)
        assert all(session.stats(device)["used_bytes"] > 0 for device in DEVICES)
    expected = X
    for layer in chosen:
        expected = model[layer](expected)
    torch.testing.assert_close(y.cpu(), expected.detach(), rtol=1e-6, atol=1e-6)


def test_an_announced_program_is_divided_before_its_first_pass(memories):
    model = mlp(8)
    limits = [6 * LAYER + memory.allocated_bytes for memory in memories]
    session = offload(model, DEVICES, memory=limits)
    session.announce([("linear", [f"{layer}.weight", f"{layer}.bias"], 50) for layer in range(8)])
    with session, torch.no_grad():
        y = model(X)
        assert session.stats()["copies"] == 16
    assert y.device.index == 1


def test_strategies_of_programs_divide_a_model(memories):
    model, strategies = mlp(8), [Strategy(), Strategy()]
    limits = [6 * LAYER + memory.allocated_bytes for memory in memories]
    with offload(model, DEVICES, strategy=strategies, memory=limits) as session, torch.no_grad():
        for _ in range(4):
            y = model(X)
        assert all(strategy.used for strategy in strategies)
        assert [strategy.used for strategy in strategies] == [session.stats(device)["used_bytes"] for device in DEVICES]
    torch.testing.assert_close(y.cpu(), model(X), rtol=1e-6, atol=1e-6)


def test_failing_memory_is_survived(memories):
    model = mlp(8)
    limits = [6 * LAYER + memory.allocated_bytes for memory in memories]
    with torch.no_grad():
        expected = model(X)
        with offload(model, DEVICES, memory=limits) as session:
            for turn in range(24):
                memories[turn % 2].fail(1)
                torch.testing.assert_close(model(X).cpu(), expected, rtol=1e-6, atol=1e-6)
            assert session.stats()["out_of_memory"] > 0
    for memory in memories:
        memory.fail(0)


def test_wrong_arguments(memories):
    model = mlp(1)
    for devices, options, field in (
        ([], {}, "device"),
        (["simulated", "simulated:0"], {}, "device"),
        (["simulated", "cpu"], {}, "device"),
        (DEVICES, {"memory": ["1MiB"]}, "memory"),
        (DEVICES, {"strategy": ["flow", "genoa"]}, "strategy"),
        (DEVICES, {"strategy": Strategy()}, "strategy"),
    ):
        with pytest.raises(InvalidError, match=f"^{field}: "):
            offload(model, devices, **options)
    with pytest.raises(InvalidError, match="device: 'simulated:7' is none of"):
        offload(model, DEVICES).stats("simulated:7")


@pytest.mark.parametrize("strategy", ["flow", "genoa"])
def test_methods_that_are_named_like_the_device_take_its_number(strategy, memories):
    with offload(mlp(1), "simulated:1", strategy=strategy):
        for moved in (X.simulated(1), X.simulated(device=1), X.simulated(device=torch.device("simulated:1"), non_blocking=True)):
            assert moved.device == torch.device("simulated:1")
        assert X.simulated(0).device == X.simulated(device=0).device == torch.device("simulated:0")
