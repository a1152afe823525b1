"""Models with weights of 2, 3, 4 or 8 bits, which a pool's models have on all engines.

::

    from cotensor.ultra_low_precision import setup_ultra_low_precision

    config = setup_ultra_low_precision("bert-base", "text", precision_bits=4, mixed_precision=True, models="models")
    model = await pool.get_model("text", "bert-base", hardware_preferences=config.hardware_preferences)

The model is quantized once for all programs of a user, and kept in the user's cache; ``cotensor cache ls`` lists it,
and ``cotensor cache prune`` removes what is unused. ``cotensor quantize`` writes a folder instead, and has more
options.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from . import _checks
from .pool import ResourcePoolBridgeIntegration

__all__ = ["UltraLowPrecisionConfig", "setup_ultra_low_precision"]

#: Texts, or the path of a folder or file with samples.
Calibration = Union[Sequence[str], str, "os.PathLike[str]"]


@dataclass(frozen=True)
class UltraLowPrecisionConfig:
    """A model that is ready with weights of few bits."""

    model_name: str
    model_type: str
    #: Bits of a weight without its part of scales: of all matrices, or on average.
    precision_bits: int
    #: Whether each matrix has a width of its own.
    mixed_precision: bool
    #: The folder with the quantized model.
    folder: str
    #: Bits of a weight with scales. None for a variant that another program quantized.
    bits_per_weight: Optional[float]
    #: The relative error of the outputs of each graph on samples that were held out; None without samples.
    output_errors: Mapping[str, Optional[float]]
    #: The most tokens of a text. None for a model whose positions set no limit.
    context_tokens: Optional[int]
    #: What was asked for and is not so, or is so without being asked for.
    notices: Sequence[str]
    #: The report of ``cotensor quantize --json``.
    report: Optional[Mapping[str, Any]] = field(repr=False)
    #: For :meth:`.ResourcePoolBridgeIntegration.get_model`.
    hardware_preferences: Mapping[str, Any] = field(repr=False)


def setup_ultra_low_precision(
    model_name: str,
    model_type: str,
    precision_bits: int = 2,
    mixed_precision: bool = True,
    enable_kv_cache: bool = True,
    extended_context: bool = False,
    *,
    calibration: Optional[Calibration] = None,
    models: Optional[Union[str, "os.PathLike[str]"]] = None,
    pool: Optional[ResourcePoolBridgeIntegration] = None,
    progress: Optional[Callable[[str, int, int], object]] = None,
) -> UltraLowPrecisionConfig:
    """Quantizes a model once, so that a pool's :meth:`~.ResourcePoolBridgeIntegration.get_model` opens it at once.

    ``model_name`` and ``model_type`` are those of ``get_model``. ``precision_bits`` is 2, 3, 4 or 8. With
    ``mixed_precision``, each matrix has a width of its own, so that all together have as many bits: the model runs on
    samples first, and widths are chosen by the errors that they cause. ``calibration`` has the samples: at least 16
    texts, or the path of a folder or file as ``cotensor quantize --calibrate`` takes it; by default, texts in English.
    A model that reads no texts needs its own for mixed widths.

    ``enable_kv_cache`` and ``extended_context`` change nothing: engines always keep the keys and values of a decoder,
    and the positions of a model set the length of its context. ``notices`` says so.

    ``pool`` is the pool that has the model; by default, one over the folder ``models`` (as the pool's argument).
    ``progress`` is called with the step, the number of its finished parts, and the number of all.

    Raises :class:`.UnsupportedError` for other numbers of bits, for a model without a matrix that can be quantized, and
    without a cache folder; :class:`.InvalidError` for too few samples; and as ``get_model``.
    """
    _checks.count(precision_bits, "precision_bits", 1)
    pool = ResourcePoolBridgeIntegration(models=models) if pool is None else pool
    folder, report, bits_per_weight, context_tokens, notices = pool._pool.setup_ultra_low_precision(
        model_name,
        model_type,
        precision_bits=precision_bits,
        mixed_precision=mixed_precision,
        enable_kv_cache=enable_kv_cache,
        extended_context=extended_context,
        calibration=calibration,
        progress=progress,
        folder=pool._folder(model_name, str(precision_bits), mixed_precision),
    )
    preferences: dict[str, Any] = {"precision": precision_bits, "mixed_precision": mixed_precision}
    if calibration is not None:
        preferences["calibration"] = calibration
    graphs = [] if report is None else report["graphs"]
    return UltraLowPrecisionConfig(
        model_name=model_name,
        model_type=model_type,
        precision_bits=precision_bits,
        mixed_precision=mixed_precision,
        folder=os.fspath(folder),
        bits_per_weight=bits_per_weight,
        output_errors={graph["file"]: _measured(graph["output_error"]) for graph in graphs},
        context_tokens=context_tokens,
        notices=tuple(notices),
        report=report,
        hardware_preferences=preferences,
    )


def _measured(error: "float | str | None") -> Optional[float]:
    """A number of a report, in which a text stands for one that is not finite."""
    return None if error is None else float(error)
