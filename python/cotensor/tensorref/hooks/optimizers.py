"""Steps of optimizers run where the parameters and the gradients are: on the host."""

from __future__ import annotations

import sys
import threading
from typing import Any, Dict, List, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..arguments import mapped, to_host
from ..calls import plainly
from ..host_tensors import HostTensors
from ..pauses import Pauses


class OptimizerHooks:
    """Pauses a session in steps of all optimizers, and makes its copies of what they write stale."""

    def __init__(self, tensors: HostTensors, pauses: Pauses) -> None:
        self._tensors = tensors
        self._pauses = pauses
        self._handles: List[Any] = []

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

    @plainly
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        # The hook, its wrapper, and PyTorch's wrapper of the step.
        thread = threading.get_ident()
        self._pauses.begin(thread, sys._getframe(2))
        # A step that fails midway has no end.
        self._stepped(optimizer)
        # Made inside of the block, as by Adagrad, or loaded.
        for parameter, state in optimizer.state.items():
            if isinstance(parameter, torch.Tensor) and parameter.is_cpu and self._tensors.weights.belongs(parameter):
                state.update(mapped(to_host, dict(state)))

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
        self._stepped(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The parameters of an optimizer are written: fused kernels do that without a new version."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._tensors.changed(parameter)
