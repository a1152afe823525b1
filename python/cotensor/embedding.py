"""Embeddings of texts by a model that one process of this machine loads for all programs.

::

    embedder = cotensor.Embedder("sentence-transformers/all-MiniLM-L6-v2")
    rows = embedder.embed(["a text", "another"])            # a numpy array: one row for each text
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Literal, NamedTuple, Optional, Union

from . import _elsewhere, _warnings
from ._embedder_names import CALL_TEXTS_MAX, OtherNames, Texts, only_given
from ._forks import renewed
from ._native import Functions, LocalModels, Store
from .errors import (
    ConflictError,
    CotensorError,
    InvalidError,
    IoError,
    NoDaemonError,
    NotFoundError,
    RemoteError,
)
from .functions.retries import not_called

if TYPE_CHECKING:
    from ._embedder_names import Rows as _Rows

#: The function of the model process.
FUNCTION = "model.embed"
#: The most positions of texts in a warning.
_SHOWN_MAX = 10


class Embedded(NamedTuple):
    """The embeddings of texts, and what the model read of them."""

    #: An array of shape [texts, dimensions], float32.
    rows: "_Rows"
    #: The number of tokens that the model read of each text.
    tokens: List[int]
    #: The positions of the texts whose end was cut off, because the model reads no longer ones.
    truncated: List[int]
    #: What a reader of the numbers has to know, such as dimensions that the model does not declare.
    notices: List[str]


class Embedder(OtherNames):
    """Embeds texts as sentence-transformers does, with no other package than numpy.

    ``model`` is a folder, or a name on the hub. The daemon's model process loads it at the first call, once for all programs, and
    unloads it after a time without calls. Texts that were embedded before, by any program, are not computed again.

    ``prompt_name`` names the model's prompt that is put before each text (``query``, ``document``). ``pooling`` says
    how the vectors of tokens become that of a text, in place of the model's files: ``"mean"``, ``"cls"``, ``"max"``,
    ``"mean_sqrt_len_tokens"``, ``"weightedmean"`` or ``"lasttoken"``. Where no file states it, a model whose name is
    known is pooled as its name stands for, with a :class:`RuntimeWarning`; other models need the argument.
    ``dimensions`` shortens the embeddings to their first numbers, scaled to length 1; a :class:`RuntimeWarning` says if the model
    does not declare them. ``store`` is the daemon's store: by default that of :func:`cotensor.connect`, which starts the daemon
    when none runs. ``timeout`` limits each call, in seconds.

    The end of a text that is longer than the model reads is cut off, with a :class:`RuntimeWarning` once for each call.
    :meth:`embed_with_details` returns which texts were cut, without the warning. With ``truncate=False`` such a text is an error
    that names it: a :class:`RemoteError` from the daemon, an :class:`InvalidError` if ``is_local``.

    Where no daemon answers and none can be started, the constructor or a call raises :class:`NoDaemonError`. With
    ``fallback="local"`` it gives a :class:`RuntimeWarning` with the reason instead, once, and this process loads the model, with
    the settings of the daemon's model process. From then on ``is_local`` is true, and no daemon is searched. The embeddings are
    equal, but no other program shares the model, and equal texts are computed again. All other errors are raised: those of the
    model, of a daemon that answers, such as one of another version, and of one that does not answer in time.

    All methods can be called from any thread. Raises :class:`InvalidError` for other values of ``fallback`` and for dimensions
    below 1.
    """

    def __init__(
        self,
        model: Union[str, "os.PathLike[str]"],
        *,
        prompt_name: Optional[str] = None,
        pooling: Optional[str] = None,
        dimensions: Optional[int] = None,
        store: Optional[Store] = None,
        timeout: Optional[float] = None,
        fallback: Optional[Literal["local"]] = None,
        truncate: bool = True,
    ) -> None:
        from . import connect

        if fallback not in (None, "local"):
            raise InvalidError(f"fallback: pass 'local' or None, not {fallback!r}", field="fallback")
        name = os.fspath(model)
        # A relative folder has no meaning in another process.
        self.model: str = str(Path(name).absolute()) if Path(name).is_dir() else name
        self.prompt_name = prompt_name
        self.pooling = pooling
        self._noticed: set[str] = set()
        if dimensions is not None and dimensions < 1:
            raise InvalidError("dimensions is a number from 1 on", field="dimensions")
        self.dimensions = dimensions
        self.timeout = timeout
        self.fallback = fallback
        self.truncate = truncate
        self._is_local = False
        self._switching = renewed(self, "_switching", threading.Lock)
        try:
            self._daemon: Optional[Store] = connect() if store is None else store
            self.model = _elsewhere.model(self._daemon, self.model)
            self._functions = Functions(self._daemon, tensors="numpy", timeout=timeout)
        except NoDaemonError as error:
            if fallback is None:
                raise
            self._daemon = None
            self._fall_back(error)

    @property
    def is_local(self) -> bool:
        """Whether this process has loaded the model, because no daemon could be had."""
        return self._is_local

    @property
    def store(self) -> Store:
        """The daemon's store; that of this process's models if ``is_local``."""
        return _local_models().store if self._is_local or self._daemon is None else self._daemon

    def embed(
        self,
        texts: Optional[Texts] = None,
        batch_size: Optional[int] = None,
        parallel: Optional[int] = None,
        *,
        prompt_name: Optional[str] = None,
        truncate: Optional[bool] = None,
        documents: Optional[Texts] = None,
    ) -> "_Rows":
        """The embeddings: an array of shape [texts, dimensions], float32; of shape [dimensions] for a single text.

        fastembed calls the texts ``documents``. Its ``batch_size`` and ``parallel`` have no effect: the model process chooses
        its batches. ``truncate`` replaces that of the embedder for this call.

        Raises :class:`UnsupportedError` for a model without sentence embeddings, :class:`NotFoundError` for an unknown model,
        :class:`NoDaemonError` without a daemon and without ``fallback``, :class:`TimedOutError` after ``timeout``, and
        :class:`ConflictError` if ``is_local`` in a forked child of a process that had loaded models. The error of a text names
        its position, as ``texts[3]``.
        """
        return self._embed_from(0, only_given("embed", texts=texts, documents=documents), prompt_name, truncate)

    def _embed_from(self, first: int, texts: Texts, prompt_name: Optional[str], truncate: Optional[bool] = None) -> "_Rows":
        """As :meth:`embed`; errors and warnings count the texts from ``first``."""
        embedded = self._details(first, texts, prompt_name, truncate)
        self._warn(embedded.notices)
        if embedded.truncated:
            shown = ", ".join(map(str, embedded.truncated[:_SHOWN_MAX]))
            rest = ", ..." if len(embedded.truncated) > _SHOWN_MAX else ""
            _warnings.warn(
                f"texts longer than the model reads were cut at their end: {len(embedded.truncated)} of {len(embedded.tokens)}, "
                f"at positions {shown}{rest}; truncate=False refuses them"
            )
        return embedded.rows[0] if isinstance(texts, str) else embedded.rows

    def embed_with_details(
        self,
        texts: Texts,
        *,
        prompt_name: Optional[str] = None,
        truncate: Optional[bool] = None,
    ) -> Embedded:
        """As :meth:`embed`, with the tokens of each text and the positions of those that were cut, and without warnings. A single
        text has one row.
        """
        return self._details(0, texts, prompt_name, truncate)

    def _details(self, first: int, texts: Texts, prompt_name: Optional[str], truncate: Optional[bool]) -> Embedded:
        import numpy as np

        given: List[str] = [texts] if isinstance(texts, str) else list(texts)
        for at, text in enumerate(given, first):
            if not isinstance(text, str):
                raise InvalidError(f"texts[{at}] must be a str, not {type(text).__name__}", field="texts")
            if not text.isascii():
                _check_unicode(text, at)
        cuts = self.truncate if truncate is None else truncate
        parts: List["_Rows"] = []
        tokens: List[int] = []
        truncated: List[int] = []
        notices: List[str] = []
        for at in range(0, len(given), CALL_TEXTS_MAX):
            part = self._call(given[at : at + CALL_TEXTS_MAX], prompt_name, cuts, first + at)
            parts.append(part.rows)
            tokens += part.tokens
            truncated += [first + at + position for position in part.truncated]
            notices += [notice for notice in part.notices if notice not in notices]
        # A copy, which callers may change in place, as that of other libraries. The results of calls are read-only.
        rows: "_Rows" = np.concatenate(parts) if parts else np.empty((0, 0), np.float32)
        return Embedded(rows, tokens, truncated, notices)

    def _call(self, texts: List[str], prompt_name: Optional[str], truncate: bool, first: int) -> Embedded:
        options: Dict[str, Any] = {
            "prompt_name": prompt_name or self.prompt_name,
            "pooling": self.pooling,
            "dimensions": self.dimensions,
            "truncate": None if truncate else False,
            "first_index": first or None,
        }
        # Model processes of former versions do not know all of them.
        options = {name: value for name, value in options.items() if value is not None}
        if self._daemon is not None and not self._is_local:
            try:
                return self._call_daemon(self._daemon, texts, options)
            except NoDaemonError as error:
                # Of a daemon that answers, this is an error of its model process.
                if self.fallback is None or _answers(self._daemon.socket):
                    raise
                self._fall_back(error)
        import numpy as np

        found = _local_models().embed(self.model, texts, options, self.timeout)
        values, width, tokens, truncated, notices = found
        return Embedded(np.frombuffer(values, np.float32).reshape(len(texts), width), tokens, truncated, notices)

    def _call_daemon(self, store: Store, texts: List[str], options: Dict[str, Any]) -> Embedded:
        arguments = {"model": self.model, "texts": texts, **options}
        # The model process may have been started by an installation without the fast engine.
        store.offer_library()
        try:
            result = self._functions.call(FUNCTION, kwargs=arguments)
        except (NotFoundError, IoError) as error:
            # No model process runs, or it ended before it answered. A call has no effect but its result, so it is repeated once.
            if isinstance(error, RemoteError) or (isinstance(error, NotFoundError) and not not_called(error)):
                raise
            store.start_models()
            result = self._functions.call(FUNCTION, kwargs=arguments)
        return Embedded(result["embeddings"], result["tokens"], result.get("truncated", []), result.get("notices", []))

    def _warn(self, notices: Iterable[str]) -> None:
        """Warns of each notice once."""
        for notice in notices:
            if notice not in self._noticed:
                self._noticed.add(notice)
                _warnings.warn(f"{self.model}: {notice}")

    def _fall_back(self, error: NoDaemonError) -> None:
        """Uses the models of this process from now on, and warns the first time."""
        with self._switching:
            is_first, self._is_local = not self._is_local, True
        if is_first:
            _warnings.warn(f"no daemon can be had, so this process loads {self.model}: {error}")

    def get_embedding_dimension(self) -> int:
        """As sentence-transformers: the number of dimensions."""
        return int(self.embed_with_details("a").rows.shape[1])

    get_sentence_embedding_dimension = get_embedding_dimension

    def __repr__(self) -> str:
        return f"Embedder({self.model!r}{', is_local=True' if self._is_local else ''})"


class _Process:
    """The models that embedders without a daemon have loaded in this process."""

    def __init__(self, lacks_threads: bool = False) -> None:
        self.loading = threading.Lock()
        self.models: Optional[LocalModels] = None
        #: Whether the parent had loaded models before it forked. Its engines' threads do not exist here, and cannot be made anew.
        self.lacks_threads = lacks_threads


_process = _Process()


def _after_fork() -> None:
    global _process
    parent = _process
    _process = _Process(parent.lacks_threads or parent.models is not None or parent.loading.locked())


os.register_at_fork(after_in_child=_after_fork)


def _local_models() -> LocalModels:
    process = _process
    if process.lacks_threads:
        message = "the parent process loaded models before it forked: fork before its first call, or start processes by spawn"
        raise ConflictError(message)
    with process.loading:
        if process.models is None:
            process.models = LocalModels()
        return process.models


def _answers(socket: Optional[Path]) -> bool:
    """Whether a daemon answers at the socket, in any way."""
    from . import connect

    try:
        connect(socket, autostart=False).close()
    except NoDaemonError:
        return False
    except CotensorError:
        pass
    return True


def _check_unicode(text: str, at: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"texts[{at}] has half of a surrogate pair at character {error.start}, which no Unicode text has"
        raise InvalidError(message, field="texts") from None
