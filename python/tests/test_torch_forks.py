"""Forked children of a process whose other threads publish, attach and make modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from functions_common import run  # noqa: E402

PROGRAM = """
import os, signal, socket, sys, threading
os.environ["COTENSOR_SOCKET"] = sys.argv[2]
import torch, transformers
import cotensor, cotensor.torch as ct

torch.set_num_threads(1)
store = cotensor.connect(sys.argv[1])
go_on = threading.Event()
attaching, making = threading.Event(), threading.Event()

class Attaching(torch.nn.Linear):
    def __setattr__(self, name, value):
        if name == "weight" and threading.current_thread() is not threading.main_thread():
            attaching.set()
            go_on.wait()
        super().__setattr__(name, value)

class Making(transformers.BertModel):
    def __init__(self, config):
        making.set()
        go_on.wait()

config = transformers.BertConfig(
    num_hidden_layers=1, hidden_size=12, num_attention_heads=2, intermediate_size=12, vocab_size=9
)

def make():
    with ct.shared_weights("made", store):
        Making._from_config(config)

ct.publish(torch.nn.Linear(3, 3), "linear", store)
with torch.device("meta"):
    linear = Attaching(3, 3)
silent = socket.socket(socket.AF_UNIX)
silent.bind(sys.argv[2])
silent.listen()
for target in (make, lambda: ct.attach(linear, "linear", store), lambda: ct.state_dict("linear")):
    threading.Thread(target=target, daemon=True).start()
making.wait()
attaching.wait()
# The last thread waits for an answer of the default daemon.
connection, _ = silent.accept()
child = os.fork()
if child == 0:
    signal.alarm(45)
    os.environ["COTENSOR_SOCKET"] = sys.argv[1]
    module = torch.nn.Linear(3, 3)
    ct.publish(module, "by default")
    with ct.shared_weights("bert", store):
        model = transformers.BertModel._from_config(config)
    assert ct.attachment(model).name == "bert"
    os._exit(0)
_, status = os.waitpid(child, 0)
print("the child ends" if status == 0 else f"the child fails: {status}", flush=True)
os._exit(0)
"""


def test_locks_of_other_threads_are_free_in_a_forked_child(daemon: Any, tmp_path: Path) -> None:
    out = run(PROGRAM, str(daemon.socket), str(tmp_path / "silent.sock"))
    assert out == "the child ends\n"
