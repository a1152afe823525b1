"""Arguments of wrong types raise InvalidError with the name of the argument."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

import cotensor
from cotensor.sharing import SharedTensor, TensorSharingManager

A = np.ones(2, "float32")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda s: s.get(5), "name"),
        (lambda s: s.get("x", holder=5), "holder"),
        (lambda s: s.lease("x"), "id"),
        (lambda s: s.put(None, A), "name"),
        (lambda s: s.put("x", A, keep="yes"), "keep"),
        (lambda s: s.put("x", A, kind=1), "kind"),
        (lambda s: s.put("x", A, producer=b"p"), "producer"),
        (lambda s: s.put("x", A, recompute_seconds="long"), "recompute_seconds"),
        (lambda s: s.put("x", A, from_device=1), "from_device"),
        (lambda s: s.put("x", object()), "array"),
        (lambda s: s.empty("x", "y"), "shape"),
        (lambda s: s.empty("x", (2,), provenance=3), "provenance"),
        (lambda s: s.claim(3), "key"),
        (lambda s: s.claim("0" * 64, timeout="soon"), "timeout"),
        (lambda s: s.remove(["x"]), "name"),
        (lambda s: s.prefault(-1), "nbytes"),
        (lambda s: s.limit_memory("all"), "max_memory_mb"),
        (lambda s: s.put("x", A).view("0", "float32", [1]), "offset"),
        (lambda s: s.put("x", A).view(0, "float32", 1), "shape"),
        (lambda _: cotensor.Store(max_memory_mb=1.5), "max_memory_mb"),
        (lambda _: cotensor.Store(allowed_types="other"), "allowed_types"),
        (lambda _: cotensor.connect(5), "socket"),
        (lambda _: cotensor.connect(client=5), "client"),
        (lambda s: TensorSharingManager(max_memory_mb="much"), "max_memory_mb"),
        (lambda s: TensorSharingManager(store=A), "store"),
        (lambda s: TensorSharingManager(store=s).register_shared_tensor(1, [2]), "name"),
        (lambda s: TensorSharingManager(store=s).register_shared_tensor("x", [2], consumer_models="t5"), "consumer_models"),
        (lambda s: TensorSharingManager(store=s).create_tensor_view("x", "y", 0, [1]), "offset"),
        (lambda _: SharedTensor("x", [2], producer_model=1), "producer_model"),
        (lambda _: SharedTensor.set_verbose_logging("loud"), "verbose"),
    ],
)
def test_wrong_type_names_its_argument(call: Callable[[cotensor.Store], Any], field: str) -> None:
    store = cotensor.Store()
    with pytest.raises(cotensor.InvalidError, match=rf"^{field}\b") as raised:
        call(store)
    assert raised.value.field == field


def test_long_values_are_not_quoted() -> None:
    with pytest.raises(cotensor.InvalidError) as raised:
        cotensor.Store().get(list(range(10_000)))
    assert str(raised.value) == "name: pass a string, not <class 'list'>"


def test_dict_of_arrays_is_refused_with_the_methods_that_take_one() -> None:
    with pytest.raises(cotensor.InvalidError, match="put_many, put_group and cotensor.torch.publish"):
        cotensor.Store().put("x", {"weight": A})  # type: ignore[arg-type]
