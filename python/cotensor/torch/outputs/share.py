"""Shares the outputs of a module: computes them once for all callers with the same input."""

from __future__ import annotations

import inspect
import logging
import random
import re
import sys
import warnings
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
from .calls import Call, CapturedModule, ComputedPrivately, KeyedModule, parts
from .compare import difference
from .environment import check_denormals, check_denormals_of_all_threads, check_modes
from .results import Results, opened
from .snapshot import is_own_hook
from .tree import NotShared, restore
from .written import Watch

_logger = logging.getLogger("cotensor.torch")
#: The first torch whose ``torch.export`` is known to record every condition on a size.
TORCH_MIN = (2, 15)


class Shared:
    """A module whose outputs are shared; see :func:`share`.

    ``hits`` counts calls with a published result, ``computed`` calls that computed and published it. ``private`` counts calls
    without sharing by reason.
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
        #: `inspect.signature` reads the signature from here.
        self.__wrapped__ = self._forward
        self._parameters = list(inspect.signature(self._forward).parameters)
        self._random = random.Random()
        self._disabled: Optional[str] = None
        self._warned_of_gradients = False
        self.hits = 0
        self.computed = 0
        self.private: Counter[str] = Counter()
        self.refresh()

    def refresh(self) -> None:
        """Takes a new snapshot of the module. Shared calls ignore changes of the module before it."""
        self._attachment = attachment(self._module)
        self._function: Union[CapturedModule, KeyedModule]
        if self._key is None:
            self._function = CapturedModule(self._module, self._store, self._results.name, self._operators)
        else:
            self._function = KeyedModule(self._key, self._forward, self._parameters)
        self._weights = _weights(list(parts(self._module)))
        self._watch: Optional[Watch] = Watch([tensor for tensor, _ in self._weights])
        self._disabled = None

    @property
    def spaces(self) -> List[str]:
        """The spaces of the captured graphs, 64 hexadecimal digits each. Equal spaces share results."""
        return self._function.spaces()

    def capture(self, *args: Any, **kwargs: Any) -> str:
        """Captures the kind of call with these arguments, and returns its space.

        Raises :class:`UnsupportedError` with the reason if the call cannot be shared.
        """
        try:
            return self._function.function(self._call(args, kwargs)).space
        except NotShared as error:
            raise UnsupportedError(f"this call cannot be shared: {error}", field="module") from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return self._forward(*args, **kwargs)
        # An error of sharing must not fail the call.
        try:
            call = self._call(args, kwargs)
            function = self._function.function(call)
        except Exception as error:
            return self._run_module(error, args, kwargs)
        watch = self._watch
        if watch is not None and watch.is_written():
            # Once for each snapshot.
            self._watch = None
            self._warn("its weights were written after share(), and shared calls use the earlier ones: call refresh()")
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
        """Raises :class:`NotShared` for a call that a captured graph cannot replace."""
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
            raise NotShared("parameters or buffers were replaced or converted: call refresh()")
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor, _ in weights):
            if not self._warned_of_gradients and not self.hits + self.computed:
                self._warned_of_gradients = True
                self._warn("calls with gradients enabled are not shared: use torch.no_grad() or inference_mode()", 1)
            raise NotShared("gradients are enabled: use torch.no_grad() or inference_mode()")
        return Call.of(args, kwargs, self._parameters)

    def _warn(self, message: str, inner: int = 0) -> None:
        # Between are torch's two functions that call a module's forward, the call of this object, and its `inner` functions.
        warnings.warn(f"{self._results.name}: {message}", UserWarning, stacklevel=5 + inner)

    def _compute(self, function: Any, call: Call, key: str, held: List[Ticket]) -> Any:
        # An exception drops the ticket, so that the next waiting caller computes.
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
            call.check_environment()
            if not function.is_unchanged(call, key):
                raise NotShared("the input changed")
            output = restore(*opened(self._results.publish(key, held[0], described, tensors)))
            self.computed += 1
        except Exception as error:
            self.private[_reason(error)] += 1
            _logger.info("%s: the output stays private: %s", self._results.name, error)
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
            _logger.info("%s: runs the module without sharing: %s", self._results.name, error, exc_info=None if known else error)
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


#: The attributes that sharing adds to a module.
_INSTALLED = ("forward", "__getstate__")


def _weights(inner: List[torch.nn.Module]) -> List[Tuple[torch.Tensor, torch.dtype]]:
    tensors = (one for part in inner for held in (part._parameters, part._buffers) for one in held.values())
    return [(tensor, tensor.dtype) for tensor in tensors if tensor is not None]


def _check_hooks(inner: List[torch.nn.Module]) -> None:
    """Raises :class:`NotShared` for hooks on inner modules, which a graph does not run. Hooks on the module itself run."""
    if _global._global_forward_hooks or _global._global_forward_pre_hooks:
        raise NotShared("there are hooks on all modules")
    own = 0
    for part in inner[1:]:
        if part._forward_hooks or part._forward_pre_hooks:
            hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
            own += 1
            if not all(map(is_own_hook, hooks)):
                raise NotShared("an inner module has hooks")
    if own and _is_collecting():
        raise NotShared("an outer model collects hidden states")


def _is_collecting() -> bool:
    """Whether transformers' hooks collect outputs of layers for an outer model."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    return collector is None or bool(collector.get())


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotShared) else type(error).__name__


def _check_torch() -> None:
    found = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if found < TORCH_MIN:
        needed = ".".join(map(str, TORCH_MIN))
        message = f"share() needs torch {needed} or newer to capture modules, this is {torch.__version__}"
        raise UnsupportedError(f"{message}: use share(module, key=…)", field="module")


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
    """Computes ``module(input)`` once for all callers with the same module and the same input, in any process.

    This takes a snapshot: it copies the module's structure and moves its weights to shared memory. The first call of each kind
    (structure of the arguments, dtypes, plain numbers) captures the module with ``torch.export``; later calls run the captured
    graph. Shared calls ignore later changes of the module until :meth:`Shared.refresh`; a warning says once that an optimizer or
    ``load_state_dict`` wrote its weights.

    Two modules are the same if their graphs and the contents of their weights are. Two inputs are the same if their contents,
    dtypes, shapes and strides are. The first call computes and publishes; other calls with the same key get or await its result.

    A call runs the Python module without sharing in training mode, with gradients enabled, with hooks on inner modules, and
    inside modes of torch. So does a module that torch.export cannot capture, or whose graph draws random numbers, changes its
    input or buffers, or has operators outside of ATen. ``Shared.private`` counts such calls by reason; :meth:`Shared.capture`
    raises the reason.

    ``operators`` are trusted operators of other libraries, such as ``"torchvision::nms"``: equal inputs have to give equal
    outputs. ``key`` replaces the capture: modules that are shared under an equal key count as the same. ``verify`` is the
    fraction of hits, 0 to 1, that are computed again and compared. A difference raises :class:`CorruptError` and ends sharing
    for this module.

    ``store`` is the daemon's by default. ``kind`` is the kind of the outputs (``vision_embedding``, …); a store's configuration
    can restrict kinds. Raises :class:`InvalidError` or :class:`UnsupportedError` for a module that cannot be copied or whose
    weights cannot be shared.
    """
    check_module(module)
    _checks.named(name)
    _checks.named(kind, "kind")
    _checks.named(holder, "holder")
    _checks.named(key, "key")
    if isinstance(operators, str) or not all(isinstance(one, str) and "::" in one for one in operators):
        raise InvalidError("operators: pass names such as 'torchvision::nms'", field="operators")
    if isinstance(verify, bool) or not isinstance(verify, (int, float)) or not 0 <= verify <= 1:
        raise InvalidError(f"verify: pass a number from 0 to 1, not {verify!r}", field="verify")
    if "forward" in vars(module):
        raise InvalidError("this module is already shared, or has its own forward attribute", field="module")
    if key is None:
        _check_torch()
    opened_store = resolve(store)
    results = Results(opened_store, name or type(module).__name__, kind, holder)
    shared = Shared(module, opened_store, results, key, frozenset(operators), float(verify))
    vars(module).update(zip(_INSTALLED, (shared, shared.plain_state)))
    return shared


def unshare(module: torch.nn.Module) -> None:
    """Ends :func:`share` of a module."""
    if not isinstance(vars(module).get("forward"), Shared):
        raise InvalidError("this module is not shared", field="module")
    for name in _INSTALLED:
        del vars(module)[name]
