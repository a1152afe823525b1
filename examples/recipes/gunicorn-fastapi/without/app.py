"""The same web server with a model in each worker, loaded by onnxruntime."""

import os
from typing import List

from common.onnx_embedder import OnnxEmbedder
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
embedder = OnnxEmbedder(os.environ["MODEL"])


class Texts(BaseModel):
    input: List[str]


class Embeddings(BaseModel):
    embeddings: List[List[float]]
    worker: int


@app.post("/embed")
def embed(texts: Texts) -> Embeddings:
    return Embeddings(embeddings=embedder.embed(texts.input).tolist(), worker=os.getpid())
