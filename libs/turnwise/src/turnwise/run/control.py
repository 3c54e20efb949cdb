"""Requests to a run under way, and what became of each: two files of the run folder.

`control.jsonl` holds what people ask, a line a request, appended by whoever asks on any machine.
`history.jsonl` holds what the run answers, appended by the run alone: `noted` where it is done
later, then `done` or `refused` with the reason. Both backends read the first every few seconds and
never wait for it. A run that goes on with `--resume` finds in its history what was changed, and
makes each change again after the step after which it was made.
"""

from __future__ import annotations

import getpass
import math
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from turnwise.config import ConfigError, nearest
from turnwise.inflight import REGISTRY, Registry
from turnwise.run.folder import flat
from turnwise.run.jsonl import append_rows, plain, read_lines

REQUESTS = "control.jsonl"
HISTORY = "history.jsonl"
MAX_TEXT = 200
"""Characters of a value or a task's name in a request."""

Command = Literal["pause", "resume", "stop", "eval", "save", "set", "drop", "stacks"]
Backend = Literal["local", "slime"]
Answer = Literal["noted", "done", "refused"]

SETTABLE: Mapping[Backend, Mapping[str, str]] = {
    "local": {
        "lr": "from the next step on",
        "rollout-temperature": "from the next step on",
        "concurrency": "from the next step on",
        "ROLE.spend-cap-usd": "at once; ROLE is user, judge, ... as status lists them",
    },
    "slime": {"ROLE.spend-cap-usd": "at once; ROLE is user, judge, ... as status lists them"},
}
"""What may be changed in a run under way, and when it takes effect."""
COMMANDS: Mapping[Backend, frozenset[Command]] = {
    "local": frozenset({"pause", "resume", "stop", "eval", "save", "set", "drop", "stacks"}),
    "slime": frozenset({"pause", "resume", "stop", "set", "drop", "stacks"}),
}
_REFUSED_BY_SLIME = {
    "eval": "slime's driver evaluates at --eval-interval alone, and no hook of ours runs in it",
    "save": "slime's driver saves at --save-interval alone, and no hook of ours runs in it",
    "lr": "Megatron's scheduler made its learning rates at the start, and no hook is given it",
    "rollout-temperature": (
        "the trainer's ranks divide their logits by the temperature that they were started with:"
        " samples of another would not match"
    ),
    "concurrency": "slime's semaphore was made at the start from --sglang-server-concurrency",
}
_REFUSED_KEYS = {
    "seed": "what was drawn was drawn with it",
    "num-rollout": "a run that goes on with --resume may be given another",
    "save-interval": "a run that goes on with --resume may be given another; save does it now",
    "eval-interval": "eval does it now",
}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A line of control.jsonl; `at` in seconds since 1970, `by` is who asked where."""

    id: str
    at: float
    command: Command
    arguments: dict[str, str] = {}
    by: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A line of history.jsonl: what became of a request, after `step` training steps."""

    request: str
    at: float
    step: int
    command: Command
    arguments: dict[str, str] = {}
    by: str = ""
    answer: Answer
    said: str = ""


def make_request(
    command: Command, arguments: Mapping[str, str] | None = None, *, by: str | None = None
) -> Request:
    """A request as of now; `by` is the user of this machine where it is None."""
    return Request(
        id=uuid.uuid4().hex[:12],
        at=time.time(),
        command=command,
        arguments=dict(arguments or {}),
        by=by if by is not None else _user(),
    )


def in_words(asked: Request | Outcome) -> str:
    """`set lr 0.001`."""
    return " ".join([asked.command, *(w for pair in asked.arguments.items() for w in pair if w)])


def check_request(
    request: Request, backend: Backend, config: Mapping[str, Any] | None = None
) -> None:
    """Refuses what such a run never does; the run itself looks at values.

    Args:
        config: What config.json holds, where that is all options: a key beyond it is none.

    Raises:
        ConfigError: saying why, and what it does.
    """
    if request.command not in COMMANDS[backend]:
        raise ConfigError(
            f"{request.command}: not in a run on {backend}: {_REFUSED_BY_SLIME[request.command]};"
            f" {_what_can(backend)}"
        )
    for key, value in request.arguments.items():
        if len(key) > MAX_TEXT or len(value) > MAX_TEXT:
            raise ConfigError(f"{key[:40]}: a request holds {MAX_TEXT} characters a value at most")
        if request.command == "set":
            check_key(key, backend, config)
    expected = {"set": "KEY=VALUE", "drop": "the task"}.get(request.command)
    if expected and not request.arguments:
        raise ConfigError(f"{request.command}: name {expected}")


def check_key(key: str, backend: Backend, config: Mapping[str, Any] | None = None) -> None:
    """Raises ConfigError where such a run can't change `key`: why, and which it can."""
    name = key.replace("_", "-")
    if name in SETTABLE[backend] or (name.endswith(".spend-cap-usd") and name.count(".") == 1):
        return
    why = _REFUSED_KEYS.get(name)
    if backend == "slime":
        why = _REFUSED_BY_SLIME.get(name, why)
    if why is None and config is not None and name not in _option_names(config):
        raise ConfigError(f"set: unknown option {key!r}; {nearest(name, list(SETTABLE[backend]))}")
    if why is None:
        why = f"it is read once, at the start; {nearest(name, list(SETTABLE[backend]))}"
    raise ConfigError(
        f"{key}: can't be changed in a run under way on {backend}: {why}; {_what_can(backend)}"
    )


def _option_names(config: Mapping[str, Any]) -> set[str]:
    """As the command line has them, those of a section with and without its name."""
    names = set(config)
    for section, value in config.items():
        places = flat(value) if isinstance(value, Mapping) else ()
        names |= {name for place in places for name in (place, f"{section}.{place}")}
    return {name.replace("_", "-") for name in names}


def number_above_0(key: str, text: str) -> float:
    """
    Raises:
        ConfigError: naming the key and what was found.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{key}: expected a number above 0, found {text!r}")
    return value


def set_spend_cap(key: str, text: str, registry: Registry = REGISTRY) -> str:
    """Sets the cap of the models in a role, `user.spend-cap-usd`; says what was set.

    Raises:
        ConfigError: there is no such role, or no such number.
    """
    role, _, _ = key.partition(".")
    value = number_above_0(key, text)
    services = [one for one in registry.services() if one.spend is not None]
    found = [one.spend for one in services if one.role == role]
    if not found:
        roles = ", ".join(sorted({one.role for one in services})) or "none"
        raise ConfigError(f"{key}: no model that costs anything is a {role}; there are: {roles}")
    for spend in found:
        assert spend is not None
        spend.cap_usd = value
    return f"{key} {value:g}, {len(found)} model(s)"


def ask(run_dir: Path, request: Request) -> None:
    """Appends a request for the run to find.

    Raises:
        RunError: it can't be written.
    """
    append_rows(run_dir / REQUESTS, [plain(msgspec.to_builtins(request))], sync=True)


def read_history(run_dir: Path) -> list[Outcome]:
    """What became of requests so far, in order; lines that are none are left out."""
    return _read(run_dir / HISTORY, Outcome)


def unanswered(run_dir: Path) -> list[Request]:
    """Requests that the run has said nothing to yet."""
    known = {one.request for one in read_history(run_dir)}
    return [one for one in _read(run_dir / REQUESTS, Request) if one.id not in known]


class Inbox:
    """The requests of a run folder as the run takes them.

    Attributes:
        history: What the run has answered, earlier processes of it included.
    """

    def __init__(self, run_dir: Path) -> None:
        self._requests, self._history = run_dir / REQUESTS, run_dir / HISTORY
        self.history = read_history(run_dir)
        self._known = {one.request for one in self.history if one.answer != "noted"}
        self._size = -1

    def new(self) -> list[Request]:
        """Requests that have come since; a run that begins gets those without an end as well."""
        try:
            size = os.stat(self._requests).st_size
        except OSError:
            return []
        if size == self._size:
            return []
        self._size = size
        found = [one for one in _read(self._requests, Request) if one.id not in self._known]
        self._known.update(one.id for one in found)
        return found

    def answer(self, request: Request, answer: Answer, said: str = "", *, step: int) -> None:
        """Writes what becomes of a request.

        Raises:
            RunError: it can't be written.
        """
        self.history.append(_write(self._history, request, answer, said, step))


def record_outcome(run_dir: Path, request: Request, answer: Answer, said: str) -> None:
    """Writes what became of a request that the run itself was not needed for, the end of its job.

    Raises:
        RunError: it can't be written.
    """
    known = read_history(run_dir)
    _write(run_dir / HISTORY, request, answer, said, known[-1].step if known else 0)


def _write(path: Path, request: Request, answer: Answer, said: str, step: int) -> Outcome:
    outcome = Outcome(
        request=request.id,
        at=time.time(),
        step=step,
        command=request.command,
        arguments=request.arguments,
        by=request.by,
        answer=answer,
        said=said,
    )
    append_rows(path, [plain(msgspec.to_builtins(outcome))], sync=True)
    return outcome


def changes(history: Sequence[Outcome]) -> list[Outcome]:
    """Of a history what a run that goes on has to do again: settings and dropped tasks.

    A run that went back to an earlier checkpoint and was then set otherwise has written that later,
    with an earlier step: it goes before what was set after that step before.
    """
    kept: list[Outcome] = []
    for one in history:
        if one.answer != "done" or one.command not in ("set", "drop"):
            continue
        kept = [
            old
            for old in kept
            if old.step < one.step or one.arguments.keys().isdisjoint(old.arguments)
        ]
        kept.append(one)
    return kept


def _read(path: Path, kind: type[Any]) -> list[Any]:
    decode = msgspec.json.Decoder(kind).decode
    found = []
    for line in read_lines(path):
        try:
            found.append(decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # Of a newer product, or written by hand: no line of it holds up a run.
            continue
    return found


def _what_can(backend: Backend) -> str:
    keys = ", ".join(SETTABLE[backend])
    return f"{', '.join(sorted(COMMANDS[backend]))} can be asked for, and set {keys}"


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name} on {socket.gethostname()}"
