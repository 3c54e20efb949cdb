"""What the page shows of a run under way, and what it may ask of it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from turnwise.config import ConfigError
from turnwise.run.control import (
    COMMANDS,
    SETTABLE,
    Command,
    in_words,
    make_request,
    read_history,
    unanswered,
)
from turnwise.run.status import is_alive, read_status
from turnwise.runs import told
from turnwise.runs.asking import backend_of, send, stop_job

TOKEN_HEADER = "X-Turnwise-Token"
"""Carries the token of a request. A page of another site can't send it: a browser asks the server
first whether it may, which this one never allows."""


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page sends."""

    command: Command
    arguments: dict[str, str] = {}


def status_shown(run_dir: Path, *, allowed: bool) -> dict[str, Any]:
    """The status as the page shows it.

    Args:
        allowed: Whether the server takes requests at all.
    """
    backend = backend_of(run_dir)
    try:
        status = read_status(run_dir)
    except ConfigError:
        status = None
    alive = status is not None and is_alive(status)
    asked = status is not None and status.backend != "evaluation"
    tables = told.tables(status) if status is not None and alive else []
    outcomes = read_history(run_dir)
    waiting = [in_words(one) for one in unanswered(run_dir)] if alive else []
    past = told.history(outcomes[-told.MAX_HISTORY :])
    return {
        "alive": alive,
        "state": status.state if status is not None else "",
        "headline": "" if status is None else told.headline(status),
        "warnings": told.warnings(status) if status is not None and alive else [],
        "tables": [*([past] if outcomes else []), *tables],
        "waiting": waiting,
        "commands": sorted(COMMANDS[backend]) if allowed and alive and asked else [],
        "keys": list(SETTABLE[backend]),
    }


def take(run_dir: Path, body: bytes, by: str) -> dict[str, Any]:
    """Puts what the page asks for to the run.

    Raises:
        ConfigError: it is no request, or the run does not take it.
        RunError: it can't be written.
    """
    try:
        asked = msgspec.json.decode(body, type=Asked)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"the request can't be read: {error}") from None
    request = make_request(asked.command, asked.arguments, by=by)
    if asked.command == "stop" and backend_of(run_dir) == "slime":
        stop_job(run_dir, request)
    else:
        send(run_dir, request)
    return {"request": request.id}


def is_allowed(headers: Mapping[str, str], token: str | None) -> bool:
    """Whether a request carries the token of this server, which takes some."""
    given = headers.get(TOKEN_HEADER, "")
    return token is not None and hmac.compare_digest(given.encode(), token.encode())
