"""Settings of variables and of the configuration file, as the package reads them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Callable

import pytest
from conftest import REPOSITORY

import cotensor
from cotensor.pool import ResourcePoolBridgeIntegration

TINY = REPOSITORY / "fixtures" / "tiny"


def connect() -> None:
    with pytest.raises(cotensor.NoDaemonError):
        cotensor.connect()


def make_pool() -> None:
    ResourcePoolBridgeIntegration(models=TINY)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config.toml"
    monkeypatch.setenv("COTENSOR_CONFIG", str(file))
    monkeypatch.setenv("COTENSOR_SOCKET", str(tmp_path / "s"))
    monkeypatch.delenv("COTENSOR_ENGINE", raising=False)
    return file


@pytest.mark.parametrize("read", [connect, make_pool])
def test_unknown_keys_are_warnings_once(file: Path, read: Callable[[], None]) -> None:
    file.write_text("enigne = 'rten'\nzzzz = 1\n")
    with pytest.warns(RuntimeWarning) as given:
        read()
        read()
    # Beside them are warnings of other tests' sockets, which the garbage collector finds here.
    given = [warning for warning in given if warning.category is RuntimeWarning]
    assert [str(warning.message).split(": ")[:3] for warning in given] == [
        [str(file), "enigne", "line 1"],
        [str(file), "zzzz", "line 2"],
    ]
    assert "did you mean engine?" in str(given[0].message) and "cotensor config unset enigne" in str(given[0].message)
    assert all(warning.filename == __file__ for warning in given)
    # Another key of the file is another warning.
    file.write_text("enigne = 'rten'\nyyyy = 1\n")
    with pytest.warns(RuntimeWarning, match="yyyy: line 2") as given:
        read()
    assert [warning.category for warning in given].count(RuntimeWarning) == 1


@pytest.mark.parametrize("read", [connect, make_pool])
def test_known_keys_are_no_warnings(file: Path, read: Callable[[], None]) -> None:
    file.write_text("engine = 'rten'\nautostart = false\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read()
