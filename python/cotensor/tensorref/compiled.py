"""Compiled methods of modules: each call is one operation, which gets copies of all weights of the module."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch

from . import stance, threads
from .arguments import nested, with_copies
from .computing import Computing
from .hooks.modules import ModuleHooks
from .host_tensors import HostTensors

_STATISTICS = ("running_mean", "running_var")
#: A dictionary of a module, the name of a tensor in it, and the tensor.
_Place = Tuple[Dict[str, Any], str, torch.Tensor]

_this_thread = threading.local()


class _OnHost(Exception):
    """The session wants to run the operation on the host."""


class CompiledMethod:
    """Takes the place of a compiled method of a module while a session is entered.

    If all weights of the module fit on the device, the compiled code runs as one operation: copies take the places of the weights
    in the module. Otherwise it runs uncompiled, so that each of its operations gets its own weights.
    """

    def __init__(
        self, methods: "CompiledMethods", name: str, holder: torch.nn.Module, attribute: str, found: "_Method"
    ) -> None:
        #: The module whose weights the code uses.
        self.module, self._compiled, self._uncompiled = found
        self._methods = methods
        self._holder, self._attribute = holder, attribute
        self._is_own = attribute in vars(holder)
        self._operation = _Operation(f"compiled {name}".rstrip())
        # Programs read the signature.
        functools.update_wrapper(self, self._compiled, updated=())

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(_this_thread, "runs_code", False):
            # A part of the code of another compiled method.
            return self._compiled(*args, **kwargs)
        methods = self._methods
        with methods.modules.forward() as inside:
            # Another thread must not see the copies.
            with methods.tensors.devices.lock:
                places = list(_places(self.module))
                weights = list({id(tensor): tensor for _, _, tensor in places}.values())
                if inside and methods.tensors.fit(weights):
                    call = _Call(self.module, self._compiled, args, kwargs, places, weights)
                    with threads.outside(methods.session), contextlib.suppress(_OnHost):
                        return methods.computing.run_code(self._operation, (call.tensors, weights, call))
            return self._uncompiled(*args, **kwargs)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        if self._is_own:
            return self._compiled
        return types.MethodType(self._compiled.__func__, memo.get(id(self._holder), self._holder))  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._is_own:
            return self._compiled.__reduce_ex__(protocol)
        return getattr, (self._holder, self._attribute)


class _Call:
    """A call of a compiled method."""

    def __init__(
        self,
        module: torch.nn.Module,
        compiled: Callable[..., Any],
        args: Any,
        kwargs: Any,
        places: List[_Place],
        weights: List[torch.Tensor],
    ) -> None:
        self.compiled, self.args, self.kwargs, self.places, self.weights = compiled, args, kwargs, places, weights
        #: The tensors of the arguments.
        self.tensors = nested((args, kwargs))
        training = [one for one in module.modules() if one.training]
        found = [one._buffers.get(name) for one in training for name in _STATISTICS]
        self.statistics = [tensor for tensor in found if tensor is not None]


class _Operation:
    """The compiled code as a function of tensors: those of the arguments, and the weights.

    What is known of functions lives as long as the process, and so does this object: each call brings the code."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def written(self, tensors: Sequence[Any], weights: Sequence[torch.Tensor], call: _Call) -> List[torch.Tensor]:
        """The tensors that the code may write without a new version: the statistics of layers that normalize."""
        return call.statistics

    def __call__(self, tensors: Sequence[Any], weights: Sequence[torch.Tensor], call: _Call) -> Any:
        if any([one.is_cpu for one in weights]):
            raise _OnHost
        copies = {id(before): after for before, after in zip([*call.tensors, *call.weights], [*tensors, *weights])}
        args, kwargs = with_copies((call.args, call.kwargs), copies)
        with _in_places([(where, name, copies[id(tensor)]) for where, name, tensor in call.places]), stance.compiled():
            _this_thread.runs_code = True
            try:
                return call.compiled(*args, **kwargs)
            finally:
                _this_thread.runs_code = False


@contextlib.contextmanager
def _in_places(copies: Sequence[_Place]) -> Iterator[None]:
    """Puts copies into modules, and the weights back afterwards. What the module itself has put there stays."""
    weights = [where[name] for where, name, _ in copies]
    for where, name, one in copies:
        where[name] = one
    try:
        yield
    finally:
        for (where, name, one), weight in zip(copies, weights):
            if where.get(name) is one:
                where[name] = weight


def _places(module: torch.nn.Module) -> Iterator[_Place]:
    """Where the parameters and buffers of a module are."""
    for one in module.modules():
        for where in (one._parameters, one._buffers):
            for name, tensor in where.items():
                if tensor is not None:
                    yield where, name, tensor


#: A module, its compiled method, and the same as it was written.
_Method = Tuple[torch.nn.Module, Callable[..., Any], Callable[..., Any]]


class CompiledMethods:
    """The compiled methods of a session's models, whose places it takes: those of ``torch.compile(module)``, ``module.compile()``
    and ``torch.compile(module.forward)``, and those of classes. None before PyTorch 2.6.
    """

    def __init__(self, session: object, tensors: HostTensors, modules: ModuleHooks, computing: Computing) -> None:
        #: The mode that does not intercept the compiled code.
        self.session = session
        self.tensors, self.modules, self.computing = tensors, modules, computing
        self._installed: List[CompiledMethod] = []

    def begin(self, models: Iterable[torch.nn.Module]) -> None:
        """Takes the places, until :meth:`end`."""
        if not hasattr(torch.compiler, "set_stance"):
            return
        found: Dict[Tuple[int, str], CompiledMethod] = {}
        for model in models:
            for name, holder in model.named_modules():
                name = name.replace("_orig_mod", "").strip(".")
                for attribute, method in _methods(holder):
                    found.setdefault((id(holder), attribute), CompiledMethod(self, name, holder, attribute, method))
        self._installed = list(found.values())
        for one in self._installed:
            one.install()

    def end(self) -> None:
        """Gives the places back."""
        for one in self._installed:
            one.remove()
        self._installed.clear()


def _methods(holder: torch.nn.Module) -> Iterator[Tuple[str, _Method]]:
    """The compiled methods of a module, of which each belongs to that or to another one, by their names."""
    for attribute, value in vars(holder).items():
        written = getattr(value, "_torchdynamo_orig_callable", None)
        owner = _owner(written)
        if written is not None and owner is not None:
            yield attribute, (owner, value, written)
    # A class may override a compiled method.
    inherited = {attribute: value for kind in reversed(type(holder).__mro__) for attribute, value in vars(kind).items()}
    for attribute, value in inherited.items():
        if isinstance(value, types.FunctionType) and attribute not in vars(holder):
            written = getattr(value, "_torchdynamo_orig_callable", None)
            if written is not None:
                yield attribute, (holder, types.MethodType(value, holder), types.MethodType(written, holder))


def _owner(method: Any) -> Optional[torch.nn.Module]:
    """The module of a method, which other functions may wrap, as torch.compile does with modules of PyTorch."""
    while method is not None:
        owner = getattr(method, "__self__", None)
        if isinstance(owner, torch.nn.Module):
            return owner
        method = getattr(method, "__wrapped__", None)
    return None
