"""What a program computes, as data that can be compared: tensors of the host with their devices, and errors."""

from __future__ import annotations

import contextlib
import re
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, List, Optional

import torch
from torch.utils._pytree import tree_flatten

from cotensor.tensorref.refs import tensorsManager

#: Names of devices and of classes of tensors in errors, and addresses.
_PLACES = re.compile(
    r"SimulatedTensor|SimulatedRef|TensorRef|simulated(:0)?|cpu|\bTensor\b|Parameter|PrivateUse(1|one)|CPUFloatType|"
    r"0x[0-9a-f]+",
    re.IGNORECASE,
)
_PACKAGE = "cotensor/tensorref/"


@dataclass
class Shown:
    """A result as the program sees it."""

    label: str
    #: The value on the host, if it is a tensor.
    tensor: Optional[torch.Tensor]
    #: The kind of device that the tensor shows, or the text of another value or of an error.
    text: str
    #: The last line of this project that an error passed.
    origin: str = ""
    #: Whether elements may be rounded differently.
    close: bool = False


@dataclass
class Outcome:
    """All results of one program, up to its end or its error."""

    shown: List[Shown] = field(default_factory=list)
    error: Optional[BaseException] = None

    def show(self, label: str, value: Any, device: bool = True, close: bool = False) -> None:
        """Adds the tensors and other values in ``value``. Without ``device``, tensors may show any; ``close``: elements may be
        rounded differently."""
        leaves, structure = tree_flatten(value)
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                kind = leaf.device.type if device else "any"
                without = torch._C.DisableTorchFunction() if tensorsManager.mode is not None else contextlib.nullcontext()
                with torch.no_grad(), without:
                    self.shown.append(Shown(label, leaf.detach().to("cpu").clone(), kind, close=close))
            else:
                text = type(leaf).__name__ if callable(leaf) or isinstance(leaf, torch.Generator) else repr(leaf)
                self.shown.append(Shown(label, None, _PLACES.sub("_", text)))
        self.shown.append(Shown(label, None, re.sub(r"\s+", " ", str(structure))))

    def show_error(self, label: str, error: BaseException) -> None:
        """Adds the error of a part of the program, which goes on."""
        self.shown.append(Shown(label, None, f"raises {_essence(error)}", _origin(error)))

    @property
    def essence(self) -> str:
        """The class of the error, and its first line without the names of devices."""
        return "" if self.error is None else _essence(self.error)

    @property
    def origin(self) -> str:
        """The last line of this project that the error passed."""
        return "" if self.error is None else _origin(self.error)


def outcome_of(program: Callable[[Outcome], None]) -> Outcome:
    """Runs a program, which shows its results."""
    outcome = Outcome()
    torch.default_generator.manual_seed(0)
    try:
        program(outcome)
    except Exception as error:
        outcome.error = error
    return outcome


def difference(outcome: Outcome, expected: Outcome, plain: Optional[Outcome] = None) -> Optional[str]:
    """What differs first from the outcome on the host; None: nothing.

    Results have to show the devices that those on the ``plain`` simulated device show.
    """
    for one, other in zip(outcome.shown, expected.shown):
        found = _differs(one, other)
        if found is not None:
            return f"{one.label}: {found}"
    for one, other in zip(outcome.shown, [] if plain is None else plain.shown):
        if one.label == other.label and one.tensor is not None and other.tensor is not None and one.text != other.text:
            return f"{one.label}: shows {one.text} instead of {other.text}"
    if expected.error is None and outcome.error is not None:
        return f"raises {outcome.essence}{outcome.origin}"
    if expected.error is not None and outcome.error is None:
        return f"no {expected.essence}"
    if outcome.essence != expected.essence:
        return f"raises {outcome.essence}{outcome.origin} instead of {expected.essence}"
    if len(outcome.shown) != len(expected.shown):
        return "number of results"
    return None


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape have the same elements, with the signs of zeros; all NaN are the same."""
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if not one.is_floating_point():
        return torch.equal(one, other)
    same = (one == other) & (torch.signbit(one) == torch.signbit(other))
    return bool((same | (one.isnan() & other.isnan())).all())


def _differs(one: Shown, other: Shown) -> Optional[str]:
    texts = [shown.text for shown in (one, other) if shown.text.startswith("raises ")]
    if texts and (one.label, one.text) != (other.label, other.text):
        same_step = one.label == other.label
        expected = other.text if same_step and other.text in texts else ""
        return f"{one.text}{one.origin} instead of {expected or other.label}"
    if one.label != other.label:
        return f"instead of {other.label}"
    if one.tensor is None or other.tensor is None:
        return None if one.text == other.text and one.tensor is other.tensor else "value or structure"
    if one.tensor.dtype != other.tensor.dtype:
        return f"dtype {one.tensor.dtype} instead of {other.tensor.dtype}"
    if one.tensor.layout != other.tensor.layout:
        return f"layout {one.tensor.layout} instead of {other.tensor.layout}"
    if one.tensor.shape != other.tensor.shape:
        return "shape"
    if one.close and torch.allclose(one.tensor.to_dense(), other.tensor.to_dense(), rtol=1e-3, atol=1e-4, equal_nan=True):
        return None
    if same_bits(one.tensor, other.tensor):
        return None
    return "elements, close" if _is_rounded(one.tensor.to_dense(), other.tensor.to_dense()) else "elements"


def _is_rounded(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors of one dtype and shape may differ by rounding of sums only. Terms may be as large as the largest result."""
    if not (one.is_floating_point() or one.is_complex()):
        return False
    share = 2e-2 if one.dtype in (torch.bfloat16, torch.float16) else 1e-4
    finite = other[other.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=share, atol=share * largest, equal_nan=True)


def _essence(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text(error)}"


def _origin(error: BaseException) -> str:
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__) if _PACKAGE in frame.f_code.co_filename]
    return f" [{codes[-1].co_filename.split(_PACKAGE)[-1]} {codes[-1].co_name}]" if codes else ""


def _text(error: BaseException) -> str:
    """What an error says, without devices, numbers and examples."""
    lines = str(error).strip().splitlines() or [""]
    text = _PLACES.sub("_", lines[0])
    # The class of an autograd error's tensor, and the versions that it counts.
    text = text.split(" operation: ")[0] if "modified by an inplace" in text else text
    return re.sub(r"-?\d+(\.\d+)?", "N", re.sub(r"\[[^\]]*\]", "[]", text))[:140]
