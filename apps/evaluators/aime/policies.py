"""The player that the options name, made ready and looked at before anything is asked."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokendelta
import torch
from transformers import AutoConfig, AutoTokenizer
from turnwise.command import PreflightError
from turnwise.config import ConfigError, read_toml
from turnwise.engine import Engine, SamplingParams
from turnwise.engine.http import HttpError, reach
from turnwise.engine.sglang import SGLangEngine
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Boundary, BoundaryError
from turnwise.local.policy import check_template, load_policy
from turnwise.local.threads import choose_threads, set_threads
from turnwise.method import OPTIONS, make_method, options_class
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.policy import Policy

from apps.evaluators.aime.options import PLAIN, EvalOptions
from apps.evaluators.aime.playing import (
    ANSWER_DEADLINE_S,
    EndpointPlayer,
    MethodPlayer,
    PlainPlayer,
    Player,
)

ATTEMPT_S = 900.0
"""For one request to an endpoint."""


def read_method_options(method: str, path: Path | None) -> dict[str, Any]:
    """The method's own options; empty without a file.

    Raises:
        ConfigError: if it can't be read, is no TOML, or has a key that a built-in method has not.
    """
    if path is None:
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--method-config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    return read_toml(options_class(method), path) if method in OPTIONS else found


async def make_player(
    options: EvalOptions, method_options: Mapping[str, Any]
) -> tuple[Player, Any]:
    """The player, and the tokenizer that shows its tokens as text (None behind an endpoint).

    Raises:
        ConfigError: the method, its options, the weights, the tokenizer or the key's variable.
        PreflightError: nobody answers at a URL.
    """
    if options.base_url is not None:
        return await _endpoint_player(options), None
    # Before the weights, which take longest.
    method = None if options.method == PLAIN else make_method(options.method, method_options)
    if options.sglang_url is not None:
        await _reach_server(options.sglang_url)
        engine, tokenizer, context = _sglang_engine(options)
    else:
        engine, tokenizer, context = _local_engine(options)
    policy = Policy(
        engine=engine,
        profile=tokendelta.Profile.from_tokenizer(tokenizer),
        max_context_tokens=context,
        sampling=SamplingParams(
            temperature=options.temperature,
            top_p=options.top_p,
            max_new_tokens=options.max_response_len,
        ),
    )
    if method is None:
        return PlainPlayer(policy), tokenizer
    return MethodPlayer(method, policy, options.method), tokenizer


def _local_engine(options: EvalOptions) -> tuple[Engine, Any, int]:
    name = str(options.hf_checkpoint)
    if options.device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"--device {options.device}: this torch finds no GPU")
    loaded = load_policy(name, device=options.device, require_tools=False)
    set_threads(options.threads or choose_threads(loaded.model).threads)
    most = int(loaded.model.config.max_position_embeddings)
    context = _context(options, most)
    engine = TorchEngine(loaded.model, rows=options.engine_rows, context=context)
    return engine, loaded.tokenizer, context


def _sglang_engine(options: EvalOptions) -> tuple[Engine, Any, int]:
    name = str(options.hf_checkpoint)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
        config: Any = AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"--hf-checkpoint {name}: no tokenizer and config: {first}") from None
    check_template(tokenizer, name, require_tools=False)
    context = _context(options, int(config.max_position_embeddings))
    engine = SGLangEngine(
        str(options.sglang_url),
        deadline_s=ANSWER_DEADLINE_S,
        send_seed=True,
        max_context_tokens=context,
    )
    return engine, tokenizer, context


def _context(options: EvalOptions, positions: int) -> int:
    if options.max_context_len is None:
        return positions
    if options.max_context_len > positions:
        raise ConfigError(
            f"--max-context-len {options.max_context_len}: the policy has {positions} positions"
        )
    return options.max_context_len


async def _endpoint_player(options: EvalOptions) -> EndpointPlayer:
    """
    Raises:
        ConfigError: if the key's variable is named but not set.
        PreflightError: naming the URL and what was found.
    """
    assert options.base_url is not None and options.model is not None
    name = options.api_key_env
    if name and not os.environ.get(name, "").strip():
        raise ConfigError(f"--api-key-env: the environment variable {name} is not set")
    client = ChatClient(
        ChatConfig(
            base_url=options.base_url,
            model=options.model,
            key_env=name or "",
            temperature=options.temperature,
            max_tokens=options.max_response_len,
            deadline_s=ANSWER_DEADLINE_S,
            attempt_s=ATTEMPT_S,
            concurrency=options.concurrency,
            read_price=options.read_price,
            write_price=options.write_price,
        ),
        boundary=Boundary.ENGINE,
        environ=os.environ,
    )
    player = EndpointPlayer(client, top_p=options.top_p)
    try:
        await player.check()
    except BoundaryError as error:
        await client.close()
        raise PreflightError(
            f"--base-url {options.base_url}, --model {options.model}: no answer: {error}"
        ) from None
    except BaseException:
        await client.close()
        raise
    return player


async def _reach_server(url: str) -> None:
    """Raises PreflightError if no connection can be made."""
    try:
        await reach(f"{url.rstrip('/')}/health")
    except HttpError as error:
        raise PreflightError(f"--sglang-url {url}: nobody answers: {error}") from None
