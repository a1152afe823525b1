"""What sessions replace in PyTorch and Python, where another library has replaced it, too."""

from __future__ import annotations

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import X, mlp  # noqa: E402

from cotensor.tensorref import offload  # noqa: E402
from cotensor.tensorref.threads import entered  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")


#: What a session replaces, and a program that calls it.
REPLACED = {
    "start": (threading.Thread, lambda x: in_thread(lambda: None)),
    "__new__": (torch.nn.Parameter, torch.nn.Parameter),
    "__deepcopy__": (torch.nn.Parameter, lambda x: copy.deepcopy(torch.nn.Parameter(x))),
    "apply": (torch.autograd.Function, lambda x: Double.apply(x.requires_grad_())),
    "_engine_run_backward": (torch.autograd, lambda x: (x.requires_grad_() * 2).sum().backward()),
}


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("name", REPLACED)
def test_another_library_may_wrap_what_a_session_replaces(name, monkeypatch):
    owner, program = REPLACED[name]
    before = vars(owner)[name]
    monkeypatch.setattr(owner, name, before)
    wrapper = {"__new__": staticmethod, "apply": classmethod}.get(name, lambda function: function)
    with offload(mlp(1), "simulated"):
        inner = getattr(vars(owner)[name], "__func__", None) or getattr(owner, name)
        monkeypatch.setattr(owner, name, wrapper(lambda *args, **kwargs: inner(*args, **kwargs)))
    program(X.clone())
    with offload(mlp(1), "simulated"):
        program(X.to("simulated"))


def test_a_thread_is_in_each_session_once():
    start, found = threading.Thread.start, []
    try:
        with offload(mlp(1), "simulated"):
            before = threading.Thread.start
            threading.Thread.start = lambda thread: before(thread)
        with offload(mlp(1), "simulated") as session:
            in_thread(lambda: found.extend(entered()))
        assert found == [session]
    finally:
        threading.Thread.start = start
