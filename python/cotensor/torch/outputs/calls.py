"""Calls of a shared module, and the two ways to identify what they compute: a captured graph, or a key."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from ..._native import Store, content_hash
from .capture import Capture, capture, captures_of_other_threads, capturing
from .environment import environment_key, random_state
from .inputs import check_inputs, plain, shapes, signature, strides
from .snapshot import Snapshot
from .tree import NotShared, describe

_logger = logging.getLogger("cotensor.torch")
#: The most graphs of a module. Each kind of call, and each branch on a size, needs one.
_CAPTURES_MAX = 64
#: The number of failed shapes after which a kind of call is not captured again.
_REFUSED_MAX = 3


class ComputedPrivately(NotShared):
    """As :class:`NotShared`, with the computed output."""

    def __init__(self, reason: str, output: Any) -> None:
        super().__init__(reason)
        self.output = output


@dataclass
class Call:
    """One call, in the form for captures and keys."""

    args: Tuple[Any, ...]
    kwargs: Mapping[str, Any]
    #: The description of args and kwargs, without their tensors.
    described: Any
    tensors: List[torch.Tensor]
    environment: List[str]
    #: The captures of other threads before the environment was read.
    captures: int

    @classmethod
    def of(cls, args: Tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Sequence[str]) -> "Call":
        """``parameters`` are the names of forward's parameters, which put keyword arguments in a fixed order."""
        ordered = {name: kwargs[name] for name in parameters if name in kwargs}
        ordered.update(kwargs)
        tensors: List[torch.Tensor] = []
        described = describe([list(args), ordered], tensors)
        check_inputs(tensors)
        # A running capture changes the environment.
        with capturing():
            environment, captures = environment_key(), captures_of_other_threads()
        return cls(args, kwargs, described, [plain(tensor) for tensor in tensors], environment, captures)

    def key(self, space: str) -> str:
        """The key of the result of a module of this space for these inputs in this environment."""
        described = json.dumps([self.described, strides(self.tensors)])
        return content_hash(space, *self.environment, described, *self.tensors)

    def check_environment(self) -> None:
        """Raises :class:`NotShared` if another thread may have changed the environment since it was read."""
        if captures_of_other_threads() != self.captures:
            raise NotShared("another thread captured a module")


class CapturedModule:
    """A snapshot of a module, which runs as captured graphs."""

    def __init__(self, module: torch.nn.Module, store: Store, name: str, trusted: Collection[str]) -> None:
        self._snapshot = Snapshot(module, store, name)
        self._trusted = trusted
        self._found: Dict[Any, List[Capture]] = {}
        self._refused: Dict[Any, Dict[Any, str]] = {}

    def spaces(self) -> List[str]:
        """The spaces of all graphs."""
        return [one.space for captures in list(self._found.values()) for one in captures]

    def function(self, call: Call) -> "_Graph":
        """The graph for this call. Raises :class:`NotShared` with the reason if it cannot be captured."""
        kind = json.dumps([signature(call.described, call.tensors), call.environment])
        at = shapes(call.tensors)
        found = self._known(kind, at)
        if found is None:
            with capturing():
                found = self._known(kind, at) or self._captured(kind, at, call)
                # The captures that this call waited for have restored the environment.
                call.captures = captures_of_other_threads()
        return _Graph(found, self._snapshot)

    def _known(self, kind: str, at: Any) -> Optional[Capture]:
        return next((one for one in self._found.get(kind, ()) if one.accepts(at)), None)

    def _captured(self, kind: str, at: Any, call: Call) -> Capture:
        refused = self._refused.setdefault(kind, {})
        if at in refused or len(refused) >= _REFUSED_MAX:
            raise NotShared(refused.get(at) or next(iter(refused.values())))
        if len(self.spaces()) + sum(map(len, self._refused.values())) >= _CAPTURES_MAX:
            raise NotShared(f"the module has more than {_CAPTURES_MAX} kinds of calls")
        try:
            made = capture(self._snapshot, call.described, call.tensors, self._trusted)
        except NotShared as error:
            refused[at] = str(error)
            _logger.warning("%s: calls are not shared: %s", type(self._snapshot.module).__name__, error)
            raise
        self._found.setdefault(kind, []).append(made)
        return made


class _Graph:
    """A captured graph with its weights."""

    def __init__(self, captured: Capture, snapshot: Snapshot) -> None:
        self._captured = captured
        self._snapshot = snapshot
        self.space = captured.space

    def compute(self, call: Call) -> Tuple[Any, List[torch.Tensor]]:
        try:
            tensors = self._captured.run(call.tensors)
        except NotShared:
            raise
        except Exception as error:
            raise NotShared(f"the graph failed: {type(error).__name__}") from error
        if not self._snapshot.is_intact():
            raise NotShared("the weights of the graph were written in place")
        return self._captured.output, tensors

    def is_unchanged(self, call: Call, key: str) -> bool:
        return call.key(self.space) == key

    def returned(self, call: Call, output: Any) -> Any:
        """``output``, stored in the argument that the module fills and returns, if any."""
        place = self._captured.returned
        if place is None:
            return output
        target = call.args[place] if isinstance(place, int) else call.kwargs[place]
        if isinstance(target, list):
            target[:] = output
        else:
            target.clear()
            target.update(output)
        return target


class KeyedModule:
    """A module that the user identifies by a key."""

    def __init__(self, key: str, forward: Callable[..., Any], parameters: Sequence[str]) -> None:
        self.space = content_hash("cotensor.torch: a stated key", key)
        self._forward = forward
        self._parameters = parameters

    def spaces(self) -> List[str]:
        return [self.space]

    def function(self, call: Call) -> "KeyedModule":
        return self

    def compute(self, call: Call) -> Tuple[Any, List[torch.Tensor]]:
        """Runs the module itself. Exceptions of the module are raised as they are."""
        state = random_state()
        output = self._forward(*call.args, **call.kwargs)
        tensors: List[torch.Tensor] = []
        try:
            described = describe(output, tensors)
        except NotShared as error:
            raise ComputedPrivately(str(error), output) from error
        if random_state() != state:
            raise ComputedPrivately("the module draws random numbers", output)
        if any(tensor.requires_grad for tensor in tensors):
            raise ComputedPrivately("an output requires gradients", output)
        return described, tensors

    def is_unchanged(self, call: Call, key: str) -> bool:
        # The module ran with the caller's own arguments.
        try:
            return Call.of(call.args, call.kwargs, self._parameters).key(self.space) == key
        except NotShared:
            return False

    def returned(self, call: Call, output: Any) -> Any:
        return output


def parts(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module and its submodules, each once. Faster than ``modules()``, which also makes names."""
    seen = {id(module)}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        yield part
        for inner in part._modules.values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
