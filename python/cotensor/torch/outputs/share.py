"""Outputs of a module, computed once for all callers that give it the same input."""

from __future__ import annotations

import inspect
import logging
import random
import re
import sys
from collections import Counter
from typing import Any, Callable, Collection, List, Optional, Tuple, Union

import torch
from torch.nn.modules import module as _global

from ... import _checks
from ..._native import Store, Ticket
from ...errors import CorruptError, InvalidError, UnsupportedError
from ..store import resolve
from ..weights.collect import check_module
from ..weights.models import attachment
from .calls import Call, Captured, ComputedPrivately, Stated, parts
from .compare import difference
from .environment import check_denormals, check_denormals_of_all_threads, check_modes
from .results import Results, opened
from .snapshot import is_own_hook
from .tree import NotShared, restore

_logger = logging.getLogger("cotensor.torch")
#: The first torch whose ``torch.export`` is known to record every condition on a size.
TORCH_MIN = (2, 15)


class Shared:
    """A module whose outputs are shared; see :func:`share`.

    ``hits`` counts the calls whose result was there, ``computed`` those that computed and published it, and ``private`` says
    why others were computed as if nothing were shared.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        store: Store,
        results: Results,
        key: Optional[str],
        operators: Collection[str],
        verify: float,
    ) -> None:
        self._module = module
        self._store = store
        self._results = results
        self._key = key
        self._operators = operators
        self._verify = verify
        self._forward: Callable[..., Any] = module.forward
        #: Other tools read a signature from here.
        self.__wrapped__ = self._forward
        self._parameters = list(inspect.signature(self._forward).parameters)
        self._random = random.Random()
        self._disabled: Optional[str] = None
        self.hits = 0
        self.computed = 0
        self.private: Counter[str] = Counter()
        self.refresh()

    def refresh(self) -> None:
        """Takes the module as it is now. Until then, changes of the Python object have no effect on shared calls."""
        self._attachment = attachment(self._module)
        self._function: Union[Captured, Stated]
        if self._key is None:
            self._function = Captured(self._module, self._store, self._results.name, self._operators)
        else:
            self._function = Stated(self._key, self._forward, self._parameters)
        self._weights = _weights(list(parts(self._module)))
        self._disabled = None

    @property
    def spaces(self) -> List[str]:
        """The captured graphs with their weights, 64 hexadecimal digits each: equal spaces share their results."""
        return self._function.spaces()

    def capture(self, *args: Any, **kwargs: Any) -> str:
        """Captures the kind of call that these arguments make; its space.

        Raises :class:`UnsupportedError` with the reason if such a call is not shared.
        """
        try:
            return self._function.function(self._call(args, kwargs)).space
        except NotShared as error:
            raise UnsupportedError(f"this call is not shared: {error}", field="module") from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return self._forward(*args, **kwargs)
        # A call that works without sharing works with it, whatever fails in sharing.
        try:
            call = self._call(args, kwargs)
            function = self._function.function(call)
        except Exception as error:
            return self._run_module(error, args, kwargs)
        held: List[Ticket] = []
        try:
            if self._disabled is not None:
                raise NotShared(self._disabled)
            check_denormals()
            key = call.key(function.space)
            claimed = self._results.claim(key, held)
            found = None if held else opened(claimed)
            output = None if found is None else restore(*found)
        except Exception as error:
            held.clear()
            return self._compute_privately(_reason(error), function, call)
        if found is None:
            return self._compute(function, call, key, held)
        self.hits += 1
        if self._verify and self._random.random() < self._verify:
            self._check(function, call, *found)
        return function.returned(call, output)

    def _call(self, args: Any, kwargs: Any) -> Call:
        """Raises :class:`NotShared` for a call that the captured graph cannot stand for."""
        check_modes()
        inner = list(parts(self._module))
        if any(part.training for part in inner):
            raise NotShared("training mode")
        _check_hooks(inner)
        if self._attachment != attachment(self._module):
            self.refresh()
        weights = _weights(inner)
        if len(weights) != len(self._weights) or any(
            one is not other or dtype != before for (one, dtype), (other, before) in zip(weights, self._weights)
        ):
            raise NotShared("its parameters or buffers were replaced or converted: refresh() takes them")
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor, _ in weights):
            raise NotShared("gradients are wanted (torch.no_grad() or inference_mode() says otherwise)")
        return Call.of(args, kwargs, self._parameters)

    def _compute(self, function: Any, call: Call, key: str, held: List[Ticket]) -> Any:
        # An exception drops the ticket, and the next caller that waits computes.
        try:
            described, tensors = function.compute(call)
        except ComputedPrivately as error:
            held.clear()
            self.private[str(error)] += 1
            return error.output
        except NotShared as error:
            held.clear()
            return self._run_module(error, call.args, call.kwargs)
        except BaseException:
            held.clear()
            raise
        try:
            check_denormals_of_all_threads()
            if not function.is_unchanged(call, key):
                raise NotShared("its input changed")
            output = restore(*opened(self._results.publish(key, held[0], described, tensors)))
            self.computed += 1
        except Exception as error:
            self.private[_reason(error)] += 1
            _logger.info("%s: its output stays private: %s", self._results.name, error)
            output = restore(described, tensors)
        finally:
            held.clear()
        return function.returned(call, output)

    def _compute_privately(self, reason: str, function: Any, call: Call) -> Any:
        try:
            described, tensors = function.compute(call)
        except ComputedPrivately as error:
            self.private[reason] += 1
            return error.output
        except NotShared as error:
            return self._run_module(error, call.args, call.kwargs)
        self.private[reason] += 1
        return function.returned(call, restore(described, tensors))

    def _run_module(self, error: Exception, args: Any, kwargs: Any) -> Any:
        reason = _reason(error)
        if reason not in self.private:
            known = isinstance(error, NotShared)
            _logger.info("%s: the module itself runs: %s", self._results.name, error, exc_info=None if known else error)
        self.private[reason] += 1
        return self._forward(*args, **kwargs)

    def _check(self, function: Any, call: Call, described: Any, found: List[torch.Tensor]) -> None:
        """Raises :class:`CorruptError` for a result that differs from what is computed now."""
        try:
            again, expected = function.compute(call)
        except NotShared:
            return
        reason = difference(found, expected) if described == again else "another structure of the output"
        if reason is not None:
            self._disabled = "a result in the store was wrong"
            message = f"{self._results.name}: a result in the store is not what the module computes ({reason})"
            raise CorruptError(f"{message}; refresh() shares it again", field="module")

    def plain_state(self) -> Any:
        """The module's state for copies and pickles, which are the module without sharing."""
        kind: Any = type(self._module)
        state = kind.__getstate__(self._module) if hasattr(kind, "__getstate__") else vars(self._module)
        return {name: value for name, value in state.items() if name not in _INSTALLED} if type(state) is dict else state

    def __getattr__(self, name: str) -> Any:
        # torch.export and others read the code and the defaults of a forward.
        if name == "_forward":
            raise AttributeError(name)
        return getattr(self._forward, name)

    def __reduce__(self) -> Any:
        return getattr, (self._module, "forward")

    def __repr__(self) -> str:
        counts = f"{self.hits} hits, {self.computed} computed, {sum(self.private.values())} private"
        return f"<Shared {self._results.name!r}, {counts}>"


#: What sharing adds to a module's attributes.
_INSTALLED = ("forward", "__getstate__")


def _weights(inner: List[torch.nn.Module]) -> List[Tuple[torch.Tensor, torch.dtype]]:
    tensors = (one for part in inner for held in (part._parameters, part._buffers) for one in held.values())
    return [(tensor, tensor.dtype) for tensor in tensors if tensor is not None]


def _check_hooks(inner: List[torch.nn.Module]) -> None:
    """Hooks on the module itself run around what is shared; those inside would not run."""
    if _global._global_forward_hooks or _global._global_forward_pre_hooks:
        raise NotShared("hooks on all modules")
    own = 0
    for part in inner[1:]:
        if part._forward_hooks or part._forward_pre_hooks:
            hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
            own += 1
            if not all(map(is_own_hook, hooks)):
                raise NotShared("hooks on an inner module")
    if own and _is_collecting():
        raise NotShared("a model around it collects hidden states")


def _is_collecting() -> bool:
    """Whether transformers' hooks collect outputs of layers for a model around the module."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    return collector is None or bool(collector.get())


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotShared) else type(error).__name__


def _check_torch() -> None:
    found = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if found < TORCH_MIN:
        needed = ".".join(map(str, TORCH_MIN))
        message = f"share captures modules with torch {needed} or newer, this is {torch.__version__}"
        raise UnsupportedError(f"{message}: state a key, share(module, key=…)", field="module")


def share(
    module: torch.nn.Module,
    *,
    store: Optional[Store] = None,
    name: Optional[str] = None,
    kind: str = "other",
    holder: Optional[str] = None,
    key: Optional[str] = None,
    operators: Collection[str] = (),
    verify: float = 0.0,
) -> Shared:
    """Computes ``module(input)`` once for all callers that have the same module and the same input, in any process.

    The module is taken as it is now: its structure is copied, its weights go to shared memory. The first call of each kind
    (structure of the arguments, dtypes, numbers among them) captures it with ``torch.export``, and from then on the captured
    graph runs. Later changes of the Python object have no effect on shared calls; :meth:`Shared.refresh` takes it anew.

    Two modules are the same when their graphs and the content of their weights are, two inputs when their contents, dtypes,
    shapes and strides are. The first call computes and publishes; others with the same key wait for it, or find it.

    A call that the graph cannot stand for runs the Python module and is not shared: in training mode, where gradients are
    wanted, with hooks on inner modules, inside modes of torch, for modules that torch.export cannot capture or whose graph
    draws random numbers, changes its input or buffers, or has operators outside of ATen. ``Shared.private`` counts such
    calls by reason; :meth:`Shared.capture` raises the reason.

    ``operators`` are operators of other libraries, such as ``"torchvision::nms"``, of which you state that equal inputs give
    equal outputs. ``key`` states what the module computes, instead of a capture: modules that are shared under an equal key
    are taken for the same. ``verify`` is the share of hits, 0 to 1, that are computed again and compared; a difference
    raises :class:`CorruptError` and ends sharing for this module.

    ``store`` is the daemon's, unless it is given. ``kind`` says what the outputs mean (``vision_embedding``, …); a store's
    configuration may allow some only. Raises :class:`InvalidError` or :class:`UnsupportedError` for a module that cannot be
    copied or whose weights cannot be shared.
    """
    check_module(module)
    _checks.named(name)
    _checks.named(kind, "kind")
    _checks.named(holder, "holder")
    _checks.named(key, "key")
    if isinstance(operators, str) or not all(isinstance(one, str) and "::" in one for one in operators):
        raise InvalidError("operators: names such as 'torchvision::nms' are expected", field="operators")
    if isinstance(verify, bool) or not isinstance(verify, (int, float)) or not 0 <= verify <= 1:
        raise InvalidError(f"verify: {verify!r} is no number from 0 to 1", field="verify")
    if "forward" in vars(module):
        raise InvalidError("this module is shared already, or has a forward of its own", field="module")
    if key is None:
        _check_torch()
    opened_store = resolve(store)
    results = Results(opened_store, name or type(module).__name__, kind, holder)
    shared = Shared(module, opened_store, results, key, frozenset(operators), float(verify))
    vars(module).update(zip(_INSTALLED, (shared, shared.plain_state)))
    return shared


def unshare(module: torch.nn.Module) -> None:
    """Ends :func:`share`."""
    if not isinstance(vars(module).get("forward"), Shared):
        raise InvalidError("this module is not shared", field="module")
    for name in _INSTALLED:
        del vars(module)[name]
