"""Finds out by rendering what a chat template does between turns.

1. The first special token after a plain assistant text is the template's stop token, if the
   template has one; the tokenizer's end-of-sequence token is another.
2. For each kind of turn and of environment answer, the text after the sampled part is compared
   over histories of different depth. Where it is always the same, a short prefix or even literal
   text gives it; where it is not, the full history is needed.
3. A transition rewrites history if the render before it, up to the stop token, is no prefix of the
   render after it, or if the generation prompt was taken back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokendelta import probes
from tokendelta.encoding import SpecialTokens
from tokendelta.errors import TemplateError
from tokendelta.probes import EnvKind, TurnKind
from tokendelta.rendering import Renderer, Tool

TURN_KINDS: tuple[TurnKind, ...] = ("text", "think", "call", "think_call")
ENV_KINDS: tuple[EnvKind, ...] = ("user", "tool", "mixed")

# Comparisons of content with literal text in a template, by which a content changes its meaning.
_GUARD = re.compile(
    r"""(?:startswith|endswith|split|replace)\(\s*(?P<q>['"])(?P<a>.+?)(?P=q)"""
    r"""|(?P<r>['"])(?P<b>[^'"]+)(?P=r)\s+(?:not\s+)?in\s""",
)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Fixed text around and between the contents of an environment group."""

    left: str
    between: str
    right: str

    def join(self, texts: Sequence[str]) -> str:
        return self.left + self.between.join(texts) + self.right


@dataclass(frozen=True, slots=True)
class Rule:
    """How the continuation of one transition is found, and whether it is append-only."""

    way: Literal["literal", "prefix", "full"]
    literal: Pieces | None
    prefix: int
    needs_tools: bool
    append_only: bool | None


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of one audit."""

    stops: tuple[str, ...]
    guards: tuple[str, ...]
    generation_prompt: str
    rules: dict[tuple[TurnKind, EnvKind], Rule]

    def guarded(self, texts: Sequence[str]) -> bool:
        """Whether a text holds something that the template compares content with."""
        return any(guard in text for guard in self.guards for text in texts)

    def text(self) -> str:
        lines = [
            f"stop tokens: {', '.join(map(repr, self.stops)) or 'none found'}",
            f"generation prompt: {self.generation_prompt!r}",
        ]
        for (turn, env), rule in self.rules.items():
            state = {True: "append-only", False: "rewrites history", None: "not established"}
            lines.append(f"{turn} -> {env}: {state[rule.append_only]}, by {rule.way}")
        return "\n".join(lines)


def closing_length(closed: str, tail: str, stops: Sequence[str]) -> int:
    """Characters of a call's closing text, which are sampled, before the continuation starts.

    `closed` and `tail` are what follows the mark without and with an environment answer.
    """
    shared = 0
    for left, right in zip(closed, tail, strict=False):
        if left != right:
            break
        shared += 1
    places = [closed.rfind(stop) for stop in stops if stop]
    at = max((place for place in places if place >= 0), default=-1)
    return min(at, shared) if at >= 0 else shared


def audit(renderer: Renderer, specials: SpecialTokens, eos: str) -> Findings:
    """Audit the template behind the renderer.

    Raises TemplateError if not even a user message and its answer can be rendered.
    """
    tail = _tail(renderer, [probes.user("Hello."), probes.turn("text", probes.MARK)], "user", None)
    if tail is None:
        raise TemplateError("the chat template does not show the text of an assistant message")
    head = specials.head(tail)
    stops = tuple(dict.fromkeys(stop for stop in (head, eos) if stop in specials.by_text))
    template = getattr(renderer.tokenizer, "chat_template", None)
    guards = _guards(template if isinstance(template, str) else "")
    first = renderer.render([probes.user("Hello.")])
    prompt = renderer.render([probes.user("Hello.")], generation=True)
    generation = prompt[len(first) :] if prompt.startswith(first) else ""
    rules = {
        (turn, env): _rule(renderer, turn, env, stops) for turn in TURN_KINDS for env in ENV_KINDS
    }
    return Findings(stops, guards, generation, rules)


def _guards(template: str) -> tuple[str, ...]:
    found = (match["a"] or match["b"] for match in _GUARD.finditer(template))
    return tuple(sorted({text for text in found if len(text.strip()) > 1}))


def _tail(
    renderer: Renderer,
    history: list[dict[str, Any]],
    env: EnvKind | list[dict[str, Any]],
    tools: Sequence[Tool] | None,
    stops: Sequence[str] = (),
) -> str | None:
    """What follows the sampled part of the last turn, or None if the template does not render."""
    messages = probes.environment(env) if isinstance(env, str) else env
    try:
        text = renderer.render([*history, *messages], tools=tools, generation=True)
        at = text.rfind(probes.MARK)
        if at < 0:
            return None
        tail = text[at + len(probes.MARK) :]
        if not history[-1].get("tool_calls"):
            return tail
        closed = renderer.render(history, tools=tools)
    except TemplateError:
        return None
    closed = closed[closed.rfind(probes.MARK) + len(probes.MARK) :]
    return tail[closing_length(closed, tail, stops) :]


def _rule(renderer: Renderer, turn: TurnKind, env: EnvKind, stops: Sequence[str]) -> Rule:
    with_tools: list[str | None] = []
    without: list[str | None] = []
    for history in probes.histories(turn):
        without.append(_tail(renderer, history, env, None, stops))
        with_tools.append(_tail(renderer, history, env, probes.TOOLS, stops))
    append_only = _append_only(renderer, turn, env, stops)
    seen = {tail for tail in (*without, *with_tools) if tail is not None}
    names = _depends_on_names(renderer, turn, stops) if env != "user" else False
    prefix = next((i for i, tail in enumerate(without) if tail is not None), None)
    if len(seen) == 1 and prefix is not None:
        literal = None
        if not names and env != "mixed":
            literal = _literal(renderer, probes.histories(turn)[prefix], env, stops)
        return Rule("literal" if literal else "prefix", literal, prefix, False, append_only)
    prefix = next((i for i, tail in enumerate(with_tools) if tail is not None), None)
    if len({tail for tail in with_tools if tail is not None}) == 1 and prefix is not None:
        return Rule("prefix", None, prefix, True, append_only)
    return Rule("full", None, 0, True, append_only)


def _depends_on_names(renderer: Renderer, turn: TurnKind, stops: Sequence[str]) -> bool:
    """Whether names or ids of calls stand in the environment's text."""
    tails = set()
    for name, call_id in (("find_order", probes.CALL_IDS[0]), ("find_user", probes.CALL_IDS[1])):
        history = [
            probes.user("Hello."),
            probes.turn(turn, probes.MARK, (name,), (call_id,)),
        ]
        answer = [probes.tool(probes.FIRST, name=name, call_id=call_id)]
        tails.add(_tail(renderer, history, answer, probes.TOOLS, stops))
    return len(tails) > 1


def _literal(
    renderer: Renderer, history: list[dict[str, Any]], env: EnvKind, stops: Sequence[str]
) -> Pieces | None:
    """The fixed text around contents, if every probe content is copied as it is."""
    one = probes.FIRST
    make = probes.user if env == "user" else probes.tool
    tail = _tail(renderer, history, [make(one)], None, stops)
    if tail is None or tail.count(one) != 1:
        return None
    left, right = tail.split(one)
    between = ""
    if env == "tool":
        pair = _tail(
            renderer, history, [probes.tool(one), probes.tool(probes.SECOND, 1)], None, stops
        )
        if pair is None or pair.count(one) != 1 or pair.count(probes.SECOND) != 1:
            return None
        if not pair.startswith(left) or not pair.endswith(right):
            return None
        between = pair[pair.index(one) + len(one) : pair.index(probes.SECOND)]
    literal = Pieces(left, between, right)
    for text in probes.CONTENTS:
        groups = [[text]] if env == "user" else [[text], [text, "b"], ["a", text, "c"]]
        for group in groups:
            messages = [make(item) if env == "user" else probes.tool(item) for item in group]
            if _tail(renderer, history, messages, None, stops) != literal.join(group):
                return None
    return literal


def _append_only(
    renderer: Renderer, turn: TurnKind, env: EnvKind, stops: Sequence[str]
) -> bool | None:
    """Whether the render before the environment's answer is a prefix of the one after it."""
    verdict: bool | None = None
    for history in probes.histories(turn):
        try:
            prompt = renderer.render(history[:-1], tools=probes.TOOLS, generation=True)
            closed = renderer.render(history, tools=probes.TOOLS)
            after = renderer.render(
                [*history, *probes.environment(env)], tools=probes.TOOLS, generation=True
            )
        except TemplateError:
            continue
        at = closed.rfind(probes.MARK) + len(probes.MARK)
        tail = _tail(renderer, history, env, probes.TOOLS, stops)
        if tail is None:
            return False
        sampled = closed[: at + closing_length(closed[at:], after[len(after) - len(tail) :], stops)]
        if turn in ("text", "think"):
            sampled = closed[:at]
        if not after.startswith(sampled) or not after.startswith(prompt):
            return False
        verdict = True
    return verdict
