"""What all episodes of a process have in common: the audited template and the open method.

The template is audited once a process, in a thread. A method is made and opened once for each event
loop that plays episodes, for its connections belong to it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tokendelta
import toolparse

from turnwise.config import ConfigError
from turnwise.engine.http import HttpPool
from turnwise.method import Method, Services
from turnwise.policy import model_vocabulary
from turnwise.rounds import keep_what_is_loaded
from turnwise.slime.control import ClusterControl, close_controls, control_of
from turnwise.slime.files import files_of
from turnwise.slime.settings import Settings, fans_out, make_method, model_url, read_settings

DEFAULT_TOOL_FORMAT = "qwen25"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """For the episodes of an event loop.

    Attributes:
        settings: `args.turnwise`.
        profile: The audited template.
        tool_format: A name of `toolparse.formats()`.
        method: Plays the episodes; open.
        lists: Whether each comes back as a list of samples.
        pool: Connections to the router.
        control: Takes requests; None where the run folder is not on this node.
    """

    settings: Settings
    profile: tokendelta.Profile
    tool_format: str
    method: Method[Any, Any]
    lists: bool
    pool: HttpPool
    control: ClusterControl | None


@dataclass(slots=True)
class _OfLoop:
    """An event loop's methods, open or closed, and its connections."""

    methods: dict[str, Method[Any, Any]] = field(default_factory=dict)
    opened: dict[str, asyncio.Task[Shared]] = field(default_factory=dict)
    pool: HttpPool | None = None


_profiles: dict[str, tokendelta.Profile] = {}
_building = threading.Lock()
_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()


async def get_shared(args: Any) -> Shared:
    """What the episodes of this event loop have in common, made and opened by the first of them.

    Raises:
        ConfigError: the arguments can't be played.
        PreflightError: a service of the method does not answer.
    """
    settings = read_settings(args)
    key = _key(args)
    here = _loops.setdefault(asyncio.get_running_loop(), _OfLoop())
    task = here.opened.get(key)
    if task is None:
        task = here.opened[key] = asyncio.create_task(_open(here, key, args, settings))
    try:
        # An episode that is cancelled leaves it to the others.
        return await asyncio.shield(task)
    except BaseException:
        if task.done() and here.opened.get(key) is task and not _succeeded(task):
            del here.opened[key]
        raise


async def close_shared() -> None:
    """Closes this event loop's methods and connections. A later episode opens them again."""
    here = _loops.get(asyncio.get_running_loop())
    if here is None:
        return
    opened, here.opened = here.opened, {}
    for task in opened.values():
        await asyncio.wait([task])
    for method in here.methods.values():
        await method.close()
    close_controls()
    pool, here.pool = here.pool, None
    if pool is not None:
        await pool.close()


def find_method(args: Any) -> Method[Any, Any]:
    """The method of these arguments, the one that plays where there is one.

    Raises:
        ConfigError: there is none.
    """
    key = _key(args)
    for here in list(_loops.values()):
        if key in here.methods:
            return here.methods[key]
    return make_method(read_settings(args))


def find_tokenizer(args: Any) -> Any:
    """The tokenizer of the episodes that were played; None before the first."""
    profile = _profiles.get(_key(args))
    return None if profile is None else profile.tokenizer


def service_totals() -> dict[str, float]:
    """Numbers of the methods' services, totals since the process began."""
    return {
        name: value
        for here in list(_loops.values())
        for method in here.methods.values()
        for name, value in method.metrics().items()
    }


def _key(args: Any) -> str:
    switches = [getattr(args, name, False) for name in ("partial_rollout", "group_rm")]
    server_format = getattr(args, "sglang_tool_call_parser", None)
    given = [args.hf_checkpoint, _template_options(args), args.turnwise, switches, server_format]
    return json.dumps(given, sort_keys=True, default=str)


def _template_options(args: Any) -> dict[str, Any]:
    return dict(getattr(args, "apply_chat_template_kwargs", None) or {})


async def _open(here: _OfLoop, key: str, args: Any, settings: Settings) -> Shared:
    files_of(args)
    profile, method = await asyncio.to_thread(_make, args, key, settings, here.methods.get(key))
    lists = fans_out(args, settings, method)
    tool_format = _tool_format(args, method, profile)
    try:
        await method.open(Services(server=partial(model_url, args)))
    except BaseException:
        await method.close()
        raise
    here.methods[key] = method
    if here.pool is None:
        # slime bounds the episodes under way by its own semaphore.
        here.pool = HttpPool()
        keep_what_is_loaded()
    return Shared(settings, profile, tool_format, method, lists, here.pool, control_of(args))


def _make(
    args: Any, key: str, settings: Settings, known: Method[Any, Any] | None
) -> tuple[tokendelta.Profile, Method[Any, Any]]:
    with _building:
        method = known or make_method(settings)
        if key not in _profiles:
            _profiles[key] = tokendelta.Profile.from_tokenizer(
                _load_tokenizer(args.hf_checkpoint),
                tools=list(method.tools()),
                template_kwargs=_template_options(args),
                vocab_size=model_vocabulary(Path(args.hf_checkpoint)),
            )
        return _profiles[key], method


def _load_tokenizer(checkpoint: str) -> Any:
    # Its lazy modules can't be imported by two threads at once.
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False)
    except Exception as error:
        raise ConfigError(
            f"--hf-checkpoint {checkpoint}: its tokenizer can't be loaded (code that a checkpoint"
            f" brings along is never run): {type(error).__name__}: {error}"
        ) from None


def _tool_format(args: Any, method: Method[Any, Any], profile: tokendelta.Profile) -> str:
    """The method's option, else the server's parser, else what the template writes; said where it
    was not asked for."""
    given: str | None = method.options.tool_format
    if given is not None:
        return given
    server = getattr(args, "sglang_tool_call_parser", None)
    if server is not None:
        if server not in toolparse.formats():
            raise ConfigError(
                f"--sglang-tool-call-parser {server}: there is no such format here; name one of "
                f"{', '.join(toolparse.formats())} by turnwise.tool_format"
            )
        return str(server)
    tools = list(method.tools())
    found = toolparse.detect(_template(profile.tokenizer, tools))
    if found is not None:
        logger.info("tool calls are read as %s, found in the chat template", found)
        return found
    if tools:
        raise ConfigError(
            f"--hf-checkpoint {args.hf_checkpoint}: its chat template writes no tool calls that"
            " are known here; name their format by turnwise.tool_format"
        )
    logger.warning(
        "the chat template writes no tool calls that are known here; they are read as %s",
        DEFAULT_TOOL_FORMAT,
    )
    return DEFAULT_TOOL_FORMAT


def _template(tokenizer: Any, tools: list[Mapping[str, Any]]) -> str:
    find = getattr(tokenizer, "get_chat_template", None)
    if find is None:
        return str(tokenizer.chat_template or "")
    return str(find(tools=tools or None))


def _succeeded(task: asyncio.Task[Shared]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
