"""The files of a policy: Hugging Face folder, Megatron folder, and the arguments for it."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.command import RunError
from turnwise.launch.resume import LOADED, TRACKER, iteration, model_type
from turnwise.launch.rules import MLA_SWITCH
from turnwise.preflight import Line, fail, note, ok

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model", "tekken.json"),
    *("spiece.model", "sentencepiece.bpe.model"),
)
MAX_HEADER = 100_000_000
"""Bytes of a safetensors file's header, as the format bounds it."""
# Hugging Face's name of a figure, Megatron's flag for it, and what Megatron takes without the flag.
FIGURES: tuple[tuple[str, str, float | None], ...] = (
    ("num_hidden_layers", "--num-layers", None),
    ("hidden_size", "--hidden-size", None),
    ("intermediate_size", "--ffn-hidden-size", None),
    ("num_attention_heads", "--num-attention-heads", None),
    ("num_key_value_heads", "--num-query-groups", None),
    ("head_dim", "--kv-channels", None),
    ("vocab_size", "--vocab-size", None),
    ("rms_norm_eps", "--norm-epsilon", 1e-5),
    ("rope_theta", "--rotary-base", 10000.0),
)


def check_hf_folder(name: str, folder: Path, *, weights: bool = True) -> Iterator[Line]:
    """Lines on a Hugging Face folder: config, tokenizer and, if asked, every weight file."""
    if not folder.is_dir():
        yield fail(name, f"{folder} is no folder", f"hf download MODEL --local-dir {folder}")
        return
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        yield fail(name, f"{folder}/config.json is missing or no JSON", "download the model again")
    tokenizer = [file for file in TOKENIZER_FILES if (folder / file).is_file()]
    if not tokenizer:
        looked = ", ".join(TOKENIZER_FILES)
        yield fail(name, f"no tokenizer in {folder} ({looked})", "download the tokenizer's files")
    elif not (folder / "tokenizer_config.json").is_file():
        found = f"{folder}/tokenizer_config.json is missing: the tokenizer may lack its template"
        yield note(name, found, "download it")
    missing = missing_weights(folder) if weights else []
    if missing:
        yield fail(
            name,
            f"{len(missing)} weight file(s) missing or empty in {folder}: {', '.join(missing[:3])}",
            "download the model again",
        )
    if isinstance(config, dict) and tokenizer and not missing:
        size = weight_bytes(folder) / 1e9
        yield ok(name, f"{folder}: {', '.join(tokenizer)}" + (f", {size:.1f} GB" * weights))


def missing_weights(folder: Path) -> list[str]:
    """Weight files that the index names and that are not there, or the sign that there are none."""
    index = read_json(folder / "model.safetensors.index.json")
    if isinstance(index, dict) and isinstance(index.get("weight_map"), dict):
        names = sorted({str(file) for file in index["weight_map"].values()})
        return [file for file in names if not _has_bytes(folder / file)]
    files = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return [] if any(_has_bytes(file) for file in files) else ["model.safetensors"]


def weight_bytes(folder: Path) -> int:
    """Bytes of all weight files; 0 if there are none."""
    try:
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    except OSError:
        return 0


def check_reference(name: str, folder: Path, remedy: str) -> Line:
    """The line on what training starts from: a Megatron folder, or a Hugging Face one as it is."""
    if iteration(folder) is not None or not (folder / "config.json").is_file():
        return check_torch_dist(name, folder, remedy)
    kind = model_type(folder)
    if kind not in LOADED:
        return fail(name, f"{folder}: slime loads no Hugging Face weights of type {kind}", remedy)
    missing = missing_weights(folder)
    if missing:
        found = f"{len(missing)} weight file(s) missing or empty in {folder}: {missing[0]}"
        return fail(name, found, "download the model again")
    size = weight_bytes(folder) / 1e9
    return ok(name, f"{folder}: Hugging Face weights of {kind}, {size:.1f} GB, loaded as they are")


def check_torch_dist(name: str, folder: Path, remedy: str) -> Line:
    """The line on a Megatron folder: its tracker, and the checkpoint that the tracker names."""
    latest = iteration(folder)
    if latest is None and re.fullmatch(r"iter_\d{7}", folder.name) and folder.is_dir():
        place, latest = folder, ""
    elif latest is not None:
        place = folder / ("release" if latest == "release" else f"iter_{latest.zfill(7)}")
    if latest is None:
        return fail(name, f"{folder} has no {TRACKER}: it holds no Megatron checkpoint", remedy)
    if any(place.glob("mp_rank_*")):
        return note(name, f"{place}: Megatron's older format, whose files are not looked at")
    absent = [file for file in ("common.pt", ".metadata") if not _has_bytes(place / file)]
    shards = [file for file in place.glob("*.distcp") if _has_bytes(file)]
    if absent or not shards:
        lacking = ", ".join(absent + ([] if shards else ["*.distcp"]))
        return fail(name, f"{place} lacks {lacking}: it was not written to the end", remedy)
    size = sum(file.stat().st_size for file in shards) / 1e9
    return ok(name, f"{place}: {len(shards)} shards, {size:.1f} GB")


def check_figures(
    name: str, config: Mapping[str, Any], options: Mapping[str, Sequence[str]]
) -> Iterator[Line]:
    """Lines on the model's arguments against its config.json.

    A figure that differs does not stop slime, but trains another network than SGLang runs. With
    multi-head latent attention the sizes of heads have other flags and are left out.
    """
    other = ("--kv-channels", "--num-query-groups") if MLA_SWITCH in options else ()
    text = config.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    wrong = []
    compared = 0
    for key, flag, default in FIGURES:
        wanted = _figure(inner, key)
        values = options.get(flag)
        found = float(values[0]) if values else default
        if wanted is None or found is None or flag in other:
            continue
        compared += 1
        if found != wanted:
            wrong.append(f"{flag} {found:g}, {key} {wanted:g}")
    tied = inner.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    untied = "--untie-embeddings-and-output-weights" in options
    if isinstance(tied, bool):
        compared += 1
        if tied == untied:
            wrong.append(
                f"untie-embeddings-and-output-weights {untied}, tie_word_embeddings {tied}"
            )
    if wrong:
        yield fail(
            name,
            f"not the model of config.json: {'; '.join(wrong)}",
            "choose [model] name for this checkpoint, or give the figure in [model] args",
        )
    elif compared < 5:
        yield note(name, f"config.json has only {compared} figures that can be compared")
    else:
        yield ok(name, f"{compared} figures equal config.json")


def _figure(config: Mapping[str, Any], key: str) -> float | None:
    if key == "rope_theta":
        parameters = config.get("rope_parameters")
        if isinstance(parameters, Mapping) and "rope_theta" in parameters:
            return float(parameters["rope_theta"])
    value = config.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def parameters(folder: Path, options: Mapping[str, Sequence[str]]) -> int:
    """Parameters of the policy: those of its weight files, else by the dense formula.

    The formula (embedding, attention with grouped keys, gated feed-forward, norms left out) does
    not hold for mixtures of experts, so those give 0 without weights.
    """
    try:
        held = sum(math.prod(shape) for shape in tensor_shapes(folder).values())
    except RunError:
        held = 0
    if held:
        return held
    if "--num-experts" in options or "--multi-latent-attention" in options:
        return 0

    def figure(flag: str, default: int = 0) -> int:
        return int(options[flag][0]) if flag in options else default

    hidden, heads = figure("--hidden-size"), figure("--num-attention-heads")
    if not hidden or not heads:
        return 0
    head = figure("--kv-channels", hidden // heads)
    groups = figure("--num-query-groups", heads)
    attention = hidden * head * (2 * heads + 2 * groups)
    feed = 3 * hidden * figure("--ffn-hidden-size")
    embedding = figure("--vocab-size") * hidden
    untied = "--untie-embeddings-and-output-weights" in options
    return figure("--num-layers") * (attention + feed) + embedding * (2 if untied else 1)


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape by tensor name, out of the headers of the folder's safetensors files.

    Raises:
        RunError: a file is no safetensors file.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header: dict[str, Any] = json.loads(stream.read(min(length, MAX_HEADER)))
            header.pop("__metadata__", None)
            shapes |= {name: tuple(map(int, entry["shape"])) for name, entry in header.items()}
        except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path}: is no safetensors file: {error}") from None
    return shapes


def read_json(path: Path) -> object:
    """The file's content, or None if it is not there or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def iterations(folder: Path) -> list[int]:
    """Numbers of the iter_* folders, ascending."""
    found = (re.fullmatch(r"iter_(\d{7})", path.name) for path in folder.glob("iter_*"))
    return sorted(int(match[1]) for match in found if match)
