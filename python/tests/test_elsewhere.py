"""Engines whose models another node has: which files they ask for, and where they find them."""

import asyncio

import pytest

pytest.importorskip("numpy")

from conftest import REPOSITORY

from cotensor import InvalidError, NotFoundError, Store, _elsewhere
from cotensor.pool import ResourcePoolBridgeIntegration
from cotensor.ultra_low_precision import setup_ultra_low_precision

BERT = REPOSITORY / "fixtures" / "tiny" / "bert"


@pytest.fixture
def asked(monkeypatch):
    """What was asked for. Another node has the files of ``elsewhere``."""
    asked = []

    def bring(store, name, base, variants):
        asked.append((name, base, list(variants)))
        return str(BERT) if name == "elsewhere" else name

    monkeypatch.setattr(_elsewhere, "bring_model", bring)
    return asked


@pytest.fixture
def pool(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COTENSOR_CACHE", str(tmp_path / "cache"))
    return ResourcePoolBridgeIntegration(models=tmp_path, store=Store())


def get(pool, name, **preferences):
    return asyncio.run(pool.get_model("text_embedding", name, preferences))


def test_a_pool_opens_the_files_under_the_name_that_was_asked_for(asked, pool, tmp_path):
    model = get(pool, "elsewhere")
    assert model.name == "elsewhere" and model("gulls")["answer"]
    assert asked == [("elsewhere", str(tmp_path), [None])]
    with pytest.raises(NotFoundError):
        get(pool, "missing")
    with pytest.raises(InvalidError, match="leads out of the pool's folder"):
        get(pool, "../elsewhere")


def test_bits_are_variants_of_the_graphs_or_made_of_any(asked, pool):
    for precision, variants in [("fp16", ["fp16"]), (16, ["16"]), (3, ["3", None]), ("q4", ["q4"])]:
        try:
            get(pool, "elsewhere", precision=precision)
        except NotFoundError:
            # The model has no such variant.
            assert precision != 3
        assert asked.pop()[2] == variants
    assert get(pool, "elsewhere", precision=3).quantization["graphs"]
    config = setup_ultra_low_precision("elsewhere", "text", 3, mixed_precision=False, pool=pool)
    assert config.bits_per_weight == 3.5 and asked[-1][2] == ["3", None]
    with pytest.raises(NotFoundError):
        setup_ultra_low_precision("missing", "text", 3, mixed_precision=True, pool=pool)
    assert asked[-1] == ("missing", asked[0][1], [None])
