"""Unmodified models of Hugging Face transformers on shared weights: loaded in one process, attached in another."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, List, Set

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from functions_common import until  # noqa: E402
from torch_models import FAMILIES, digest, family, run  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402
from cotensor.torch.transformers import session  # noqa: E402

TESTS = str(Path(__file__).parent)

#: Runs the code of each input line and prints its result as a line of JSON. Imports torch and transformers once.
WORKER = """
import json, sys, traceback
socket, tests = sys.argv[1:]
sys.path.insert(0, tests)
import torch, transformers
import cotensor, cotensor.torch as ct
from torch_models import *
store = cotensor.connect(socket)
answers = sys.stdout
sys.stdout = sys.stderr
def memory():
    with open("/proc/self/smaps_rollup") as lines:
        return {line.split()[0][:-1]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB\\n")}
for line in sys.stdin:
    found = dict(globals())
    try:
        exec(json.loads(line), found)
        answer = {"result": found.get("result")}
    except BaseException as error:
        answer = {"error": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
    del found
    print(json.dumps(answer), file=answers, flush=True)
"""


class Worker:
    """Another process with a connection to the daemon."""

    def __init__(self, daemon: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(daemon.socket), TESTS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )

    def start(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the worker ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["trace"]
        return answer["result"]

    def run(self, code: str) -> Any:
        self.start(code)
        return self.answer()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def worker(daemon: Any) -> Any:
    started = Worker(daemon)
    yield started
    started.end()


@pytest.fixture(scope="module")
def store(daemon: Any) -> Any:
    with daemon.connect() as opened:
        yield opened


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_family_is_attached_in_another_process(name: str, store: Any, worker: Any) -> None:
    kind, config, inputs = family(name)
    torch.manual_seed(3)
    model = kind(config)
    want = run(model, inputs)
    ct.publish(model, f"published {name}", store)
    assert run(model, inputs) == want
    result = worker.run(f"""
kind, config, inputs = family({name!r})
with torch.device("meta"):
    model = kind(config)
ct.attach(model, "published {name}", store)
result = run(model, inputs)
""")
    assert result == want


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_family_from_pretrained_and_from_config(name: str, store: Any, worker: Any, tmp_path: Path) -> None:
    kind, config, inputs = family(name)
    torch.manual_seed(4)
    saved = kind(config)
    # Covers tensors that the constructor computes, such as rotary frequencies, and random initialization.
    saved.save_pretrained(tmp_path)
    with torch.no_grad():
        want = run(kind.from_pretrained(tmp_path), inputs)
    with ct.shared_weights(f"saved {name}", store):
        first = kind.from_pretrained(tmp_path)
    assert run(first, inputs) == want
    assert ct.attachment(first).version == 1
    tied = len(list(saved.parameters())) < len(list(saved.named_parameters(remove_duplicate=False)))
    result = worker.run(f"""
kind, config, inputs = family({name!r})
with ct.shared_weights("saved {name}", store):
    again, info = kind.from_pretrained({str(tmp_path)!r}, output_loading_info=True)
with ct.shared_weights("saved {name}", store, force=True):
    made = kind._from_config(config)
assert not info["missing_keys"], info
assert made.training and not again.training
assert ct.attachment(again).version == ct.attachment(made).version == 1
assert sorted(again.state_dict()) == sorted(made.state_dict())
tied = lambda model: len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False)))
assert tied(again) == tied(made) == {tied}
result = [run(again, inputs), run(made, inputs)]
""")
    assert result == [want, want]


def test_auto_classes_share_weights_and_generate(store: Any, worker: Any, tmp_path: Path) -> None:
    kind, config, inputs = family("llama")
    kind(config).save_pretrained(tmp_path)
    code = f"""
with ct.shared_weights("auto", store):
    model = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})
result = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=5, do_sample=False).tolist()
"""
    assert worker.run(code) == worker.run(code)
    plain = kind.from_pretrained(tmp_path).generate(torch.tensor([[3, 4, 5]]), max_new_tokens=5, do_sample=False)
    assert worker.run(code) == plain.tolist()
    with ct.shared_weights("auto", store, force=True):
        other = transformers.AutoModelForCausalLM.from_config(config)
    assert ct.attachment(other).name == "auto"
    assert store.get("auto").version == 1


def test_dtype_is_as_requested(store: Any, tmp_path: Path) -> None:
    kind, config, inputs = family("bert")
    kind(config).save_pretrained(tmp_path)
    for _ in range(2):
        with ct.shared_weights("in half", store):
            model = kind.from_pretrained(tmp_path, dtype=torch.bfloat16)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    # Another dtype of the same files is published separately, and shared too.
    for _ in range(2):
        with ct.shared_weights("in half", store):
            model = kind.from_pretrained(tmp_path)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert ct.attachment(model).name.startswith("in half/BertForMaskedLM-")
        assert ct.attachment(model).version == 1
    with ct.shared_weights("in half", store, requires_grad=False):
        model = kind.from_pretrained(tmp_path, dtype="bfloat16")
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_one_of_several_processes_loads(daemon: Any, store: Any, tmp_path: Path) -> None:
    kind, config, inputs = family("bert")
    model = kind(config)
    model.save_pretrained(tmp_path)
    want = run(model, inputs)
    workers = [Worker(daemon) for _ in range(3)]
    code = f"""
loads = []
original = transformers.BertForMaskedLM._load_pretrained_model
def counted(*args, **kwargs):
    loads.append(1)
    return original(*args, **kwargs)
transformers.modeling_utils.PreTrainedModel._load_pretrained_model = staticmethod(counted)
with ct.shared_weights("by one", store):
    model = transformers.BertForMaskedLM.from_pretrained({str(tmp_path)!r})
result = [run(model, family("bert")[2]), len(loads)]
"""
    try:
        for each in workers:
            each.run("pass")
        for each in workers:
            each.start(code)
        results = [each.answer() for each in workers]
    finally:
        for each in workers:
            each.end()
    assert [result[0] for result in results] == [want] * 3
    assert sum(result[1] for result in results) == 1
    assert store.get("by one").version == 1


class RecordingLock:
    """A lock that records the threads that have requested it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.threads: Set[int] = set()

    def __enter__(self) -> None:
        self.threads.add(threading.get_ident())
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()


def test_threads_of_one_process_load_once(tmp_path: Path, monkeypatch: Any) -> None:
    store = cotensor.Store()
    kind, config, inputs = family("vit")
    kind(config).save_pretrained(tmp_path)
    made: List[Any] = []
    tie = transformers.PreTrainedModel.tie_weights
    inside, together = [], []
    init = transformers.ViTModel.__init__
    lock = RecordingLock(session._making)

    def counted(*args: Any, **kwargs: Any) -> None:
        inside.append(1)
        # All threads are in or before this constructor.
        until(lambda: len(lock.threads) == 8)
        init(*args, **kwargs)
        together.append(len(inside))
        inside.pop()

    monkeypatch.setattr(session, "_making", lock)
    monkeypatch.setattr(transformers.ViTModel, "__init__", counted)

    def load() -> None:
        with ct.shared_weights("threads", store):
            made.append(transformers.AutoModel.from_pretrained(tmp_path))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    # One at a time, because transformers replaces methods of its classes while it constructs a model.
    assert together == [1] * 8
    assert transformers.PreTrainedModel.tie_weights is tie
    assert store.get("threads").version == 1
    assert len({run(model, inputs) for model in made}) == 1


def test_failed_load_releases_the_turn(store: Any, tmp_path: Path) -> None:
    kind, config, inputs = family("bert")
    with ct.shared_weights("fails first", store):
        with pytest.raises(OSError):
            kind.from_pretrained(tmp_path / "nothing here")
        assert "fails first" not in store.names()
        model = kind._from_config(config)
    assert ct.attachment(model).version == 1


def test_patches_end_with_the_block(store: Any) -> None:
    from transformers.modeling_utils import PreTrainedModel

    names = ["from_pretrained", "_from_config", "_load_pretrained_model", "_finalize_model_loading"]
    before = [vars(PreTrainedModel)[name] for name in names]
    kind, config, _ = family("bert")
    with ct.shared_weights("patched", store):
        assert [vars(PreTrainedModel)[name] for name in names] != before
        with ct.shared_weights("patched twice", store):
            inner = kind._from_config(config)
        outer = kind._from_config(config)

        # The block does not apply to models of other threads.
        made: List[Any] = []
        thread = threading.Thread(target=lambda: made.append(kind._from_config(config)))
        thread.start()
        thread.join()
        assert ct.attachment(made[0]) is None
    assert [vars(PreTrainedModel)[name] for name in names] == before
    assert (ct.attachment(inner).name, ct.attachment(outer).name) == ("patched twice", "patched")
    assert ct.attachment(kind._from_config(config)) is None


def test_weights_from_config_are_not_used_for_a_checkpoint(store: Any, tmp_path: Path) -> None:
    kind, config, inputs = family("bert")
    trained = kind(config).eval()
    trained.save_pretrained(tmp_path / "checkpoint")
    with ct.shared_weights("made", store):
        kind._from_config(config)
    with ct.shared_weights("made", store), pytest.raises(cotensor.ConflictError, match="weights of .* from a configuration"):
        kind.from_pretrained(tmp_path / "checkpoint")
    # Weights from publish() apply to any checkpoint, if the program says so.
    ct.publish(trained, "published", store)
    with ct.shared_weights("published", store, force=True):
        assert run(kind.from_pretrained(tmp_path / "checkpoint").eval(), inputs) == run(trained, inputs)


def test_tasks_of_one_loop_have_separate_blocks(store: Any) -> None:
    kind, config, _ = family("bert")

    async def make(name: str) -> Any:
        with ct.shared_weights(name, store):
            await asyncio.sleep(0)
            model = kind._from_config(config)
            await asyncio.sleep(0)
        return ct.attachment(model).name

    async def both() -> Any:
        return await asyncio.gather(make("of one task"), make("of another"))

    assert asyncio.run(both()) == ["of one task", "of another"]


def test_other_model_or_checkpoint_is_refused(store: Any, tmp_path: Path) -> None:
    kind, config, _ = family("bert")
    kind(config).save_pretrained(tmp_path / "one")
    with ct.shared_weights("of one", store):
        kind.from_pretrained(tmp_path / "one")
    with ct.shared_weights("of one", store), pytest.raises(cotensor.ConflictError, match="made of ViTModel from a config"):
        transformers.ViTModel._from_config(family("vit")[1])
    with ct.shared_weights("of one", store, force=True), pytest.raises(cotensor.InvalidError, match="of one does not fit"):
        transformers.ViTModel._from_config(family("vit")[1])
    # The same configuration with other files.
    kind(config).save_pretrained(tmp_path / "two")
    with ct.shared_weights("of one", store), pytest.raises(cotensor.ConflictError, match=f"the files.*{tmp_path}/one"):
        kind.from_pretrained(tmp_path / "two")
    store.remove("of one")
    with ct.shared_weights("of one", store):
        kind.from_pretrained(tmp_path / "two")


def large() -> Any:
    """The configuration of a model of 60 MB, most of it one embedding."""
    config = family("bert")[1]
    config.update({"vocab_size": 30_000, "hidden_size": 512, "intermediate_size": 512})
    return config


def test_second_process_has_no_private_copy(store: Any, worker: Any, tmp_path: Path) -> None:
    config = large()
    model = transformers.BertForMaskedLM(config)
    model.save_pretrained(tmp_path)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        want = digest(model.eval()(ids))
    size = sum(parameter.nbytes for parameter in model.parameters())
    assert size > 50 << 20
    with ct.shared_weights("large", store):
        transformers.BertForMaskedLM.from_pretrained(tmp_path)
    code = f"""
import gc
ids = torch.arange(9)[None]
warm = family("bert")
warm[0](warm[1])(ids)                     # allocates the memory of the libraries
warm[0](warm[1]).save_pretrained({str(tmp_path / "warm")!r})
warm[0].from_pretrained({str(tmp_path / "warm")!r})
gc.collect()
before = memory()
with ct.shared_weights("large", store):
    model = transformers.BertForMaskedLM.from_pretrained({str(tmp_path)!r})
touched = sum(float(p.sum()) for p in model.parameters())
after = memory()
with torch.no_grad():
    found = digest(model.eval()(ids))
result = [after["Anonymous"] - before["Anonymous"], after["Rss"] - before["Rss"], found]
"""
    anonymous, resident, found = worker.run(code)
    assert found == want
    assert resident > size * 3 // 4, "every page was touched"
    assert anonymous < size // 10
    # The measurement finds the private copy of a model without shared weights.
    alone = worker.run("""
config = family("bert")[1]
config.update({"vocab_size": 30_000, "hidden_size": 512, "intermediate_size": 512})
before = memory()
model = transformers.BertForMaskedLM(config)
result = memory()["Anonymous"] - before["Anonymous"]
""")
    assert alone > size * 3 // 4


def test_loader_frees_its_private_copy(worker: Any, tmp_path: Path) -> None:
    anonymous = worker.run("""
import gc
gc.collect()
config = family("bert")[1]
config.update({"vocab_size": 30_000, "hidden_size": 512, "intermediate_size": 512})
before = memory()
with ct.shared_weights("loaded", store):
    model = transformers.BertForMaskedLM._from_config(config)
gc.collect()
import ctypes
ctypes.CDLL(None).malloc_trim(0)  # returns freed memory, so that it is not counted
result = [memory()["Anonymous"] - before["Anonymous"], sum(p.nbytes for p in model.parameters())]
""")
    assert anonymous[0] < anonymous[1] // 10
