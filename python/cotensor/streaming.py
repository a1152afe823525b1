"""Speech that is transcribed while it plays, and a text model on each finished piece of the transcript.

::

    import cotensor

    processor = cotensor.StreamingProcessor(audio_model="openai/whisper-base", text_model="models/bert")

    @processor.on_audio_chunk
    def show(chunk):
        for segment in processor.process_audio_with_transcription(chunk)["segments"]:
            print(segment["start"], segment["text"], segment["answer"])

    processor.run("speech.wav")

The memory is bounded: one window of sound, and the models' results for it, which leave the store afterwards.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Optional, TypeVar, Union

from . import _elsewhere
from ._native import PooledModel, ResourcePool, SoundBytes, SpeechStream, Store
from .errors import InvalidError

if TYPE_CHECKING:
    from .models import FamilyModel
    from .pool import Model

#: Seconds of a chunk of a source.
CHUNK_SECONDS = 0.25
#: Bytes that are read before the rate of a WAV file is known.
_HEADER_BYTES = 4096

#: The names of options in docs/reference/api-names.md.
_OPTIONS = {"audioModel": "audio_model", "textModel": "text_model", "useSharedTensors": "use_shared_tensors"}

_ModelLike = Union["Model", "FamilyModel", str, "os.PathLike[str]"]
_Callback = TypeVar("_Callback", bound=Callable[[Any], object])


class StreamingProcessor:
    """Transcribes sound in chunks.

    ``audio_model`` is a speech model such as Whisper, ``text_model`` a model for the transcript: of :mod:`cotensor.models` or of
    a pool, a folder, or a name on the hub. They may also be in a dict: ``audioModel``, ``textModel``,
    ``useSharedTensors``. With ``use_shared_tensors``, weights and results are in the models' store (``store`` for models that are
    given by name); without, each model is a private copy. ``sample_rate`` is that of the chunks, by default the speech model's.
    ``window`` is the number of seconds after which a part is transcribed, by default the model's window: less gives
    results sooner and takes more time. ``text_task`` is the text model's task, by default the one that its class means.
    """

    def __init__(
        self,
        audio_model: Union[_ModelLike, Mapping[str, Any]],
        text_model: Optional[_ModelLike] = None,
        use_shared_tensors: bool = True,
        *,
        sample_rate: Optional[int] = None,
        window: Optional[float] = None,
        text_task: Optional[str] = None,
        store: Optional[Store] = None,
    ) -> None:
        audio: Any = audio_model
        if isinstance(audio_model, Mapping):
            named = {_OPTIONS.get(key, key): value for key, value in audio_model.items()}
            unknown = sorted(set(named) - set(_OPTIONS.values()))
            if unknown or "audio_model" not in named:
                raise InvalidError(f"pass {', '.join(_OPTIONS)}", field=unknown[0] if unknown else "audioModel")
            audio, text_model = named["audio_model"], named.get("text_model")
            use_shared_tensors = named.get("use_shared_tensors", True)
        store = Store() if store is None else store
        self._models = (_open(audio, "audio", store), None if text_model is None else _open(text_model, "text", store))
        self._options: dict[str, Any] = {"shared": use_shared_tensors, "window": window, "text_task": text_task}
        self._stream = self._new(sample_rate)
        self._sample_rate = sample_rate
        self._started = False
        self._callbacks: list[Callable[[Any], object]] = []

    def _new(self, sample_rate: Optional[int]) -> SpeechStream:
        return SpeechStream(*self._models, sample_rate=sample_rate, **self._options)

    def on_audio_chunk(self, callback: _Callback) -> _Callback:
        """Registers a function that :meth:`run` calls with each chunk. Can be used as a decorator."""
        self._callbacks.append(callback)
        return callback

    def process_audio_with_transcription(self, chunk: Any) -> dict[str, Any]:
        """Adds a chunk: samples of one channel, as float numbers from -1 to 1 or as int16.

        Returns after the windows that it completes are transcribed. The result has ``segments``, often none, each with ``start``
        and ``end`` in seconds, ``text``, and the text model's ``answer`` and ``outputs``; ``text``, the texts of all segments;
        and ``notices``.
        """
        self._started = True
        return _result(self._stream.push(_samples(chunk)))

    onAudioChunk = on_audio_chunk  # noqa: N815
    processAudioWithTranscription = process_audio_with_transcription  # noqa: N815

    def finish(self) -> dict[str, Any]:
        """Ends the stream and returns the last results, with ``summary``: seconds, windows, segments, run_seconds."""
        events, summary = self._stream.finish()
        return {**_result(events), "summary": summary}

    def run(
        self,
        source: Union[str, "os.PathLike[str]", BinaryIO, Iterable[Any]],
        *,
        format: Optional[str] = None,  # noqa: A002
        rate: Optional[int] = None,
    ) -> dict[str, Any]:
        """Reads a source to its end, and finishes.

        ``source`` is a WAV file, a binary file object, or an iterable of chunks. ``format`` is ``"wav"``, or ``"s16le"`` or
        ``"f32le"`` for raw samples, which need a ``rate``. The functions of :meth:`on_audio_chunk` get each chunk; without
        any, it is processed. Returns the results that no function got.
        """
        results = []
        for chunk in self._chunks(source, format, rate):
            for callback in self._callbacks:
                callback(chunk)
            if not self._callbacks:
                results.append(self.process_audio_with_transcription(chunk))
        results.append(self.finish())
        return {
            "segments": [segment for result in results for segment in result["segments"]],
            "text": " ".join(result["text"] for result in results if result["text"]),
            "notices": [notice for result in results for notice in result["notices"]],
            "summary": results[-1]["summary"],
        }

    def _chunks(self, source: Any, format: Optional[str], rate: Optional[int]) -> Iterator[Any]:  # noqa: A002
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                yield from self._read(file, format, rate)
        elif hasattr(source, "read"):
            yield from self._read(source, format, rate)
        elif format is not None or rate is not None:
            raise InvalidError("chunks are samples: pass sample_rate= to the processor", field="format")
        else:
            yield from source

    def _read(self, file: Any, format: Optional[str], rate: Optional[int]) -> Iterator[Any]:  # noqa: A002
        import numpy

        decoder, size = SoundBytes("wav" if format is None else format, rate), _HEADER_BYTES
        while data := file.read(size):
            samples = decoder.push(data)
            if decoder.rate is not None:
                size = int(decoder.rate * CHUNK_SECONDS) * 4
                self._adopt(decoder.rate)
            if samples:
                yield numpy.frombuffer(samples, numpy.dtype("<f4"))
        decoder.finish()

    def _adopt(self, rate: int) -> None:
        """Uses the rate of a source."""
        if rate != self._sample_rate:
            if self._started:
                raise InvalidError(f"the source has {rate} Hz, the chunks before it have {self._sample_rate}", field="rate")
            self._stream, self._sample_rate = self._new(rate), rate

    def __repr__(self) -> str:
        audio, text = self._models
        return f"<StreamingProcessor {audio.name!r}{'' if text is None else f', {text.name!r}'}>"


def _open(model: _ModelLike, kind: str, store: Store) -> PooledModel:
    found: Any = model
    while hasattr(found, "_model"):
        found = found._model
    if isinstance(found, PooledModel):
        return found
    if found is None:
        raise InvalidError("the model is not initialized: await model.initialize()", field=f"{kind}_model")
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidError(f"pass a model, a folder or a name, not {type(model).__name__}", field=f"{kind}_model")
    path = os.fspath(model)
    if os.path.isdir(path):
        folder, name = os.path.split(os.path.abspath(path))
        return ResourcePool(folder, 1, store).get_model(kind, name)
    found = _elsewhere.model(store, path)
    return ResourcePool(".", 1, store).get_model(kind, path, folder=None if found == path else found)


def _samples(chunk: Any) -> bytes:
    import numpy

    samples = numpy.asarray(chunk)
    if samples.ndim != 1 or samples.dtype.kind not in "fi" or samples.dtype.kind == "i" and samples.dtype != numpy.int16:
        message = f"samples are a list of floating-point numbers or of int16, not {samples.dtype} {list(samples.shape)}"
        raise InvalidError(message, field="chunk")
    scale = 32768.0 if samples.dtype == numpy.int16 else 1.0
    return (samples.astype("<f4") / numpy.float32(scale)).astype("<f4").tobytes()


def _result(events: list[dict[str, Any]]) -> dict[str, Any]:
    segments: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["event"] == "segment":
            named = {key: event[key] for key in ("segment", "start", "end", "text")}
            segments[event["segment"]] = {**named, "answer": None, "outputs": []}
        elif event["event"] == "answer":
            segments[event["segment"]].update(answer=event["answer"], outputs=event["outputs"])
    texts = [segment["text"] for segment in segments.values()]
    notices = [event["notice"] for event in events if event["event"] == "notice"]
    return {"segments": list(segments.values()), "text": " ".join(texts), "notices": notices}


__all__ = ["StreamingProcessor"]
