"""Outputs of a module, computed once for all who give it the same input."""

from __future__ import annotations

import json
import logging
import pickle
import random
from collections import Counter
from typing import Any, Callable, List, Optional, Tuple

import numpy
import torch

from .. import _checks
from .._native import Draft, Store, Tensor, Ticket, content_hash
from ..errors import InvalidError
from ._collect import check_module
from ._fingerprint import Fingerprint, environment, parts
from ._store import resolve
from ._tree import NotShared, describe, restore

_logger = logging.getLogger("cotensor")
#: The longest description of an output, in bytes.
_DESCRIPTION_BYTES_MAX = 1 << 20


class Shared:
    """A module whose outputs are shared; see :func:`share`.

    ``hits`` counts the calls whose result was there, ``computed`` those that computed and published it, and ``private`` says
    why others were computed as if nothing were shared.
    """

    def __init__(self, module: torch.nn.Module, store: Store, name: str, kind: str, holder: Optional[str]) -> None:
        self._module = module
        self._store = store
        self._name = name
        self._kind = kind
        self._holder = holder
        self._forward: Callable[..., Any] = module.forward
        self._fingerprint = Fingerprint(module)
        self.hits = 0
        self.computed = 0
        self.private: Counter[str] = Counter()

    @property
    def space(self) -> str:
        """What the module computes, in 64 hexadecimal digits: modules of equal space share their results."""
        return self._fingerprint.current()

    def invalidate(self) -> None:
        """Says that weights were changed in a way that torch does not count, such as single elements through ``.data``."""
        self._fingerprint.forget()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Nothing that goes wrong with sharing makes a call fail that would have worked without it.
        try:
            key = self._key(args, kwargs)
            held: List[Ticket] = []
            found = self._claim(key, held)
            if not held:
                output = _opened(found)
                self.hits += 1
                return output
        except Exception as error:
            reason = _reason(error)
        else:
            return self._compute(key, held, args, kwargs)
        return self._privately(reason, args, kwargs)

    def _claim(self, key: str, held: List[Ticket]) -> List[Tensor]:
        """What is there; if it is to be computed, nothing, and the ticket is in ``held``.

        Nobody but that list has it: a traceback that somebody keeps must not keep others waiting.
        """
        claimed = self._store.claim(key, self._holder)
        if isinstance(claimed, Ticket):
            held.append(claimed)
            return []
        return claimed

    def _compute(self, key: str, held: List[Ticket], args: Any, kwargs: Any) -> Any:
        # Whatever goes wrong from here on drops the ticket, and the next who waits computes.
        try:
            state = _random_state()
            output = self._forward(*args, **kwargs)
        except BaseException:
            held.clear()
            raise
        try:
            if state != _random_state():
                reason: Optional[str] = "it draws random numbers"
            else:
                reason = None if self._unchanged(key, args, kwargs) else "it changes its input or itself"
            if reason is not None:
                held[0].decline()
                self.private[reason] += 1
                return output
            self._publish(key, held[0], output)
        except Exception as error:
            self.private[_reason(error)] += 1
            _logger.info("%s: its output stays private: %s", self._name, error)
        else:
            self.computed += 1
        finally:
            held.clear()
        return output

    def _unchanged(self, key: str, args: Any, kwargs: Any) -> bool:
        # A result that was found would leave the input and the module as they were.
        try:
            return self._key(args, kwargs) == key
        except NotShared:
            return False

    def _privately(self, reason: str, args: Any, kwargs: Any) -> Any:
        self.private[reason] += 1
        _logger.debug("%s: computed privately: %s", self._name, reason)
        return self._forward(*args, **kwargs)

    def _key(self, args: Any, kwargs: Any) -> str:
        module = self._module
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            raise NotShared("it is being traced")
        if any(part.training for part in parts(module)):
            raise NotShared("training mode")
        tensors: List[torch.Tensor] = []
        described = describe([args, dict(sorted(kwargs.items()))] if kwargs else [args], tensors)
        if torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in (*tensors, *module.parameters(), *module.buffers())
        ):
            raise NotShared("gradients are wanted (torch.no_grad() or inference_mode() says otherwise)")
        for tensor in tensors:
            _check(tensor, "an input")
        shareable = [_shareable(tensor) for tensor in tensors]
        # Kernels add in another order where elements lie otherwise.
        lies = [None if tensor.is_contiguous() else tensor.stride() for tensor in tensors]
        return content_hash(self.space, *environment(), json.dumps([described, lies]), *shareable)

    def _publish(self, key: str, ticket: Ticket, output: Any) -> None:
        tensors: List[torch.Tensor] = []
        described_output = describe(output, tensors)
        orders = [_order(tensor) for tensor in tensors]
        description = json.dumps([described_output, orders]).encode()
        if len(description) > _DESCRIPTION_BYTES_MAX:
            raise NotShared("an output of too many parts")
        drafts: List[Draft] = []
        described = self._draft(key, 0, (len(description),), "uint8")
        described.numpy()[:] = numpy.frombuffer(description, numpy.uint8)
        drafts.append(described)
        for number, (tensor, order) in enumerate(zip(tensors, orders), 1):
            laid = _shareable(tensor).permute(order)
            draft = self._draft(key, number, tuple(laid.shape), str(laid.dtype))
            draft.write(laid)
            drafts.append(draft)
        ticket.publish(drafts)

    def _draft(self, key: str, number: int, shape: Tuple[int, ...], dtype: str) -> Draft:
        return self._store.empty(
            f"{self._name}/{key[:16]}/{number}",
            shape,
            dtype,
            holder=self._holder,
            kind=self._kind,
            producer=self._name,
            provenance=content_hash(key, str(number)),
        )

    def __repr__(self) -> str:
        return f"<Shared {self._name!r}, {self.hits} hits, {self.computed} computed, {sum(self.private.values())} private>"


def _check(tensor: torch.Tensor, what: str) -> None:
    # A subclass may mean anything by its memory, and would come back as a plain tensor.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise NotShared(f"{what} of type {type(tensor).__name__}")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise NotShared(f"{what} on {tensor.device} with layout {tensor.layout}")


def _order(tensor: torch.Tensor) -> List[int]:
    """The dimensions of an output as they lie in memory, the outermost first. What has gaps, or elements that are the same
    memory, is laid out row by row."""
    _check(tensor, "an output")
    if tensor.requires_grad:
        raise NotShared("an output that wants gradients")
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], -tensor.shape[dim]))
    return list(range(tensor.ndim)) if tensor.is_contiguous() or not tensor.permute(order).is_contiguous() else order


def _random_state() -> Tuple[Any, ...]:
    """Of whatever draws random numbers without being asked which."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), pickle.dumps(numpy.random.get_state(legacy=False))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotShared) else type(error).__name__


def _shareable(tensor: torch.Tensor) -> torch.Tensor:
    """As memory shows it: without gradient, conjugation and negation."""
    return tensor.detach().resolve_conj().resolve_neg()


def _opened(results: List[Tensor]) -> Any:
    described, orders = json.loads(results[0].tobytes())
    shown = []
    for result, order in zip(results[1:], orders):
        back = sorted(range(len(order)), key=order.__getitem__)
        shown.append(result.torch().permute(back))
    return restore(described, shown)


def share(
    module: torch.nn.Module,
    *,
    store: Optional[Store] = None,
    name: Optional[str] = None,
    kind: str = "other",
    holder: Optional[str] = None,
) -> Shared:
    """Computes ``module(input)`` once for everybody who has the same module and the same input, in whatever process.

    Two modules are the same when their code, settings and weights are (their *space*), two inputs when their contents, dtypes
    and shapes are. The first call computes and publishes; others with the same key wait for it, or find it. Their tensors
    share its memory, page by page until somebody writes in place.

    Nothing is shared, and the call computed as always, in training mode, where gradients are wanted, when random numbers are
    drawn, with hooks on inner modules, when the module changes its input or itself, when it has settings whose meaning cannot
    be compared, and for inputs or outputs that are not tensors on the CPU, numbers, texts, lists, tuples, dicts or outputs of
    transformers. Trouble with the store does not make a call fail either. The returned object counts (``hits``,
    ``computed``, and ``private`` with the reasons).

    ``store`` is the daemon's, unless it is given. ``kind`` says what the outputs mean (``vision_embedding``, …); a store's
    configuration may allow some only.
    """
    check_module(module)
    _checks.named(name)
    _checks.named(holder, "holder")
    if "forward" in vars(module):
        raise InvalidError("this module is shared already, or has a forward of its own", field="module")
    shared = Shared(module, resolve(store), name or type(module).__name__, kind, holder)
    module.forward = shared
    return shared


def unshare(module: torch.nn.Module) -> None:
    """Ends :func:`share`."""
    if not isinstance(vars(module).get("forward"), Shared):
        raise InvalidError("this module is not shared", field="module")
    del module.forward
