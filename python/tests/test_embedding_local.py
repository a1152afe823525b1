"""Embeddings in this process, where no daemon can be had."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
from conftest import REPOSITORY, Daemon, command, serving

import cotensor

BERT = REPOSITORY / "fixtures" / "tiny" / "bert"
TEXTS = ["gulls", "a crane lifts grain", "nets dry on the quay", "the harbour wakes " * 3]
#: Longer than the model reads.
LONG = "the harbour wakes " * 20


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a socket at which no daemon runs, and none may be started."""
    folder = tmp_path / "r"
    monkeypatch.delenv("COTENSOR_SOCKET", raising=False)
    monkeypatch.setenv("COTENSOR_AUTOSTART", "0")
    monkeypatch.setenv("COTENSOR_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


@pytest.fixture
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving() as daemon:
        yield daemon


def local(model: Path = BERT, **options: Any) -> cotensor.Embedder:
    with pytest.warns(RuntimeWarning, match="no daemon"):
        return cotensor.Embedder(model, fallback="local", **options)


def test_embeddings_equal_those_of_the_daemon(daemon: Daemon, runtime: Path) -> None:
    for options in ({}, {"dimensions": 4}, {"prompt_name": "query"}):
        there = cotensor.Embedder(BERT, store=daemon.connect(), fallback="local", **options)
        here = local(**options)
        assert here.is_local and not there.is_local
        assert np.array_equal(here.embed(TEXTS), there.embed(TEXTS))
        many = [*TEXTS * 80, LONG]
        details = here.embed_with_details(many)
        assert details[1:] == there.embed_with_details(many)[1:] and details.truncated == [320]
        for embedder in (here, there):
            with pytest.raises(cotensor.CotensorError, match=r"texts\[320\].*longer than the 64 tokens"):
                embedder.embed(many, truncate=False)
        assert np.array_equal(here.embed("another text"), there.embed("another text"))
        assert np.array_equal(here.encode_document(TEXTS * 80), there.encode_document(TEXTS * 80))
        assert here.get_embedding_dimension() == there.get_embedding_dimension()
    assert here.embed(TEXTS).flags.writeable and here.embed([]).shape[0] == 0


def test_warning_names_reason_and_line_once(runtime: Path) -> None:
    with pytest.warns(RuntimeWarning) as given:
        embedder = cotensor.Embedder(BERT, fallback="local")
        embedder.embed(TEXTS)
        embedder.embed(TEXTS)
    (warning,) = given
    assert warning.filename == __file__
    assert str(runtime / "cotensor.sock") in str(warning.message) and str(BERT) in str(warning.message)
    assert repr(embedder) == f"Embedder({str(BERT)!r}, is_local=True)"
    assert not runtime.exists()


def test_embedders_of_a_process_share_their_models(runtime: Path) -> None:
    first, second = local(), local()
    assert first.store is second.store and first.store.socket is None
    assert np.array_equal(first.embed(TEXTS), second.embed(TEXTS))


@pytest.mark.usefixtures("no_warnings")
def test_without_fallback_the_missing_daemon_is_an_error(runtime: Path) -> None:
    with pytest.raises(cotensor.NoDaemonError):
        cotensor.Embedder(BERT)
    with serving() as daemon:
        embedder = cotensor.Embedder(BERT, store=daemon.connect())
        embedder.embed("a")
    with pytest.raises(cotensor.NoDaemonError):
        embedder.embed("a")
    assert not embedder.is_local


@pytest.mark.parametrize("used", [False, True])
def test_daemon_that_ends_is_replaced_at_the_next_call(runtime: Path, used: bool) -> None:
    with serving() as daemon:
        embedder = cotensor.Embedder(BERT, store=daemon.connect(), fallback="local")
        if used:
            embedder.embed("a")
    assert not embedder.is_local and "is_local" not in repr(embedder)
    with pytest.warns(RuntimeWarning, match=str(daemon.socket)):
        rows = embedder.embed(TEXTS)
    assert embedder.is_local and np.array_equal(rows, local().embed(TEXTS))


def test_threads_that_lose_the_daemon_warn_once(runtime: Path) -> None:
    with serving() as daemon:
        embedder = cotensor.Embedder(BERT, store=daemon.connect(), fallback="local")
    ready = threading.Barrier(2)

    def embed(_: int) -> Any:
        ready.wait()
        return embedder.embed(TEXTS)

    with pytest.warns(RuntimeWarning) as given, ThreadPoolExecutor(2) as threads:
        rows = list(threads.map(embed, range(2)))
    assert len(given) == 1 and np.array_equal(*rows)


def test_daemon_that_the_system_refuses_is_replaced(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENSOR_AUTOSTART", "1")
    # Folders cannot be made in /proc, also by root.
    monkeypatch.setenv("COTENSOR_RUNTIME_DIR", "/proc/none")
    with pytest.raises(cotensor.NoDaemonError, match="/proc/none"):
        cotensor.connect()
    assert local().embed(TEXTS).shape[0] == len(TEXTS)


@pytest.mark.parametrize("fallback", ["remote", "", True, ["local"]])
def test_other_values_are_refused(runtime: Path, fallback: Any) -> None:
    with pytest.raises(ValueError, match="fallback: pass 'local' or None") as raised:
        cotensor.Embedder(BERT, fallback=fallback)
    assert isinstance(raised.value, cotensor.InvalidError) and raised.value.field == "fallback"


@pytest.mark.usefixtures("no_warnings")
def test_errors_of_a_model_are_raised(daemon: Daemon, tmp_path: Path) -> None:
    embedder = cotensor.Embedder(tmp_path, store=daemon.connect(), fallback="local")
    with pytest.raises(cotensor.CotensorError, match="config.json"):
        embedder.embed("a")
    embedder = cotensor.Embedder(BERT, store=daemon.connect(), fallback="local")
    with pytest.raises(cotensor.CotensorError, match="prompt"):
        embedder.embed("a", prompt_name="none")
    assert not embedder.is_local


def test_errors_of_a_local_model_are_those_of_the_daemon(daemon: Daemon, runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for model, prompt_name in ((tmp_path / "m", None), (BERT, "none"), (Path("no/such-model"), None)):
        there = cotensor.Embedder(model, store=daemon.connect())
        for embedder in (local(model), there):
            with pytest.raises(cotensor.CotensorError) as raised:
                embedder.embed("a", prompt_name=prompt_name)
            if embedder is not there:
                here = raised
        assert type(here.value) is type(raised.value) and str(here.value) == str(raised.value)


@pytest.mark.usefixtures("no_warnings")
def test_daemon_without_a_working_model_process_is_not_replaced(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENSOR_AUTOSTART", "1")
    # The model process cannot use this folder and ends at its start.
    monkeypatch.setenv("COTENSOR_CACHE", "/proc/none")
    embedder = cotensor.Embedder(BERT, fallback="local")
    try:
        with pytest.raises(cotensor.NoDaemonError, match="model process"):
            embedder.embed("a")
        assert not embedder.is_local
    finally:
        subprocess.run([*command(), "stop"], check=True, capture_output=True)


@pytest.mark.usefixtures("no_warnings")
def test_wrong_answer_is_an_error(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(runtime / "cotensor.sock"))
        listener.listen()

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            with pytest.raises(cotensor.IoError) as raised:
                cotensor.Embedder(BERT, fallback="local")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert not isinstance(raised.value, cotensor.NoDaemonError)


def test_timeout_ends_the_wait(runtime: Path) -> None:
    with pytest.raises(cotensor.TimedOutError, match="0.001 s"):
        local(timeout=0.001).embed(TEXTS * 60)


#: Embeds in a parent and in its forked child, and prints both results.
FORKED = """
import os, sys, warnings, cotensor
warnings.simplefilter("ignore")
embedder = cotensor.Embedder(sys.argv[1], fallback="local")
if sys.argv[2] == "after":
    embedder.embed(["gulls", "a crane"])
child = os.fork()
try:
    result = embedder.embed(["gulls", "a crane"]).tobytes().hex()
except cotensor.ConflictError as error:
    result = str(error).replace(" ", "_")
# In one write, between those of the other process.
os.write(1, f"{result}\\n".encode())
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("engine", ["auto", "rten"])
@pytest.mark.parametrize("fork", ["before", "after"])
def test_forked_child_loads_the_model_itself_or_refuses(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, engine: str, fork: str
) -> None:
    monkeypatch.setenv("COTENSOR_ENGINE", engine)
    command = [sys.executable, "-c", FORKED, str(BERT), fork]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed = program.communicate(timeout=60)[0].split()
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        raise
    refused = [text for text in printed if "before_it_forked" in text]
    assert program.returncode == 0 and len(printed) == 2 and len(refused) == (fork == "after")
    assert refused or printed[0] == printed[1]
