"""Faults: an engine or an endpoint that misbehaves towards one episode of several.

    server.misbehave = meet(fault, lambda call: call.session == "session-3")

Each row of the tables says what goes wrong and how the episode that meets it must end; all others
must end as if nothing had happened. A method is put into them by playing several episodes at once
against `FakeSGLang` and, where it asks one, `FakeChat`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from turnwise.testing.servers import (
    Call,
    Misbehaviour,
    body,
    cut,
    disconnect,
    edit,
    hang,
    hang_in_body,
    status,
)

ENGINE, DONE = "lost:engine", "finished"
SHORT_S = 1.0
"""A deadline that a server is made to miss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong for one episode.

    Attributes:
        name: For people.
        what: Makes the misbehaviour.
        ends: How the episode ends: `Ending.label`.
        turn: The request of the episode's that meets it, from 0.
        times: How many of its requests meet it from then on.
        deadline_s: For each answer of the engine and of an endpoint.
        error: What the ending's error must contain.
    """

    name: str
    what: Callable[[], Misbehaviour]
    ends: str
    turn: int = 1
    times: int = 1000
    deadline_s: float = 60.0
    error: str = ""

    def at(self, number: int) -> bool:
        return self.turn <= number < self.turn + self.times


def meet(
    fault: Fault | None, concerns: Callable[[Call], bool]
) -> Callable[[Call], Misbehaviour | None]:
    """For a server's `misbehave`: the fault, for the requests of the episode that it concerns."""
    met = [0]

    def misbehave(call: Call) -> Misbehaviour | None:
        if fault is None or not concerns(call):
            return None
        number, met[0] = met[0], met[0] + 1
        return fault.what() if fault.at(number) else None

    return misbehave


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Asserts that the block leaves no task, file or socket, not even to the collector."""
    tasks = asyncio.all_tasks()
    files = _open_files()
    yield
    left = asyncio.all_tasks() - tasks
    assert not left, f"tasks left: {left}"
    more = _open_files() - files
    assert not more, f"files left: {more}"


def meta(name: str, value: Any) -> Misbehaviour:
    """The engine's answer with another `meta_info` entry; `...` takes it out."""

    def change(answer: dict[str, Any]) -> None:
        if value is ...:
            del answer["meta_info"][name]
        else:
            answer["meta_info"][name] = value

    return edit(change)


def entry(value: Any) -> Misbehaviour:
    """The engine's answer with another second token."""
    return edit(lambda answer: answer["meta_info"]["output_token_logprobs"].__setitem__(1, value))


def unfinished(count: int) -> Misbehaviour:
    """The first tokens of the right turn, given back by an abort."""

    def change(answer: dict[str, Any]) -> None:
        found = answer["meta_info"]
        found["output_token_logprobs"] = found["output_token_logprobs"][:count]
        found["completion_tokens"] = count
        found["finish_reason"] = {"type": "abort", "message": "aborted"}

    return edit(change)


def top_p(offsets: list[int], ids: Sequence[int] = (7,)) -> Misbehaviour:
    """The engine's answer with these top-p spans."""
    return edit(
        lambda answer: answer["meta_info"].update(
            top_p_token_ids=list(ids), top_p_token_offsets=offsets
        )
    )


def content(value: Any) -> Misbehaviour:
    """The endpoint's answer with other words."""
    return edit(lambda answer: answer["choices"][0]["message"].__setitem__("content", value))


ENGINE_FAULTS: list[Fault] = [
    Fault(name="503 once", what=lambda: status(503), times=1, ends=DONE),
    Fault(name="503 three times", what=lambda: status(503), times=3, ends=DONE),
    Fault(name="503 for ever", what=lambda: status(503), ends=ENGINE, error="HTTP 503"),
    Fault(name="503 at the first turn", what=lambda: status(503), turn=0, ends=ENGINE),
    Fault(name="500 once", what=lambda: status(500, "boom"), times=1, ends=DONE),
    Fault(name="500 for ever", what=lambda: status(500, "boom"), ends=ENGINE, error="boom"),
    Fault(name="502 once", what=lambda: status(502), times=1, ends=DONE),
    Fault(name="504 for ever", what=lambda: status(504), ends=ENGINE, error="HTTP 504"),
    Fault(name="408 once", what=lambda: status(408), times=1, ends=DONE),
    Fault(name="429 once", what=lambda: status(429, Retry_After="0"), times=1, ends=DONE),
    Fault(name="429, back in an hour", what=lambda: status(429, Retry_After="3600"), ends=ENGINE),
    Fault(name="400", what=lambda: status(400, "too long"), ends=ENGINE, error="too long"),
    Fault(name="401", what=lambda: status(401), ends=ENGINE, error="HTTP 401"),
    Fault(name="404", what=lambda: status(404), ends=ENGINE, error="HTTP 404"),
    Fault(name="redirect", what=lambda: status(302, Location="/"), ends=ENGINE, error="HTTP 302"),
    Fault(name="no content", what=lambda: status(204), ends=ENGINE, error="no JSON"),
    Fault(name="disconnects once", what=disconnect, times=1, ends=DONE),
    Fault(name="disconnects for ever", what=disconnect, ends=ENGINE, error="Disconnected"),
    Fault(name="resets once", what=lambda: disconnect(reset=True), times=1, ends=DONE),
    Fault(name="resets for ever", what=lambda: disconnect(reset=True), ends=ENGINE),
    Fault(name="cut once", what=cut, times=1, ends=DONE),
    Fault(name="cut for ever", what=cut, ends=ENGINE, error="Payload"),
    Fault(name="no headers", what=hang, ends=ENGINE, deadline_s=SHORT_S, error="deadline"),
    Fault(name="no body", what=hang_in_body, ends=ENGINE, deadline_s=SHORT_S, error="deadline"),
    Fault(name="HTML", what=lambda: body(b"<html>", "text/html"), ends=ENGINE, error="no JSON"),
    Fault(name="plain text", what=lambda: body(b"ok", "text/plain"), ends=ENGINE, error="no JSON"),
    Fault(name="half a JSON", what=lambda: body(b'{"meta_info": {'), ends=ENGINE, error="no JSON"),
    Fault(name="empty body", what=lambda: body(b""), ends=ENGINE, error="no JSON"),
    Fault(name="no UTF-8", what=lambda: body(b'{"a": "\xff"}'), ends=ENGINE, error="no JSON"),
    Fault(name="NaN", what=lambda: body(b'{"meta_info": NaN}'), ends=ENGINE, error="no JSON"),
    Fault(name="deep", what=lambda: body(b"[" * 200_000), ends=ENGINE, error="no JSON"),
    Fault(name="a list", what=lambda: body(b"[1]"), ends=ENGINE, error="no meta_info"),
    Fault(name="an error object", what=lambda: body(b'{"error": "x"}'), ends=ENGINE),
    Fault(name="no finish", what=lambda: meta("finish_reason", ...), ends=ENGINE),
    Fault(name="null finish", what=lambda: meta("finish_reason", None), ends=ENGINE),
    Fault(name="odd finish", what=lambda: meta("finish_reason", {"type": "tired"}), ends=ENGINE),
    Fault(
        name="failed abort",
        what=lambda: meta("finish_reason", {"type": "abort", "status_code": 500}),
        ends=ENGINE,
        error="the request failed",
    ),
    Fault(name="abort", what=lambda: unfinished(3), ends="cancelled"),
    Fault(name="abort before the first token", what=lambda: unfinished(0), ends="cancelled"),
    Fault(name="another prompt", what=lambda: meta("prompt_tokens", 7), ends=ENGINE),
    Fault(name="another count", what=lambda: meta("completion_tokens", 1), ends=ENGINE),
    Fault(name="no log-probs", what=lambda: meta("output_token_logprobs", ...), ends=ENGINE),
    Fault(name="no tokens", what=lambda: meta("output_token_logprobs", []), ends=ENGINE),
    Fault(name="null log-prob", what=lambda: entry([None, 9, None]), ends=ENGINE),
    Fault(name="positive log-prob", what=lambda: entry([0.7, 9, None]), ends=ENGINE),
    Fault(name="log-prob as text", what=lambda: entry(["-1", 9, None]), ends=ENGINE),
    Fault(name="negative id", what=lambda: entry([-1.0, -9, None]), ends=ENGINE),
    Fault(name="id as text", what=lambda: entry([-1.0, "9", None]), ends=ENGINE),
    Fault(name="id beyond the vocabulary", what=lambda: entry([-1.0, 70_000, None]), ends=ENGINE),
    Fault(name="short entry", what=lambda: entry([-1.0]), ends=ENGINE),
    Fault(
        name="more than asked for",
        what=lambda: edit(
            lambda answer: answer["meta_info"].update(
                output_token_logprobs=[[-1.0, 9, None]] * 1025, completion_tokens=1025
            )
        ),
        ends=ENGINE,
        error="1025 tokens where 1024",
    ),
    Fault(
        name="weights updated between turns",
        what=lambda: meta("weight_version", "2"),
        times=1,
        ends=DONE,
    ),
    Fault(name="no cache figure", what=lambda: meta("cached_tokens", None), ends=DONE),
]

BESIDE_FAULTS: list[Fault] = [
    Fault(name="top-p of fewer tokens", what=lambda: top_p([0, 1]), ends=ENGINE, error="top-p"),
    Fault(name="top-p without ids", what=lambda: top_p([0, 5], ids=()), ends=ENGINE),
    Fault(name="top-p as no base64", what=lambda: meta("top_p_token_ids", "!"), ends=ENGINE),
    Fault(name="experts of fewer rows", what=lambda: meta("routed_experts", [1]), ends=ENGINE),
    Fault(name="cached tokens as text", what=lambda: meta("cached_tokens", "9"), ends=ENGINE),
]
"""What the engine says beside the tokens, where slime asks for it."""


def chat_faults(lost: str) -> list[Fault]:
    """What an OpenAI-compatible endpoint can do to the episodes that ask it.

    Args:
        lost: How an episode ends that has no answer: `lost:user`.
    """
    return [
        Fault(name="429 once", what=lambda: status(429), times=1, ends=DONE),
        Fault(name="429 with Retry-After", what=lambda: status(429, Retry_After="0"), ends=lost),
        Fault(name="429 at the opening", what=lambda: status(429), turn=0, ends=lost),
        Fault(name="500 once", what=lambda: status(500), times=1, ends=DONE),
        Fault(name="500 for ever", what=lambda: status(500), ends=lost, error="HTTP 500"),
        Fault(name="401", what=lambda: status(401, "no key"), ends=lost, error="no key"),
        Fault(name="disconnects once", what=disconnect, times=1, ends=DONE),
        Fault(name="disconnects for ever", what=disconnect, ends=lost),
        Fault(name="cut for ever", what=cut, ends=lost),
        Fault(name="no headers", what=hang, ends=lost, deadline_s=SHORT_S, error="deadline"),
        Fault(
            name="no opening", what=hang, turn=0, ends=lost, deadline_s=SHORT_S, error="deadline"
        ),
        Fault(name="no body", what=hang_in_body, ends=lost, deadline_s=SHORT_S, error="deadline"),
        Fault(name="HTML", what=lambda: body(b"<html>", "text/html"), ends=lost),
        Fault(name="half a JSON", what=lambda: body(b'{"choices": ['), ends=lost),
        Fault(name="empty body", what=lambda: body(b""), ends=lost),
        Fault(name="no choices", what=lambda: body(b'{"choices": []}'), ends=lost),
        Fault(name="an error object", what=lambda: body(b'{"error": {}}'), ends=lost),
        Fault(name="null content", what=lambda: content(None), ends=lost),
        Fault(name="empty content", what=lambda: content(""), ends=lost),
        Fault(name="blank content", what=lambda: content(" \n"), ends=lost),
        Fault(name="empty opening", what=lambda: content(""), turn=0, ends=lost),
        Fault(name="content as parts", what=lambda: content([{"type": "text"}]), ends=lost),
        Fault(name="lone surrogate", what=lambda: content("Yes \ud800"), ends=lost),
        Fault(name="special tokens", what=lambda: content("Yes<|im_end|>"), times=1, ends=DONE),
        Fault(
            name="control characters", what=lambda: content("Yes\x00\x1b[2J"), times=1, ends=DONE
        ),
        Fault(name="marker in other words", what=lambda: content("###STOP"), times=1, ends=DONE),
    ]


def _open_files() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return found
