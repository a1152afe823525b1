"""Memory of several processes with one BERT-base, loaded privately and shared: from safetensors unchanged, converted, changed in
memory, and loaded once by a parent that forks."""

from __future__ import annotations

import tempfile
from typing import Any, Dict

from measure import Child, pss

PROCESSES = 4

#: Loads the model in one of the variants, and touches every page.
WORKER = """
import os, signal, sys, torch
from transformers import BertConfig, BertModel
torch.set_num_threads(1)
variant, sharing, socket, folder, forks = sys.argv[1:]
dtype = torch.bfloat16 if variant == "converted" else torch.float32

def load():
    model = BertModel.from_pretrained(folder, dtype=dtype)
    if variant == "changed":                  # like a merged adapter or fine-tuning
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.001)
    return model

if variant == "baseline":
    model = BertModel(BertConfig(num_hidden_layers=1, hidden_size=12, intermediate_size=12, vocab_size=9))
elif sharing == "plain":
    model = load()
else:
    import cotensor, cotensor.torch
    store = cotensor.connect(socket)
    if variant == "changed" and sharing == "publish":
        model = load()
        cotensor.torch.publish(model, variant, store)
    elif variant == "changed":
        with torch.device("meta"):
            model = BertModel(BertConfig())
        cotensor.torch.attach(model, variant, store)
    else:
        with cotensor.torch.shared_weights(variant, store):
            model = load()
model.eval()
children, (done, ready) = [], os.pipe()
for _ in range(int(forks)):
    child = os.fork()
    if child == 0:
        children = None
        break
    children.append(child)
sum(float(tensor.detach().view(-1)[::512].sum()) for tensor in model.parameters())
with torch.no_grad():
    model(torch.ones(1, 16, dtype=torch.long) % 9)
if children is not None:
    for _ in children:
        os.read(done, 1)
    print("ready", *children, flush=True)
    sys.stdin.read()
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
else:
    os.write(ready, b"x")
    signal.pause()
"""


def run(socket: str, _rounds: int, _ray: Any) -> Dict[str, float]:
    from transformers import BertConfig, BertModel

    folder = tempfile.mkdtemp()
    BertModel(BertConfig()).save_pretrained(folder)

    def total(variant: str, sharing: str, processes: int = PROCESSES, forks: int = 0) -> int:
        """The proportional memory of processes that loaded one variant, with their forked children, in bytes."""
        children = [Child(WORKER, variant, sharing, socket, folder, str(forks)) for _ in range(processes)]
        pids = []
        for child in children:
            words = child.line().split()
            assert words[0] == "ready"
            pids += [child.process.pid, *map(int, words[1:])]
        used = sum(map(pss, pids))
        for child in children:
            child.end()
        return used

    found: Dict[str, float] = {}

    def note(name: str, value: int) -> None:
        found[f"processes, {name}, bytes"] = value
        print(f"  {PROCESSES} processes, {name:24} {value >> 20:5} MiB", flush=True)

    baseline = total("baseline", "plain")
    note("interpreter and torch", baseline)
    for variant in ("converted", "mapped", "changed"):
        note(f"{variant}, plain", total(variant, "plain") - baseline)
        publisher = Child(WORKER, variant, "publish", socket, folder, "0")
        assert publisher.line() == "ready"
        publisher.end()
        note(f"{variant}, shared", total(variant, "shared") - baseline)
    forked = total("baseline", "plain", 1, PROCESSES)
    for variant in ("converted", "mapped", "changed"):
        note(f"{variant}, forked", total(variant, "plain", 1, PROCESSES) - forked)
    return found
