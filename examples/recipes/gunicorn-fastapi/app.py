"""A web server that embeds texts. All workers use one model, in the model process of this machine's daemon.

    MODEL=folder gunicorn app:app --worker-class uvicorn_worker.UvicornWorker --workers 4
"""

import os
from typing import List

from fastapi import FastAPI
from pydantic import BaseModel

import cotensor

app = FastAPI()
# Also with --preload: a worker that is forked from this process connects for itself at its first call.
embedder = cotensor.Embedder(os.environ["MODEL"])


class Texts(BaseModel):
    input: List[str]


class Embeddings(BaseModel):
    embeddings: List[List[float]]
    worker: int


# FastAPI runs a function that is not `async` in a thread, so the event loop is not blocked.
@app.post("/embed")
def embed(texts: Texts) -> Embeddings:
    return Embeddings(embeddings=embedder.embed(texts.input).tolist(), worker=os.getpid())
