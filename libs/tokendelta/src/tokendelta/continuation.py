"""The ids between the last sampled token of one turn and the first of the next.

A continuation holds, in this order: the terminator of the turn that was sampled (its first token,
if it is a stop token), the separator, the environment messages, and the generation prompt. Three
ways lead to it; the cheapest that the audit allows is taken:

1. literal: fixed ids around the encoded contents of the messages;
2. prefix:  a render after a fixed short conversation, cut behind its last sampled text;
3. full:    a render of the whole history, cut in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokendelta import probes
from tokendelta.encoding import Encoder, SpecialTokens
from tokendelta.errors import TemplateError
from tokendelta.findings import Findings, Rule
from tokendelta.literal_ids import LiteralIds
from tokendelta.prober import Place, cut, rewritten_place
from tokendelta.probes import CALL_KINDS, MARK, EnvKind, Messages, TurnKind
from tokendelta.rendering import Message, Renderer, Tool

# Gives the messages up to and including the sampled turn. Called only where they are needed, as
# decoding a turn costs more than a literal continuation.
HistorySource = Callable[[], Messages]


def environment_kind(messages: Sequence[Message]) -> EnvKind:
    """user: one user message. tool: tool messages alone. mixed: everything else."""
    if len(messages) == 1 and messages[0]["role"] == "user":
        return "user"
    for message in messages:
        if message["role"] != "tool":
            return "mixed"
    return "tool"


def contents(messages: Sequence[Message]) -> list[str] | None:
    """The contents of the messages if all of them are text."""
    texts = []
    for message in messages:
        content = message.get("content")
        if type(content) is not str:
            return None
        texts.append(content)
    return texts


class Continuations:
    """Continuations after sampled turns for one audited template."""

    __slots__ = ("_encoder", "_findings", "_literal", "_renderer")

    def __init__(
        self, renderer: Renderer, findings: Findings, encoder: Encoder, specials: SpecialTokens
    ) -> None:
        self._renderer = renderer
        self._findings = findings
        self._encoder = encoder
        made: dict[Any, LiteralIds] = {}
        self._literal: dict[tuple[TurnKind, EnvKind], LiteralIds] = {}
        for key, rule in findings.rules.items():
            if rule.literals is not None:
                if rule.literals not in made:
                    made[rule.literals] = LiteralIds(rule.literals, encoder, specials)
                self._literal[key] = made[rule.literals]

    def literal(self, turn: TurnKind, env: EnvKind) -> LiteralIds | None:
        return self._literal.get((turn, env))

    def ids(
        self,
        turn: TurnKind,
        history: HistorySource,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        *,
        broken: bool = False,
        frozen: bool = False,
    ) -> list[int]:
        """The continuation for environment messages after the history.

        `broken` says that contents may hold breaks inside of what spells a special token. `frozen`
        says that what the template moves to a new place stays where it was first. Raises
        TemplateError if the template raises, or if no cut can be found in its render.
        """
        env = environment_kind(messages)
        literal = self._literal.get((turn, env))
        if literal is not None:
            texts = contents(messages)
            if texts is not None and not self._findings.guarded(texts):
                if not broken:
                    return literal.encode(texts)
                return self._encoder.encode_broken(literal.text(texts), inside=True)
        text = self._frozen(turn, messages) if frozen else None
        if text is None:
            text = self.text(turn, history, messages, tools)
        if broken:
            return self._encoder.encode_broken(text, inside=True)
        return self._encoder.encode_inside(text)

    def text(
        self,
        turn: TurnKind,
        history: HistorySource,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
    ) -> str:
        """The continuation as the template renders it."""
        rule = self._findings.rules[(turn, environment_kind(messages))]
        if rule.way != "full":
            text = self._after(self._prefix(rule, turn, history, messages), messages, rule, tools)
            if text is not None:
                return text
        text = self._after(
            marked(history(), turn, self._findings.shows_calls), messages, rule, tools
        )
        if text is None:
            raise TemplateError(
                "the template does not show the last assistant turn when the environment answers"
                f" it (roles: {[message['role'] for message in messages]})"
            )
        return text

    def _frozen(self, turn: TurnKind, messages: Sequence[Message]) -> str | None:
        """The continuation where there is neither a system prompt nor a tool list to move."""
        findings = self._findings
        rule = findings.rules[(turn, environment_kind(messages))]
        if not rule.moves:
            return None
        first = probes.histories(turn, findings.reasoning_field, findings.shows_calls)[0]
        try:
            return self._after(first.messages, messages, rule, None)
        except TemplateError:
            return None

    def rewritten(
        self,
        turn: TurnKind,
        history: Messages,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
    ) -> Place | None:
        """What the template rewrites of this history when the environment answers, by rendering.

        Raises TemplateError if the template does not render the conversation.
        """
        shown = marked(history, turn, self._findings.shows_calls)
        prompt = self._renderer.render(history[:-1], tools=tools, generation=True)
        previous = self._renderer.render(history[:-1], tools=tools)
        closed = self._renderer.render(shown, tools=tools)
        after = self._renderer.render([*shown, *messages], tools=tools, generation=True)
        at = cut(closed, after, bool(shown[-1].get("tool_calls")), self._findings.stops)
        if at is None:
            return "turn"
        close = self._findings.reasoning_close
        return rewritten_place(previous, prompt, closed, after, at, turn, close)

    def _prefix(
        self, rule: Rule, turn: TurnKind, history: HistorySource, messages: Sequence[Message]
    ) -> Messages:
        findings = self._findings
        found = probes.histories(turn, findings.reasoning_field, findings.shows_calls)[
            rule.prefix
        ].messages
        if not rule.uses_calls:
            return found
        calls = history()[-1].get("tool_calls") or [
            probes.call(
                str(message.get("name") or "tool"), "", str(message.get("tool_call_id") or "")
            )
            for message in messages
            if message["role"] == "tool"
        ]
        if not calls:
            return found
        return [*found[:-1], {**found[-1], "content": "", "tool_calls": _marked_calls(calls)}]

    def _after(
        self,
        history: Messages,
        messages: Sequence[Message],
        rule: Rule,
        tools: Sequence[Tool] | None,
    ) -> str | None:
        listed = tools if rule.needs_tools else None
        after = self._renderer.render([*history, *messages], tools=listed, generation=True)
        has_calls = bool(history[-1].get("tool_calls"))
        closed = self._renderer.render(history, tools=listed) if has_calls else MARK
        at = cut(closed, after, has_calls, self._findings.stops)
        return None if at is None else after[at.after :]


def marked(history: Messages, turn: TurnKind, shows_calls: bool) -> Messages:
    """The history with the mark as the last text of its last turn."""
    last = history[-1]
    if last.get("tool_calls") and shows_calls:
        last = {**last, "tool_calls": _marked_calls(last["tool_calls"], keep=True)}
    elif turn in CALL_KINDS and shows_calls:
        # The call is text in the content; templates answer it as a call that they know.
        last = {**last, **probes.turn("call", MARK)}
    else:
        content = last.get("content")
        last = {**last, "content": (content.rstrip() if isinstance(content, str) else "") + MARK}
    return [*history[:-1], last]


def _marked_calls(calls: Sequence[Any], *, keep: bool = False) -> list[dict[str, Any]]:
    """The calls with their names and ids, and the mark as the last argument of each."""
    result = []
    for call in calls:
        function = call.get("function", call)
        arguments = function.get("arguments")
        given = arguments if keep and isinstance(arguments, dict) else {}
        function = {**function, "arguments": {**given, "zz_mark": MARK}}
        result.append({**call, "function": function} if "function" in call else function)
    return result
