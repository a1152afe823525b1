"""Compiled methods of modules: each call is one operation, which gets copies of all weights of the module."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Sequence, Tuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import threads
from .interception import Interception

_STATISTICS = ("running_mean", "running_var")
#: A dictionary of a module, the name of a tensor in it, and the tensor.
_Place = Tuple[Dict[str, Any], str, torch.Tensor]


class CompiledMethod:
    """Takes the place of a compiled method of a module while a session is entered.

    If all weights of the module fit on the device, the compiled code runs as one operation: copies take the places of the weights
    in the module. Otherwise it runs uncompiled, so that each of its operations gets its own weights.
    """

    def __init__(
        self, session: Interception, name: str, holder: torch.nn.Module, attribute: str, module: torch.nn.Module
    ) -> None:
        #: The module whose weights the code uses.
        self.module = module
        self._session = session
        self._holder, self._attribute = holder, attribute
        self._compiled: Callable[..., Any] = getattr(holder, attribute)
        self._operation = _Operation(f"compiled {name}".rstrip(), self._compiled)
        self._is_own = attribute in vars(holder)

    def install(self) -> None:
        """Takes the place of the compiled method."""
        vars(self._holder)[self._attribute] = self

    def remove(self) -> None:
        """Gives the place back."""
        if vars(self._holder).get(self._attribute) is not self:
            return
        if self._is_own:
            vars(self._holder)[self._attribute] = self._compiled
        else:
            del vars(self._holder)[self._attribute]

    def contain(self, others: Iterable["CompiledMethod"]) -> None:
        """Compiled methods of the modules inside of this one are parts of its code."""
        inside = set(self.module.modules())
        self._operation.inner = [other for other in others if other.module in inside]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = self._session
        with session.inside(self.module) as inside:
            # Another thread must not see the copies.
            with session.lock:
                places = list(_places(self.module))
                weights = list({id(tensor): tensor for _, _, tensor in places}.values())
                if inside and session.fit(weights):
                    leaves, tree = tree_flatten((args, kwargs))
                    call = _Call(self.module, tree, places, weights)
                    with threads.outside(session):
                        return session.operation(self._operation, (leaves, weights, call))
            return self._compiled(*args, **kwargs)


class _Call:
    """What a call has besides tensors."""

    def __init__(self, module: torch.nn.Module, tree: Any, places: List[_Place], weights: List[torch.Tensor]) -> None:
        self.tree, self.places, self.weights = tree, places, weights
        training = [one for one in module.modules() if one.training]
        found = [one._buffers.get(name) for one in training for name in _STATISTICS]
        self.statistics = [tensor for tensor in found if tensor is not None]


class _Operation:
    """The compiled code as a function of tensors: those of the arguments, and the weights."""

    def __init__(self, name: str, compiled: Callable[..., Any]) -> None:
        self.__name__ = name
        self._compiled = compiled
        self.inner: List[CompiledMethod] = []

    def written(self, leaves: Sequence[Any], weights: Sequence[torch.Tensor], call: _Call) -> List[torch.Tensor]:
        """The tensors that the code may write without a new version: the statistics of layers that normalize."""
        return call.statistics

    def __call__(self, leaves: Sequence[Any], weights: Sequence[torch.Tensor], call: _Call) -> Any:
        args, kwargs = tree_unflatten(list(leaves), call.tree)
        copies = {id(weight): copy for weight, copy in zip(call.weights, weights)}
        with contextlib.ExitStack() as stack:
            for inner in self.inner:
                inner.remove()
                stack.callback(inner.install)
            stack.enter_context(_in_places([(where, name, copies[id(tensor)]) for where, name, tensor in call.places]))
            stack.enter_context(torch.compiler.set_stance("default"))
            return self._compiled(*args, **kwargs)


@contextlib.contextmanager
def _in_places(copies: Sequence[_Place]) -> Iterator[None]:
    """Puts copies into modules, and the weights back afterwards. What the module itself has put there stays."""
    weights = [where[name] for where, name, _ in copies]
    for where, name, copy in copies:
        where[name] = copy
    try:
        yield
    finally:
        for (where, name, copy), weight in zip(copies, weights):
            if where.get(name) is copy:
                where[name] = weight


def _places(module: torch.nn.Module) -> Iterator[_Place]:
    """Where the parameters and buffers of a module are."""
    for one in module.modules():
        for where in (one._parameters, one._buffers):
            for name, tensor in where.items():
                if tensor is not None:
                    yield where, name, tensor


def uncompiled() -> ContextManager[Any]:
    """From now on, until the context ends, compiled functions run as they were written; since PyTorch 2.6."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    return contextlib.nullcontext() if set_stance is None else set_stance("force_eager")


def install(session: Interception, models: Iterable[torch.nn.Module]) -> List[CompiledMethod]:
    """Takes the places of all compiled methods of models: those of ``torch.compile(module)``, ``module.compile()`` and
    ``torch.compile(module.forward)``, and those of classes. None before PyTorch 2.6.
    """
    if not hasattr(torch.compiler, "set_stance"):
        return []
    found: Dict[Tuple[int, str], CompiledMethod] = {}
    for model in models:
        for name, holder in model.named_modules():
            for attribute, module in _methods(holder):
                method = CompiledMethod(session, name.replace("_orig_mod", "").strip("."), holder, attribute, module)
                found.setdefault((id(holder), attribute), method)
    methods = list(found.values())
    for method in methods:
        method.contain(methods)
        method.install()
    return methods


def _methods(holder: torch.nn.Module) -> Iterator[Tuple[str, torch.nn.Module]]:
    """The compiled methods of a module, and the modules that they belong to."""
    for attribute, value in vars(holder).items():
        owner = getattr(getattr(value, "_torchdynamo_orig_callable", None), "__self__", None)
        if isinstance(owner, torch.nn.Module):
            yield attribute, owner
    for kind in type(holder).__mro__:
        for attribute, value in vars(kind).items():
            if hasattr(value, "_torchdynamo_orig_callable") and attribute not in vars(holder):
                yield attribute, holder
