"""Texts that models of the resource pool write, with the tiny models of fixtures/."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from conftest import REPOSITORY

import cotensor
from cotensor.pool import Model, ResourcePoolBridgeIntegration

TINY = REPOSITORY / "fixtures" / "tiny"


def reference(family: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TINY / family / "greedy.json").read_text())
    return found


def opened(family: str) -> Model:
    return asyncio.run(ResourcePoolBridgeIntegration(models=TINY).get_model("text", family))


@pytest.fixture(params=["llama", "t5"])
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_tokens_are_those_of_transformers(family: str) -> None:
    expected = reference(family)
    model = opened(family)
    pieces: list[str] = []
    count = len(expected["tokens"])
    options = {"do_sample": False, "min_new_tokens": count, "max_new_tokens": count}
    result = model(expected["text"], on_text=pieces.append, **options)
    assert [int(token) for token in result["outputs"][0]["values"]] == expected["tokens"]
    assert result["answer"]["text"].lstrip() == expected["text_of_tokens"].lstrip()
    assert "".join(pieces) == result["answer"]["text"] and len(pieces) > 3
    assert "".join(model.stream(expected["text"], **options)) == result["answer"]["text"]


def test_seeds_decide_sampled_texts() -> None:
    model = opened("llama")

    def text(seed: int) -> str:
        options = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 12}
        found: str = model("The harbour wakes", seed=seed, **options)["answer"]["text"]
        return found

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_caller_stops_the_text() -> None:
    model = opened("llama")
    options = {"do_sample": False, "max_new_tokens": 16, "min_new_tokens": 16}

    def refuse(piece: str) -> None:
        raise KeyError(piece)

    with pytest.raises(KeyError):
        model("The harbour wakes", on_text=refuse, **options)
    stream = model.stream("The harbour wakes", **options)
    first = next(stream)
    stream.close()
    whole = model("The harbour wakes", **options)["answer"]["text"]
    assert first and whole.startswith(first) and whole != first


def test_wrong_options_are_refused() -> None:
    model = opened("llama")
    wrong: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": "hot"},
        {"top_p": 2.0},
        {"do_sample": False, "seed": 1},
        {"max_new_tokens": 4000},
    ]
    for options in wrong:
        with pytest.raises(cotensor.InvalidError):
            model("x", **options)
    with pytest.raises(cotensor.InvalidError):
        next(model.stream("x", top_p=2.0))
    for name, value in {"temperature": "hot", "top_k": 1.5, "chat": "yes", "texts": "x", "colour": "red", "name": "x"}.items():
        with pytest.raises(cotensor.InvalidError) as raised:
            model("x", **{name: value})
        assert raised.value.field == name, raised.value
