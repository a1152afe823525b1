"""Modules that follow their name: compiled, pinned to one version, and during generation."""

from __future__ import annotations

import copy
import io
import os
import threading
from typing import Any, Callable, Iterator, List

import pytest
from conftest import local_store

torch = pytest.importorskip("torch")

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402


class Weighed(torch.nn.Module):
    """Returns its weight. Calls `between` during the pass."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((), float(value)))

    def forward(self, between: Callable[[], Any] = lambda: None) -> float:
        between()
        return float(self.weight)

    def generate(self, *between: Callable[[], Any]) -> List[float]:
        """Runs one pass for each token, like transformers."""
        return [self(each) for each in between]


def line(value: float) -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    torch.nn.init.constant_(module[0].weight, value)
    return module


store = local_store()


@pytest.fixture
def graphs() -> Iterator[List[Any]]:
    """A list for the graphs that ``torch.compile`` captures, with an empty compiler cache before and after."""
    import torch._dynamo

    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


def follower(store: cotensor.Store, value: float = 1) -> Any:
    ct.publish(Weighed(value), "weighed", store)
    module = Weighed()
    ct.attach(module, "weighed", store, follow=True)
    return module


def follows(store: cotensor.Store, run: Callable[[Any], Any]) -> None:
    x = torch.ones(1, 2)
    with torch.no_grad():
        for value in (1.0, 2.0, 3.0):
            ct.publish(line(value), "line", store, attach=False)
            assert float(run(x)) == 2 * value


@pytest.mark.parametrize("how", ["wrapped", "wrapped first", "in place", "around", "function"])
@pytest.mark.parametrize("when", ["compiled after", "compiled before", "run before"])
def test_compiled_module_follows(store: cotensor.Store, graphs: List[Any], how: str, when: str) -> None:
    def backend(captured: Any, example: Any) -> Any:
        graphs.append(captured)
        return captured.forward

    class Around(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x) * 1

    module = line(0.0)
    ct.publish(line(1.0), "line", store, attach=False)

    def compiled() -> Any:
        if how == "in place":
            module.compile(backend=backend)
            return module
        if how == "around":
            return torch.compile(Around(module), backend=backend)
        if how == "function":
            return torch.compile(lambda x: module(x) * 1, backend=backend)
        return torch.compile(module, backend=backend)

    run = None
    if when != "compiled after":
        run = compiled()
        if when == "run before":
            with torch.no_grad():
                assert float(run(torch.ones(1, 2))) == 0.0
    attached = run if how == "wrapped first" and run is not None else module
    ct.attach(attached, "line", store, follow=True)
    before = len(graphs)
    follows(store, compiled() if run is None else run)
    assert len(graphs) > before, "the module is still compiled"
    assert ct.attachment(attached).version == 4


def test_module_compiled_as_one_graph_is_refused(store: cotensor.Store, graphs: List[Any]) -> None:
    ct.publish(line(1.0), "line", store, attach=False)
    module = line(0.0)
    run = torch.compile(module, backend="eager", fullgraph=True)
    with torch.no_grad():
        run(torch.ones(1, 2))
        ct.attach(module, "line", store, follow=True)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="Gate.enter|follow.py"):
            run(torch.ones(1, 2))
        # Without following, the module compiles to one graph again, and refresh() switches its weights.
        ct.attach(module, "line", store, follow=False)
        assert float(run(torch.ones(1, 2))) == 2.0
        ct.publish(line(2.0), "line", store, attach=False)
        ct.refresh(module)
        assert float(run(torch.ones(1, 2))) == 4.0


def test_freezing_of_weights_is_refused(store: cotensor.Store) -> None:
    import torch._inductor.config as config

    ct.publish(line(1.0), "line", store, attach=False)
    module = line(0.0)
    # torch's own patch, because undoing a monkeypatch hides the setting from torch.
    with config.patch(freezing=True), pytest.raises(cotensor.UnsupportedError, match="freezing") as error:
        ct.attach(module, "line", store, follow=True)
    assert error.value.field == "follow"
    assert not module[0].weight.any(), "the module is unchanged"
    ct.attach(module, "line", store)


def test_compiled_module_is_published_and_attached(store: cotensor.Store) -> None:
    compiled = torch.compile(line(3.0), backend="eager")
    published = ct.publish(compiled, "compiled", store)
    assert ct.attachment(compiled) == published
    other = line(0.0)
    ct.attach(other, "compiled", store)
    assert float(other(torch.ones(1, 2))) == 6.0
    ct.attach(torch.compile(line(0.0), backend="eager"), "compiled", store)


def test_pinned_module_stays_on_one_version(store: cotensor.Store) -> None:
    module = follower(store)
    ct.publish(Weighed(2), "weighed", store)
    with ct.pin(module):
        assert module() == 2, "a pin starts with the newest version"
        ct.publish(Weighed(3), "weighed", store)
        with ct.pin(module):
            assert module() == 2
        assert module() == 2
        with pytest.raises(cotensor.ConflictError, match="pins its version"):
            ct.refresh(module)
        with pytest.raises(ValueError), ct.pin(module):
            raise ValueError
        assert module() == 2
    assert module() == 3
    with ct.pin(line(1.0)):
        pass  # a module that does not follow can be pinned too
    with pytest.raises(cotensor.InvalidError), ct.pin(3):  # type: ignore[arg-type]
        pass


def test_pin_applies_to_other_threads_until_it_ends(store: cotensor.Store, monkeypatch: Any) -> None:
    monkeypatch.setattr("cotensor.torch.weights.follow.PASS_TIMEOUT", 0.2)
    module = follower(store)
    pinned, go_on, seen = threading.Event(), threading.Event(), []

    def use() -> None:
        with ct.pin(module):
            pinned.set()
            go_on.wait(60)
            seen.append(module())

    thread = threading.Thread(target=use)
    thread.start()
    assert pinned.wait(60)
    ct.publish(Weighed(2), "weighed", store)
    assert [module() for _ in range(3)] == [1, 1, 1]
    gate = ct.weights.models._states[module].gate
    assert not gate._must_wait(module), "after one wait in vain, passes do not wait"
    refreshed = []
    waiting = threading.Thread(target=lambda: refreshed.append(ct.refresh(module)))
    waiting.start()
    go_on.set()
    thread.join()
    waiting.join()
    assert seen == [1] and module() == 2 and refreshed in ([True], [False])


def test_pin_in_a_generator_ends_in_any_thread(store: cotensor.Store) -> None:
    module = follower(store)

    def steps() -> Iterator[float]:
        with ct.pin(module):
            while True:
                yield module()

    running = steps()
    assert next(running) == 1
    ct.publish(Weighed(2), "weighed", store)
    assert next(running) == 1 and module() == 1
    ending = threading.Thread(target=running.close)
    ending.start()
    ending.join()
    assert module() == 2


def test_forked_child_has_no_pin_of_its_parent(daemon: Any) -> None:
    with daemon.connect() as store:
        module = follower(store)
        code = None
        with ct.pin(module):
            child = os.fork()
            if child == 0:
                code = 1
        if child == 0:
            try:
                with ct.pin(module):
                    code = 0 if module() == 1 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_submodules_are_pinned(store: cotensor.Store) -> None:
    inner = follower(store)
    outer = torch.nn.ModuleList([torch.nn.Identity(), inner])
    with ct.pin(outer):
        ct.publish(Weighed(2), "weighed", store)
        assert inner() == 1
    assert inner() == 2


def test_generate_uses_one_version(store: cotensor.Store) -> None:
    module = follower(store)

    def publish(value: float) -> Callable[[], Any]:
        return lambda: ct.publish(Weighed(value), "weighed", store)

    assert module.generate(publish(2), publish(3), publish(4)) == [1, 1, 1]
    assert module.generate(lambda: None) == [4]
    # Copies and saved modules have the method of their class.
    twin = copy.deepcopy(module)
    assert twin.generate(publish(5)) == [4] and module() == 5
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False).generate(lambda: None) == [5]
    ct.attach(module, "weighed", store, follow=False)
    assert "generate" not in vars(module)


def test_transformers_generate_uses_one_version(store: cotensor.Store) -> None:
    transformers = pytest.importorskip("transformers")
    from torch_models import family

    kind, config, _ = family("llama")
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(kind(config).eval())
    want = [model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=8, do_sample=False).tolist() for model in models]
    assert want[0] != want[1], "the versions generate different tokens"
    ct.publish(models[0], "llama", store, attach=False)
    model = kind(config).eval()
    ct.attach(model, "llama", store, follow=True)

    class PublishAfterEachToken(transformers.StoppingCriteria):
        """Publishes the other version after each token."""

        def __call__(self, tokens: Any, scores: Any, **more: Any) -> Any:
            ct.publish(models[tokens.shape[1] % 2], "llama", store, attach=False)
            return torch.zeros(tokens.shape[0], dtype=torch.bool)

    for _ in range(4):
        before = store.get("llama").version
        found = model.generate(
            torch.tensor([[3, 4, 5]]), max_new_tokens=8, do_sample=False, stopping_criteria=[PublishAfterEachToken()]
        )
        assert found.tolist() in want
        assert ct.attachment(model).version == before
