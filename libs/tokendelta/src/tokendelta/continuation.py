"""The text between the last sampled token of one turn and the first of the next.

A continuation holds, in this order: the terminator of the turn that was sampled (the first token,
if it is a stop token), the separator, the environment messages, and the generation prompt. Three
ways lead to it, the cheapest that the audit allows is taken:

1. literal: fixed text around the contents of the messages;
2. prefix:  a render after a fixed short conversation, cut behind its last sampled text;
3. full:    a render of the whole history, cut in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokendelta import probes
from tokendelta.audit import Findings, Rule, closing_length
from tokendelta.errors import TemplateError
from tokendelta.probes import EnvKind, TurnKind
from tokendelta.rendering import Message, Renderer, Tool

Way = Literal["literal", "prefix", "full"]


@dataclass(frozen=True, slots=True)
class Continuation:
    """The text after a sampled turn, and the way by which it was found."""

    text: str
    way: Way


def environment_kind(messages: Sequence[Message]) -> EnvKind:
    """user: one user message. tool: tool messages alone. mixed: everything else."""
    if len(messages) == 1 and messages[0]["role"] == "user":
        return "user"
    if all(message["role"] == "tool" for message in messages):
        return "tool"
    return "mixed"


class Continuations:
    """Continuations after sampled turns for one audited template."""

    __slots__ = ("_findings", "_renderer")

    def __init__(self, renderer: Renderer, findings: Findings) -> None:
        self._renderer = renderer
        self._findings = findings

    def rule(self, turn: TurnKind, env: EnvKind) -> Rule:
        return self._findings.rules[(turn, env)]

    def text(
        self,
        turn: TurnKind,
        history: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
    ) -> Continuation:
        """The continuation for environment messages after the history.

        Raises TemplateError if the template raises, or if no cut can be found in its render.
        """
        rule = self.rule(turn, environment_kind(messages))
        if rule.way == "literal" and rule.literal is not None:
            contents = [message.get("content") for message in messages]
            texts = [content for content in contents if isinstance(content, str)]
            if len(texts) == len(contents) and not self._findings.guarded(texts):
                return Continuation(rule.literal.join(texts), "literal")
        if rule.way != "full":
            text = self._after(self._prefix(rule, turn, history), messages, rule, tools)
            if text is not None:
                return Continuation(text, "prefix")
        text = self._after(self._marked(turn, history), messages, rule, tools)
        if text is None:
            raise TemplateError(
                "the template does not show the last assistant turn when the environment answers"
                f" it (roles: {[message['role'] for message in messages]})"
            )
        return Continuation(text, "full")

    def _prefix(
        self, rule: Rule, turn: TurnKind, history: Sequence[Message]
    ) -> list[dict[str, Any]]:
        prefix = list(probes.histories(turn)[rule.prefix])
        calls = history[-1].get("tool_calls") if history else None
        if calls:
            prefix[-1] = {**prefix[-1], "tool_calls": _marked_calls(calls)}
        return prefix

    def _marked(self, turn: TurnKind, history: Sequence[Message]) -> list[dict[str, Any]]:
        """The true history, with the mark as the last text of its last turn."""
        last = dict(history[-1])
        if last.get("tool_calls"):
            last["tool_calls"] = _marked_calls(last["tool_calls"])
        elif turn in ("call", "think_call"):
            last = probes.turn("call", probes.MARK)
        else:
            last["content"] = probes.MARK
        return [*map(dict, history[:-1]), last]

    def _after(
        self,
        history: list[dict[str, Any]],
        messages: Sequence[Message],
        rule: Rule,
        tools: Sequence[Tool] | None,
    ) -> str | None:
        text = self._renderer.render(
            [*history, *messages], tools=tools if rule.needs_tools else None, generation=True
        )
        at = text.rfind(probes.MARK)
        if at < 0:
            return None
        tail = text[at + len(probes.MARK) :]
        if not history[-1].get("tool_calls"):
            return tail
        closed = self._renderer.render(history, tools=tools if rule.needs_tools else None)
        closed_tail = closed[closed.rfind(probes.MARK) + len(probes.MARK) :]
        return tail[closing_length(closed_tail, tail, self._findings.stops) :]


def _marked_calls(calls: Sequence[Any]) -> list[dict[str, Any]]:
    """The calls with their names and ids, each with the mark as its one argument."""
    marked = []
    for call in calls:
        function = call.get("function", call)
        function = {**function, "arguments": {"key": probes.MARK}}
        marked.append({**call, "function": function} if "function" in call else function)
    return marked
