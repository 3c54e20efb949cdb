"""What slime's arguments say about an episode.

slime sets `args.turnwise` from the file of `--custom-config-path`: a dict with `method` and the
options of that method (see `turnwise.method`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.config import ConfigError
from turnwise.engine import SamplingParams
from turnwise.method import Method
from turnwise.method import make_method as make_by_name


@dataclass(frozen=True, slots=True)
class Settings:
    """`args.turnwise`, taken apart.

    Attributes:
        method: Name or import path.
        options: The method's.
    """

    method: str
    options: Mapping[str, Any]


def read_settings(args: Any) -> Settings:
    """
    Raises:
        ConfigError: `args.turnwise` is missing or wrong.
    """
    given = getattr(args, "turnwise", None)
    if not isinstance(given, Mapping) or not isinstance(given.get("method"), str):
        raise ConfigError(
            "args.turnwise must hold method and its options, "
            f"found {type(given).__name__}: give --custom-config-path a file with turnwise: "
            "{method: tau, ...}"
        )
    return Settings(given["method"], {key: given[key] for key in given if key != "method"})


def make_method(settings: Settings) -> Method[Any, Any]:
    """
    Raises:
        ConfigError: there is no such method, or its options are wrong.
    """
    try:
        return make_by_name(settings.method, settings.options)
    except ConfigError as error:
        raise ConfigError(f"turnwise.{error}") from None


def fans_out(args: Any, settings: Settings, method: Method[Any, Any]) -> bool:
    """Whether every episode of the run comes back as a list of samples.

    slime takes either one sample from each episode of a run or a list from each.

    Raises:
        ConfigError: with `--partial-rollout`, which keeps single samples alone, or `--group-rm`,
            which writes rewards into them.
    """
    on_rewrite = method.options.on_rewrite
    lists = method.fans_out or on_rewrite == "fork"
    several = (
        f"turnwise.method {settings.method} with turnwise.on_rewrite {on_rewrite} "
        "makes several of one episode"
    )
    if lists and getattr(args, "partial_rollout", False):
        raise ConfigError(
            f"--partial-rollout keeps unfinished groups as single samples, and {several}: leave "
            "--partial-rollout out"
        )
    if lists and getattr(args, "group_rm", False):
        raise ConfigError(
            f"--group-rm writes a reward into a single sample of each episode, and {several}: "
            "leave --group-rm out"
        )
    return lists


def read_sampling(params: Mapping[str, Any]) -> tuple[SamplingParams, dict[str, Any]]:
    """slime's sampling parameters, and what of them the engine passes on as it is.

    Raises:
        ConfigError: a value out of range.
    """
    rest = dict(params)
    rest.pop("sampling_seed", None)
    known: dict[str, Any] = {}
    for name in ("temperature", "top_p", "max_new_tokens"):
        value = rest.pop(name, None)
        if value is not None:
            known[name] = value
    top_k = rest.pop("top_k", None)
    known["top_k"] = max(0, top_k) if top_k is not None else 0
    known["stop_token_ids"] = tuple(rest.pop("stop_token_ids", None) or ())
    try:
        return SamplingParams(**known), rest
    except ValueError as error:
        raise ConfigError(f"sampling parameters: {error}") from None


def max_context_tokens(args: Any, *, evaluation: bool) -> int:
    """Tokens of prompt and response together, from the first of slime's flags that is given.

    Raises:
        ConfigError: none is.
    """
    names = ["rollout_max_context_len", "sglang_context_length", "max_position_embeddings"]
    if evaluation:
        names.insert(0, "eval_max_context_len")
    for name in names:
        value = getattr(args, name, None)
        if value is not None:
            return int(value)
    raise ConfigError("give --rollout-max-context-len, the tokens of prompt and response together")


def model_url(args: Any, name: str) -> str:
    """Where slime serves a model of `--sglang-config`, up to and with `/v1`.

    slime's own look-up takes the policy for a name that it does not know.

    Raises:
        ConfigError: there is no such model.
    """
    routers = getattr(args, "sglang_model_routers", None) or {}
    if name not in routers:
        there = ", ".join(routers) or "none"
        raise ConfigError(f"--sglang-config has no model {name!r}; there are {there}")
    host, port = routers[name]
    return f"http://{host}:{port}/v1"
