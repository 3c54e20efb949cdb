"""The policy that the options name, and the look at it before anything is played."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.engine import Completion, Engine, SamplingParams, takes_grammar
from turnwise.engine.http import HttpError, reach
from turnwise.engine.sglang import SGLangEngine
from turnwise.episode import Boundary, BoundaryError
from turnwise.evaluation.benchmark import SHIPPED, AnyMethod
from turnwise.evaluation.options import SharedOptions
from turnwise.local.threads import choose_threads, set_threads
from turnwise.method import method_name
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.policy import AnyPolicy, EndpointPolicy, Policy, model_vocabulary

if TYPE_CHECKING:
    from turnwise.local.policy import LoadedPolicy

ANSWER_DEADLINE_S = 1800.0
"""For one turn of an endpoint or a server with every repeat; the method's own may be less."""
ATTEMPT_S = 900.0
"""For one request to an endpoint."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read of a checkpoint: the weights with their tokenizer, or the tokenizer alone.

    Attributes:
        weights: None where an SGLang server has them.
        tokenizer: With a chat template.
        context: Most tokens of a conversation.
        vocabulary: Of the model, which may be padded; None where it is not known.
        name: Of the checkpoint, for errors.
    """

    weights: LoadedPolicy | None
    tokenizer: Any
    context: int
    vocabulary: int | None = None
    name: str = ""


def load(options: SharedOptions, method: AnyMethod) -> Loaded | None:
    """Reads the checkpoint; None for an endpoint, which has none here.

    Raises:
        ConfigError: it can't be a policy, or not on this device.
    """
    if options.base_url is not None:
        return None
    name = str(options.hf_checkpoint)
    if name == SHIPPED:
        shipped = type(method).shipped
        if shipped is None:
            raise ConfigError(
                f"--hf-checkpoint: {method_name(type(method))} ships no policy; name a folder"
            )
        name = str(shipped)
    if options.sglang_url is not None:
        return _tokenizer(options, name, bool(method.tools()))
    # Imported here, for --help and for endpoints torch is not needed.
    from turnwise.local.policy import load_policy

    _check_device(options.device)
    loaded = load_policy(name, device=options.device, require_tools=bool(method.tools()))
    set_threads(options.threads or choose_threads(loaded.model).threads)
    config = loaded.model.config
    context = _context(options, getattr(config, "max_position_embeddings", None))
    return Loaded(loaded, loaded.tokenizer, context, config.vocab_size, name)


def make_policy(options: SharedOptions, method: AnyMethod, loaded: Loaded | None) -> AnyPolicy:
    """The policy, ready to be asked; used from the event loop that it is made in.

    Raises:
        ConfigError: the key's variable is not set, or no tool format is known.
    """
    if loaded is None:
        return EndpointPolicy(client=_client(options), top_p=options.top_p)
    from turnwise.local.experiment import tool_format
    from turnwise.local.policy import audited

    found = tool_format(method, loaded.tokenizer)
    return Policy(
        engine=_engine(options, loaded),
        profile=audited(loaded.name, loaded.tokenizer, method.tools(), loaded.vocabulary),
        max_context_tokens=loaded.context,
        tool_format=found,
        sampling=SamplingParams(
            temperature=options.temperature,
            top_p=options.top_p,
            max_new_tokens=options.max_response_len,
        ),
        on_rewrite=method.options.on_rewrite,
    )


async def ask_policy(options: SharedOptions, method: AnyMethod, policy: AnyPolicy) -> None:
    """Asks whether the endpoint or server is there, and the endpoint whether it takes the tools.

    Raises:
        PreflightError: naming the URL and what was found.
    """
    if isinstance(policy, EndpointPolicy):
        nucleus = {"top_p": policy.top_p} if policy.top_p < 1 else {}
        try:
            await policy.client.check(tools=method.tools(), extra={"seed": 0, **nucleus})
        except BoundaryError as error:
            raise PreflightError(
                f"--base-url {options.base_url}, --model {options.model}: no answer: {error}"
            ) from None
    elif options.sglang_url is not None:
        try:
            await reach(f"{options.sglang_url.rstrip('/')}/health")
        except HttpError as error:
            raise PreflightError(
                f"--sglang-url {options.sglang_url}: nobody answers: {error}"
            ) from None


async def close_policy(policy: AnyPolicy) -> None:
    """Frees what it holds."""
    await (policy.client if isinstance(policy, EndpointPolicy) else policy.engine).close()


class WatchedEngine:
    """The policy's engine in one episode, which notes how it is sampled.

    A method's helpers may share the engine: what has another session passes through.

    Attributes:
        wrong: The first request of the episode with another temperature, top-p or length than the
            policy's.
    """

    def __init__(self, engine: Engine, sampling: SamplingParams, session: str) -> None:
        self._engine, self._sampling, self._session = engine, sampling, session
        self.wrong: SamplingParams | None = None

    @property
    def takes_grammar(self) -> bool:
        """As of the engine."""
        return takes_grammar(self._engine)

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        """See `Engine`."""
        asked = self._sampling
        own = session_id == self._session or session_id.startswith(f"{self._session}/")
        same = (params.temperature, params.top_p) == (asked.temperature, asked.top_p)
        if own and not (same and params.max_new_tokens <= asked.max_new_tokens):
            self.wrong = self.wrong or params
        return await self._engine.generate(prompt_ids, params, session_id=session_id)

    async def release(self, session_id: str) -> None:
        """See `Engine`."""
        await self._engine.release(session_id)

    async def close(self) -> None:
        """The engine is closed by its owner."""

    def check(self, method: str) -> None:
        """Raises ConfigError if the policy was sampled otherwise than asked."""
        found, asked = self.wrong, self._sampling
        if found is not None:
            raise ConfigError(
                f"--method {method}: the policy was sampled with temperature"
                f" {found.temperature:g}, top-p {found.top_p:g} and {found.max_new_tokens} tokens,"
                f" asked for were {asked.temperature:g}, {asked.top_p:g} and at most"
                f" {asked.max_new_tokens}: its scores could not be compared with another run's"
            )


def watched(policy: AnyPolicy, session: str) -> tuple[AnyPolicy, WatchedEngine | None]:
    """The policy of one episode; an endpoint is sampled as its client is set."""
    if isinstance(policy, EndpointPolicy):
        return policy, None
    engine = WatchedEngine(policy.engine, policy.sampling, session)
    return replace(policy, engine=engine), engine


def _engine(options: SharedOptions, loaded: Loaded) -> Engine:
    if loaded.weights is None:
        return SGLangEngine(
            str(options.sglang_url),
            deadline_s=ANSWER_DEADLINE_S,
            send_seed=True,
            max_context_tokens=loaded.context,
        )
    from turnwise.engine.torch_engine import TorchEngine

    return TorchEngine(loaded.weights.model, rows=options.engine_rows, context=loaded.context)


def _tokenizer(options: SharedOptions, name: str, require_tools: bool) -> Loaded:
    from turnwise.local.policy import check_template, load_tokenizer
    from turnwise.local.policy_files import ModelConfig, read_typed

    tokenizer = load_tokenizer(name)
    check_template(tokenizer, name, require_tools=require_tools)
    positions = read_typed(Path(name) / "config.json", ModelConfig).max_position_embeddings
    context = _context(options, positions)
    return Loaded(None, tokenizer, context, model_vocabulary(Path(name)), name)


def _check_device(device: str) -> None:
    import torch

    if device == "cpu":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError(f"--device {device}: this torch finds no GPU")
    number = int(device.partition(":")[2] or 0)
    if number >= count:
        raise ConfigError(f"--device {device}: there are cuda:0 to cuda:{count - 1}")


def _context(options: SharedOptions, positions: int | None) -> int:
    asked = options.max_context_len
    if positions is None and asked is None:
        raise ConfigError(
            "--max-context-len: the checkpoint's config.json has no max_position_embeddings; say"
            " how many tokens a conversation may have"
        )
    if asked is not None and positions is not None and asked > positions:
        raise ConfigError(f"--max-context-len {asked}: the policy has {positions} positions")
    return asked or positions or 0


def _client(options: SharedOptions) -> ChatClient:
    assert options.base_url is not None and options.model is not None
    name = options.api_key_env or ""
    if name and not os.environ.get(name, "").strip():
        raise ConfigError(f"--api-key-env: the environment variable {name} is not set")
    return ChatClient(
        ChatConfig(
            base_url=options.base_url,
            model=options.model,
            key_env=name,
            temperature=options.temperature,
            max_tokens=options.max_response_len,
            deadline_s=ANSWER_DEADLINE_S,
            attempt_s=ATTEMPT_S,
            patience_s=options.patience_s,
            concurrency=options.concurrency,
            read_price=options.read_price,
            write_price=options.write_price,
        ),
        boundary=Boundary.ENGINE,
        environ=os.environ,
    )
