"""Embeddings of texts by a model that one process of this machine loads for all programs.

::

    embedder = cotensor.Embedder("sentence-transformers/all-MiniLM-L6-v2")
    rows = embedder.embed(["a text", "another"])            # a numpy array: one row for each text
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, Optional, Union

from ._native import Functions, Store
from .errors import InvalidError, IoError, NotFoundError, RemoteError, UnsupportedError
from .functions.client import not_called

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Rows = npt.NDArray[np.float32]

#: The function of the model process.
FUNCTION = "model.embed"
#: The most texts of one call. The texts of concurrent calls run together.
CALL_TEXTS_MAX = 256
#: Options of sentence-transformers' `encode`, with the values that change nothing here.
_NEUTRAL = {
    "prompt": (None,),
    "output_value": ("sentence_embedding",),
    "precision": (None, "float32"),
    "device": (None, "cpu"),
    "pool": (None,),
    "chunk_size": (None,),
}


class Embedder:
    """Embeds texts as sentence-transformers does, with no other package than numpy.

    ``model`` is a folder, or a name on the hub. The daemon's model process loads it at the first call, once for all programs, and
    unloads it after a time without calls. Texts that were embedded before, by any program, are not computed again.

    ``prompt_name`` names the model's prompt that is put before each text (``query``, ``document``). ``dimensions`` shortens the
    embeddings to their first numbers, scaled to length 1. ``store`` is the daemon's store: by default that of
    :func:`cotensor.connect`, which starts the daemon when none runs. ``timeout`` limits each call, in seconds.

    All methods can be called from any thread.
    """

    def __init__(
        self,
        model: Union[str, "os.PathLike[str]"],
        *,
        prompt_name: Optional[str] = None,
        dimensions: Optional[int] = None,
        store: Optional[Store] = None,
        timeout: Optional[float] = None,
    ) -> None:
        from . import connect

        name = os.fspath(model)
        # A relative folder has no meaning in another process.
        self.model: str = str(Path(name).absolute()) if Path(name).is_dir() else name
        self.prompt_name = prompt_name
        if dimensions is not None and dimensions < 1:
            raise InvalidError("dimensions is a number from 1 on", field="dimensions")
        self.dimensions = dimensions
        self.store: Store = connect() if store is None else store
        self._functions = Functions(self.store, tensors="numpy", timeout=timeout)

    def embed(
        self,
        texts: Union[str, Iterable[str]],
        batch_size: Optional[int] = None,
        parallel: Optional[int] = None,
        *,
        prompt_name: Optional[str] = None,
    ) -> "_Rows":
        """The embeddings: an array of shape [texts, dimensions], float32; of shape [dimensions] for a single text.

        ``batch_size`` and ``parallel``, which fastembed has, have no effect: the model process chooses its batches.

        Raises :class:`InvalidError` for a model without sentence embeddings, :class:`NotFoundError` for an unknown model.
        """
        import numpy as np

        single = isinstance(texts, str)
        given: List[str] = [texts] if isinstance(texts, str) else list(texts)
        for at, text in enumerate(given):
            if not isinstance(text, str):
                raise InvalidError(f"texts[{at}] is no str but a {type(text).__name__}", field="texts")
        parts = [self._call(given[at : at + CALL_TEXTS_MAX], prompt_name) for at in range(0, len(given), CALL_TEXTS_MAX)]
        if not parts:
            return np.empty((0, 0), np.float32)
        # A copy, which callers may change in place, as that of other libraries. The results of calls are read-only.
        rows: "_Rows" = np.concatenate(parts)
        if self.dimensions is not None:
            if self.dimensions > rows.shape[1]:
                raise InvalidError(f"the embeddings of this model have {rows.shape[1]} dimensions", field="dimensions")
            rows = _normalized(rows[:, : self.dimensions])
        return rows[0] if single else rows

    def _call(self, texts: List[str], prompt_name: Optional[str]) -> "_Rows":
        arguments = {"model": self.model, "texts": texts, "prompt_name": prompt_name or self.prompt_name}
        try:
            result = self._functions.call(FUNCTION, kwargs=arguments)
        except (NotFoundError, IoError) as error:
            # No model process runs, or it ended before it answered. A call has no effect but its result, so it is repeated once.
            if isinstance(error, RemoteError) or (isinstance(error, NotFoundError) and not not_called(error)):
                raise
            self.store.start_models()
            result = self._functions.call(FUNCTION, kwargs=arguments)
        rows: "_Rows" = result["embeddings"]
        return rows

    def query_embed(self, query: Union[str, Iterable[str]], **_: Any) -> Iterator["_Rows"]:
        """As fastembed: the embedding of each query, with the model's prompt for queries."""
        yield from self.embed([query] if isinstance(query, str) else query, prompt_name="query")

    def passage_embed(self, texts: Iterable[str], **_: Any) -> Iterator["_Rows"]:
        """As fastembed: the embedding of each text, with the model's prompt for documents."""
        yield from self.embed(texts, prompt_name="document")

    def encode(
        self,
        inputs: Union[str, Iterable[str]],
        prompt_name: Optional[str] = None,
        prompt: Optional[str] = None,
        batch_size: int = 32,
        show_progress_bar: Optional[bool] = None,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: Optional[int] = None,
        **options: Any,
    ) -> Any:
        """As sentence-transformers. ``batch_size`` and ``show_progress_bar`` have no effect.

        Raises :class:`UnsupportedError` for ``prompt`` and for values of other options that change the result.
        """
        for name, value in {"prompt": prompt, **options}.items():
            if value not in _NEUTRAL.get(name, ()):
                raise UnsupportedError(f"the option {name}={value!r} of sentence-transformers is not supported", field=name)
        rows = self.embed(inputs, prompt_name=prompt_name)
        if truncate_dim is not None:
            if truncate_dim < 1:
                raise InvalidError("truncate_dim is a number from 1 on", field="truncate_dim")
            rows = rows[..., :truncate_dim]
        if normalize_embeddings:
            rows = _normalized(rows)
        if convert_to_tensor:
            import torch

            return torch.from_numpy(rows)
        return rows if convert_to_numpy else list(rows)

    def encode_query(self, inputs: Union[str, Iterable[str]], prompt_name: Optional[str] = None, **options: Any) -> Any:
        """As sentence-transformers: :meth:`encode` with the model's prompt for queries."""
        return self.encode(inputs, prompt_name or "query", **options)

    def encode_document(self, inputs: Union[str, Iterable[str]], prompt_name: Optional[str] = None, **options: Any) -> Any:
        """As sentence-transformers: :meth:`encode` with the model's prompt for documents."""
        return self.encode(inputs, prompt_name or "document", **options)

    def get_embedding_dimension(self) -> int:
        """As sentence-transformers: the number of dimensions."""
        return int(self.embed("a").shape[0])

    get_sentence_embedding_dimension = get_embedding_dimension

    def __repr__(self) -> str:
        return f"Embedder({self.model!r})"


def _normalized(rows: "_Rows") -> "_Rows":
    import numpy as np

    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    scaled: "_Rows" = (rows / np.where(norms > 0, norms, 1)).astype(np.float32, copy=False)
    return scaled
