"""Compares two computations of the same result."""

from __future__ import annotations

from typing import Optional, Sequence

import torch


def difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Optional[str]:
    """A difference of two outputs that exceeds rounding; ``None`` if they agree.

    The tolerance is that of :func:`torch.testing.assert_close` for the dtype, scaled by the output's largest element.
    """
    if len(found) != len(expected):
        return f"{len(found)} tensors, not {len(expected)}"
    for number, (one, other) in enumerate(zip(found, expected)):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"output {number}: {one.dtype} {list(one.shape)}, not {other.dtype} {list(other.shape)}"
        with torch.inference_mode(False), torch.no_grad():
            reason = _differ(one.detach(), other.detach().clone())
        if reason is not None:
            return f"output {number}: {reason}"
    return None


def _differ(one: torch.Tensor, other: torch.Tensor) -> Optional[str]:
    if torch.equal(one, other):
        return None
    if not one.dtype.is_floating_point:
        return "different elements"
    rtol, atol = _TOLERANCES.get(one.dtype, (1e-1, 1e-1))
    finite = other.isfinite()
    scale = float(other[finite].abs().max()) if bool(finite.any()) else 0.0
    same = torch.isclose(one, other, rtol=rtol, atol=min(atol, 10 * rtol * scale), equal_nan=True)
    if bool(same.all()):
        return None
    largest = (one - other)[finite].abs().max() if bool(finite.any()) else "NaN"
    return f"elements that differ by up to {float(largest):.3g}"


#: Relative and absolute tolerances, as in torch.testing.
_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
