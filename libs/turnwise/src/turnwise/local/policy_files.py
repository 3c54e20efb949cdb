"""A policy's folder, looked at before any library reads it.

A checkpoint comes from somewhere else. Its JSON files are read into the types below, and what is
not a checkpoint that can be computed here is refused with the file and the key. Imports no torch.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from safetensors import SafetensorError, safe_open

from turnwise.config import ConfigError
from turnwise.local.options import SHIPPED, SMOLLM2
from turnwise.printable import one_line
from turnwise.run.disk import reading

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
"""One of them holds the vocabulary."""
WEIGHT_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Of a weight that means what its number says; the others need scales."""

Size = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
TokenId = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Number = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
ValueT = TypeVar("ValueT")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`config.json`, as far as it says what is computed; other keys are left to transformers."""

    model_type: str
    auto_map: dict[str, Any] | None = None
    quantization_config: dict[str, Any] | None = None
    architectures: list[str] | None = None
    vocab_size: Size | None = None
    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    num_attention_heads: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Annotated[int, msgspec.Meta(ge=1, le=2**32)] | None = None
    rms_norm_eps: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    initializer_range: Number | None = None
    rope_theta: Annotated[float, msgspec.Meta(gt=0, le=1e15)] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    hidden_act: str | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    attention_dropout: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    use_sliding_window: bool | None = None
    sliding_window: Annotated[int, msgspec.Meta(ge=0, le=2**32)] | None = None
    layer_types: list[str] | None = None
    bos_token_id: TokenId | list[TokenId] | None = None
    eos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | None = None


class TokenizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`tokenizer_config.json`."""

    auto_map: Any = None
    tokenizer_class: str | None = None
    chat_template: str | list[dict[str, Any]] | dict[str, str] | None = None
    bos_token: str | dict[str, Any] | None = None
    eos_token: str | dict[str, Any] | None = None
    pad_token: str | dict[str, Any] | None = None
    unk_token: str | dict[str, Any] | None = None
    added_tokens_decoder: dict[str, dict[str, Any]] | None = None


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`generation_config.json`."""

    auto_map: Any = None
    bos_token_id: TokenId | list[TokenId] | None = None
    eos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | list[TokenId] | None = None


class TokenizerFile(msgspec.Struct, frozen=True, kw_only=True):
    """`tokenizer.json`."""

    model: dict[str, Any]


class WeightIndex(msgspec.Struct, frozen=True, kw_only=True):
    """`model.safetensors.index.json`."""

    weight_map: dict[str, str]


class Plain(msgspec.Struct, frozen=True):
    """A file that must be a JSON object, and nothing more is known of it here."""


_KINDS: dict[str, type[msgspec.Struct]] = {
    "config.json": ModelConfig,
    "tokenizer_config.json": TokenizerConfig,
    "generation_config.json": GenerationConfig,
    "tokenizer.json": TokenizerFile,
    "model.safetensors.index.json": WeightIndex,
    "special_tokens_map.json": Plain,
    "added_tokens.json": Plain,
    "vocab.json": Plain,
}


def read_typed(path: Path, kind: type[ValueT]) -> ValueT:
    """A JSON file as a type; keys that the type does not know are left out.

    Raises:
        ConfigError: naming the file, and the key whose value is of another shape.
    """
    with reading(path):
        content = path.read_bytes()
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {one_line(str(error), 200)}") from None
    try:
        return msgspec.convert(value, kind)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path}: {one_line(str(error), 300)}") from None


def check_model_folder(path: Path, flag: str) -> None:
    """Checks that a folder can be a policy, weights included.

    Raises:
        ConfigError: beginning with `flag`, which names the folder.
    """
    _check_is_folder(path, flag)
    if not (path / "config.json").is_file():
        steps = sorted(step.name for step in path.glob("**/step_*"))
        hint = f"; did you mean {steps[-1]} inside it?" if steps else ""
        raise ConfigError(f"{flag}: has no config.json, so it is no transformers checkpoint{hint}")
    if not list(path.glob("*.safetensors")):
        raise ConfigError(f"{flag}: has no *.safetensors file; the checkpoint may be half written")
    check_tokenizer_folder(path, flag)
    config = read_typed(path / "config.json", ModelConfig)
    if config.quantization_config is not None:
        how = config.quantization_config.get("quant_method", "a method that it does not name")
        raise ConfigError(
            f"{flag}: config.json: quantization_config: the weights are quantised by"
            f" {one_line(str(how), 40)}; training needs the unquantised checkpoint"
        )
    _check_weight_types(path, flag)


def _check_is_folder(path: Path, flag: str) -> None:
    if path.is_dir():
        return
    near = difflib.get_close_matches(str(path), (SHIPPED, SMOLLM2), n=1)
    # The name itself comes here where a command takes no such policy.
    hint = f"; did you mean {near[0]!r}?" if near and near[0] != str(path) else ""
    raise ConfigError(f"{flag}: {'is a file' if path.exists() else 'no such folder'}{hint}")


def check_tokenizer_folder(path: Path, flag: str) -> None:
    """Checks a folder's JSON files and that it brings a tokenizer, none of it as code.

    Raises:
        ConfigError: beginning with `flag`, which names the folder.
    """
    _check_is_folder(path, flag)
    for name, kind in _KINDS.items():
        file = path / name
        if not file.exists():
            continue
        found: Any = read_typed(file, kind)
        if getattr(found, "auto_map", None) is not None:
            raise ConfigError(
                f"{flag}: {name}: auto_map: the checkpoint wants Python files of its own to be run,"
                " which is never done; use one whose model and tokenizer are transformers' own, or"
                " remove auto_map where they are"
            )
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigError(f"{flag}: has no tokenizer: none of {', '.join(TOKENIZER_FILES)}")


def _check_weight_types(path: Path, flag: str) -> None:
    for name, dtype in _weights(path, flag):
        if dtype not in WEIGHT_TYPES:
            raise ConfigError(
                f"{flag}: the weight {one_line(name, 100)} is of type {one_line(dtype, 20)}: the"
                " checkpoint is quantised; training needs the unquantised one"
            )


def _weights(path: Path, flag: str) -> Iterator[tuple[str, str]]:
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118
                    yield name, str(opened.get_slice(name).get_dtype())
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{flag}: {file.name}: can't be read: {error}") from None
