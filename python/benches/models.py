"""BERT-base with 440 MB of random weights: attach, load, memory of four processes, shared outputs."""

from __future__ import annotations

import os
import statistics
import tempfile
from typing import Any, Dict, List

import torch
from measure import Child, interleaved, pss, seconds, us
from transformers import BertConfig, BertModel

import cotensor
from cotensor.torch import attach, share, shared_weights

#: Publishes weights that are in no file, and exits.
PUBLISHER = """
import sys, torch
import cotensor
from cotensor.torch import publish
from transformers import BertConfig, BertModel
torch.manual_seed(0)
publish(BertModel(BertConfig()), "bert", store=cotensor.connect(sys.argv[1], client="publisher"))
print("ready", flush=True)
"""

#: Runs the interpreter with torch alone, or attaches the model and runs it once.
WORKER = """
import sys, torch
from transformers import BertConfig, BertModel
torch.set_num_threads(1)
if sys.argv[1] != "baseline":
    import cotensor
    from cotensor.torch import attach
    with torch.device("meta"):
        model = BertModel(BertConfig())
    attach(model, "bert", store=cotensor.connect(sys.argv[1]))
    model.eval()
    # Touches every page, so that this process maps all weights.
    sum(float(tensor.detach().view(-1)[::1024].sum()) for tensor in model.parameters())
    with torch.no_grad():
        model(torch.ones(1, 16, dtype=torch.long))
print("ready", flush=True)
sys.stdin.read()
"""


def run(socket: str, rounds: int, _ray: Any) -> Dict[str, float]:
    publisher = Child(PUBLISHER, socket)
    assert publisher.line() == "ready"
    publisher.end()
    # Measured first, before this process maps any weights.
    taken = memory(socket)
    taken.update(loading(socket, rounds))
    with cotensor.connect(socket) as store:
        taken.update(memoised(store, rounds))
    return taken


def loading(socket: str, rounds: int) -> Dict[str, float]:
    import safetensors.torch

    config = BertConfig()
    folder = tempfile.mkdtemp()
    BertModel(config).save_pretrained(folder)
    file = os.path.join(folder, "model.safetensors")
    model: Any = None

    def fresh() -> None:
        # A module without memory, as in a new process, so that no run frees the weights of an earlier run.
        nonlocal model
        with torch.device("meta"):
            model = BertModel(config)

    def attached() -> None:
        with cotensor.connect(socket, client="reader") as reader:
            attach(model, "bert", store=reader)

    def built() -> None:
        nonlocal model
        with torch.device("meta"):
            model = BertModel(config)
        attached()

    def in_block() -> None:
        nonlocal model
        with cotensor.connect(socket, client="reader") as reader, shared_weights("from file", reader):
            model = BertModel.from_pretrained(folder)

    def loaded() -> None:
        model.load_state_dict(safetensors.torch.load_file(file), assign=True)

    def pretrained() -> None:
        nonlocal model
        model = BertModel.from_pretrained(folder)

    contenders = {
        "attach": attached,
        "build + attach": built,
        "shared_weights + from_pretrained": in_block,
        "load_file + load_state_dict(assign)": loaded,
        "from_pretrained": pretrained,
    }
    for name, load in list(contenders.items()):
        contenders[f"{name} + touch every page"] = lambda load=load: (load(), touch(model))
    for contender in contenders.values():
        fresh()
        contender()
    taken = interleaved(contenders, max(3, rounds // 4), before=dict.fromkeys(contenders, fresh))
    for name, value in taken.items():
        print(f"  {name:46} {us(value)}")
    return taken


def touch(model: Any) -> float:
    """Reads one byte of every page of every weight."""
    total = 0.0
    for tensor in model.parameters():
        total += float(tensor.detach().view(-1)[::1024].sum())
    return total


def memory(socket: str) -> Dict[str, float]:
    """The memory of one process and of four processes with the model, without the memory of the interpreter with torch."""

    def together(kind: str, count: int) -> int:
        children = [Child(WORKER, kind) for _ in range(count)]
        for child in children:
            assert child.line() == "ready"
        used = sum(pss(child.process.pid) for child in children)
        for child in children:
            child.end()
        return used

    figures: List[int] = []
    for count in (1, 4):
        figures.append(together(socket, count) - together("baseline", count))
    one, four = figures
    print(f"  one process {one >> 20} MiB, four {four >> 20} MiB beyond interpreter and torch: {four / one:.2f}")
    return {"memory of one process, bytes": one, "memory of four processes, bytes": four}


def memoised(store: Any, rounds: int) -> Dict[str, float]:
    """The same input through two models with the same encoder."""
    torch.manual_seed(0)
    one, other = BertModel(BertConfig()).eval(), BertModel(BertConfig()).eval()
    other.load_state_dict(one.state_dict())
    first, second = share(one, store=store, name="bert"), share(other, store=store, name="bert")
    generator = torch.Generator().manual_seed(1)
    times: Dict[str, List[float]] = {"plain": [], "computed": [], "found": []}
    with torch.no_grad():
        ids = torch.randint(0, 30000, (1, 128), generator=generator)
        captured = seconds(lambda: first.capture(ids))
        second.capture(ids)
        for _ in range(max(5, rounds // 4)):
            ids = torch.randint(0, 30000, (1, 128), generator=generator)
            times["plain"].append(seconds(lambda ids=ids: BertModel.forward(one, ids)))
            times["computed"].append(seconds(lambda ids=ids: one(ids)))
            times["found"].append(seconds(lambda ids=ids: other(ids)))
    assert second.hits == len(times["found"]), second
    plain, computed, found = (statistics.median(times[name]) for name in ("plain", "computed", "found"))
    print(f"  BERT-base, 128 tokens: module {us(plain)}, computed by its graph and published {us(computed)}", end="")
    print(f" ({computed / plain:.2f}), found {us(found)} ({100 * found / plain:.1f} %); captured once in {us(captured)}")
    return {
        "memoised encoder, module itself": plain,
        "memoised encoder, computed": computed,
        "memoised encoder, found": found,
        "memoised encoder, captured": captured,
    }
