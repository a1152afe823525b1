"""Steps of optimizers run where the parameters and the gradients are: on the host."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, Dict, List, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..arguments import mapped, to_host
from ..calls import plainly
from ..host_tensors import HostTensors
from ..pauses import Pauses

#: A group of parameters, and the name and the value of an option.
_Option = Tuple[Dict[str, Any], str, Any]


class OptimizerHooks:
    """Pauses a session in steps of all optimizers, and makes its copies of what they write stale."""

    def __init__(self, tensors: HostTensors, pauses: Pauses) -> None:
        self._tensors = tensors
        self._pauses = pauses
        self._handles: List[Any] = []
        #: Those that were made inside of the block, perhaps with a state, as Adagrad.
        self._made: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()
        #: Options of groups that are on the device, while a step has copies on the host.
        self._given: "weakref.WeakKeyDictionary[torch.optim.Optimizer, List[_Option]]" = weakref.WeakKeyDictionary()

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was made inside of the block."""
        self._made.add(optimizer)

    def begin(self) -> None:
        """Adds the hooks, until :meth:`end`."""
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    def end(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._pauses.clear()
        for optimizer in list(self._given):
            self._give_back(optimizer)
        for optimizer in list(self._made):
            self._bring_home(optimizer)
        self._made.clear()

    @plainly
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        # The hook, its wrapper, and PyTorch's wrapper of the step.
        thread = threading.get_ident()
        self._pauses.begin(thread, sys._getframe(2))
        # A step that fails midway has no end.
        self._stepped(optimizer)
        self._bring_home(optimizer)
        self._give_back(optimizer)
        for group in optimizer.param_groups:
            is_on_host = any(self._is_on_host(parameter) for parameter in group["params"])
            for name, value in group.items():
                # Such as a learning rate of the device, or ``betas``.
                home = mapped(to_host, value) if is_on_host and isinstance(value, (torch.Tensor, tuple)) else value
                if home is not value:
                    self._given.setdefault(optimizer, []).append((group, name, value))
                    group[name] = home

        def resumed(closure: Any) -> Any:
            def evaluate(*given: Any, **named: Any) -> Any:
                # The frame has this function: one that has the frame would keep both, and the graph of the closure.
                step = self._pauses.end(thread)
                try:
                    return closure(*given, **named)
                finally:
                    if step is not None:
                        self._pauses.begin(thread, step)

            return evaluate if callable(closure) else closure

        return tuple([args[0], *map(resumed, args[1:])]), {name: resumed(value) for name, value in kwargs.items()}

    @plainly
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._pauses.end(threading.get_ident())
        self._give_back(optimizer)
        self._stepped(optimizer)

    def _bring_home(self, optimizer: torch.optim.Optimizer) -> None:
        """The state of parameters of the host is on the host, also if it was made inside of the block."""
        for parameter, state in optimizer.state.items():
            if self._is_on_host(parameter):
                state.update(mapped(to_host, dict(state)))

    def _is_on_host(self, parameter: Any) -> bool:
        """Whether a parameter is a weight on the host."""
        return isinstance(parameter, torch.Tensor) and parameter.is_cpu and self._tensors.weights.belongs(parameter)

    def _give_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Groups have their options of the device again, after a step or the failure of one."""
        for group, name, value in self._given.pop(optimizer, ()):
            group[name] = value

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The parameters of an optimizer are written: fused kernels do that without a new version."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._tensors.changed(parameter)
