"""Finds out by rendering what a chat template does between turns.

1. What follows a plain assistant text shows the stop token and whose it is.
2. For each kind of turn and answer, the continuation is compared over histories of different depth,
   with and without tools. Where it is always the same, literal text or a render after a short
   prefix gives it; where it is not, the whole history is needed.
3. A transition rewrites history if the generation prompt before the turn, or the turn as it was
   shown, is no longer a prefix of the render with the answer.

All statements are about the probes. `Session(verify=...)` checks them on real conversations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Any, Literal

from tokendelta.encoding import SpecialTokens
from tokendelta.errors import TemplateError
from tokendelta.findings import Change, ChangeKey, Effect, Findings, StopStyle
from tokendelta.prober import Prober, common_length
from tokendelta.probes import (
    CALL_IDS,
    ENV_KINDS,
    FIRST,
    MARK,
    REASON,
    SECOND,
    SYSTEM,
    THINK_KINDS,
    TURN_KINDS,
    EnvKind,
    Messages,
    TurnKind,
    environments,
    tool,
    turn,
    user,
)
from tokendelta.rendering import Renderer
from tokendelta.rules import find_rule

# Comparisons of content with text in a template, by which a content changes its meaning.
_GUARD = re.compile(
    r"""(?:startswith|endswith|split|replace)\(\s*(?P<q>['"])(?P<a>.+?)(?P=q)"""
    r"""|(?P<r>['"])(?P<b>[^'"]+)(?P=r)\s+(?:not\s+)?in\s"""
)
# Parts of a date format that change within a day.
_CLOCK = re.compile(r"%-?[HIMSTXRcsf]")
_DATES = ("%Y-%m-%d", "%d %b %Y", "%d %B %Y", "%B %d, %Y", "%b %d, %Y")
_HELLO = user("Hello.")


def audit(renderer: Renderer, specials: SpecialTokens, eos: str) -> Findings:
    """Audit the template behind the renderer.

    Raises TemplateError if not even a user message and its answer can be rendered.
    """
    prober = Prober(renderer)
    tail = prober.tail([_HELLO, turn("text", MARK)], [user(FIRST)])
    if tail is None:
        tail = prober.tail([_HELLO, turn("text", MARK)], [user(FIRST)], tools=True)
    if tail is None:
        # Let the template say what it does not accept.
        text = renderer.render([_HELLO, turn("text", MARK), user(FIRST)], generation=True)
        if not text.strip():
            raise TemplateError(
                "the chat template renders nothing for messages of user, assistant, user; give the"
                " tokenizer the model's own template"
            )
        raise TemplateError("the chat template does not show the text of an assistant message")
    closed = _first(prober, [_HELLO, turn("text", MARK)])
    ending = _ending(closed[closed.rfind(MARK) + len(MARK) :], tail, eos, specials)
    style, stops, last_stop = _stops(prober, specials, eos, tail, ending)
    openers = _openers(prober, specials, style, [stop for stop in stops if stop != eos])
    prober.stops = stops
    template = getattr(renderer.tokenizer, "chat_template", None)
    source = template if isinstance(template, str) else ""
    call = prober.render([_HELLO, turn("call", MARK)], tools=True)
    prober.shows_calls = call is None or MARK in call
    guards = guards_of(source)
    field, opening, closing = _reasoning(prober, specials)
    ends = _reasoning_end(prober, specials, field, closing)
    prober.reasoning_field, prober.reasoning_close = field, closing
    header, generation = _generation(prober)
    opened = _first(prober, [_HELLO])
    system = prober.render([SYSTEM, _HELLO])
    return Findings(
        stops=stops,
        stop_style=style,
        last_stop=last_stop,
        openers=openers,
        ending=ending if style in ("terminator", "deferred") else "",
        separator=_separator(tail, specials, ending if style != "header" else ""),
        generation_prompt=generation,
        header=header,
        reasoning_field=field,
        reasoning_open=opening,
        reasoning_close=closing,
        reasoning_end=ends,
        tool_call_open=_tool_call_open(prober, specials),
        tool_group=_tool_group(prober),
        shows_calls=prober.shows_calls,
        reads_calls=_reads_calls(prober),
        takes_tools=prober.render([_HELLO]) != prober.render([_HELLO], tools=True),
        takes_system=system is not None and SYSTEM["content"] in system,
        dated="strftime_now" in source or _shows_today(opened),
        timed="strftime_now" in source and _CLOCK.search(source) is not None,
        prompts_when_asked=_first(prober, [_HELLO], generation=True) != opened,
        guards=guards,
        guards_by_sign=by_sign(guards),
        rules={(t, e): find_rule(prober, t, e) for t in TURN_KINDS for e in ENV_KINDS},
        changes=_changes(prober),
    )


def _first(prober: Prober, messages: Messages, *, generation: bool = False) -> str:
    """The render without tools or, where that raises, with them."""
    text = prober.render(messages, generation=generation)
    if text is None:
        text = prober.render(messages, tools=True, generation=generation)
    return text or ""


def _ending(closed: str, tail: str, eos: str, specials: SpecialTokens) -> str:
    """How the template ends a turn: all it writes up to the stop token, and the token.

    `closed` stands behind the text of the last turn, `tail` behind one that is answered. Both begin
    with the ending; where they have no stop token in common, it ends with the first of `tail`.
    """
    shared = tail[: common_length(closed, tail)]
    if eos in specials.by_text and eos in shared:
        return shared[: shared.index(eos) + len(eos)]
    if shared == closed and (last := specials.last(closed)) is not None:
        return closed[: last.end()]
    head = specials.head(tail.lstrip())
    return tail[: tail.find(head) + len(head)]


def _stops(
    prober: Prober, specials: SpecialTokens, eos: str, tail: str, ending: str
) -> tuple[StopStyle, tuple[str, ...], str]:
    """How a turn ends, the stop tokens with the template's own first, and a last turn's own one."""
    closed = _first(prober, [_HELLO, turn("text", MARK)])
    closed = closed[closed.rfind(MARK) + len(MARK) :]
    found_head = specials.last(ending)
    head = found_head.group() if found_head else ""
    last = head if ending and closed.startswith(ending) else specials.head(closed.lstrip())
    known = [eos] if eos in specials.by_text else []
    if not head:
        return "none", tuple(dict.fromkeys([*([last] if last else []), *known])), ""
    found = [head, *([last] if last else []), *known]
    if last:
        last_stop = last if last != head else ""
        prober.stops = found
        found += _call_stop(prober, specials, found)
        return "terminator", tuple(dict.fromkeys(found)), last_stop
    between = tail[len(ending) : tail.find(FIRST)]
    if specials.find(between) is not None:
        return "deferred", tuple(dict.fromkeys(found)), ""
    for kind in TURN_KINDS:
        other = prober.tail([_HELLO, prober.turn(kind, MARK)], [tool(FIRST)])
        other_head = specials.head(other.lstrip()) if other else ""
        if other_head:
            found.insert(1, other_head)
    return "header", tuple(dict.fromkeys(found)), ""


def _call_stop(prober: Prober, specials: SpecialTokens, stops: Sequence[str]) -> list[str]:
    """The stop token of a turn that calls tools, where it is another."""
    closed = prober.render([_HELLO, turn("call", MARK)], tools=True)
    if closed is None:
        return []
    rest = closed[closed.rfind(MARK) + len(MARK) :].rstrip()
    found = specials.last_control(rest)
    if found is None or rest[found[0] + len(found[1]) :] or found[1] in stops:
        return []
    opened = prober.render([_HELLO], tools=True, generation=True) or ""
    if opened.rstrip().endswith(found[1]):
        # The template ends every render with the generation prompt.
        return []
    return [found[1]]


def _openers(
    prober: Prober, specials: SpecialTokens, style: StopStyle, stops: list[str]
) -> tuple[str, ...]:
    """Stop tokens that open the next message: all of a template's own where headers end turns, else
    one that the text of the answer follows at once."""
    if style == "header":
        return tuple(stops)
    tail = prober.tail([_HELLO, prober.turn("call", MARK)], [tool(FIRST)], tools=True) or ""
    head = specials.head(tail)
    followed = specials.head(tail[len(head) :].lstrip())
    return (head,) if head in stops and not followed and style == "terminator" else ()


def _separator(tail: str, specials: SpecialTokens, ending: str) -> str:
    """What stands between the ending of a turn and the next special token."""
    rest = tail[len(ending) :]
    match = specials.find(rest)
    end = min(match.start() if match else len(rest), rest.find(FIRST))
    return rest[:end]


def _generation(
    prober: Prober,
) -> tuple[Literal["equal", "continued", "different"], str]:
    """Whether the generation prompt is the header of an assistant message, and its text."""
    previous = _first(prober, [_HELLO])
    prompt = _first(prober, [_HELLO], generation=True)
    closed = _first(prober, [_HELLO, turn("text", MARK)])
    text = prompt[len(previous) :] if prompt.startswith(previous) else ""
    if closed.startswith(prompt + MARK):
        return "equal", text
    return ("continued" if closed.startswith(prompt) else "different"), text


def _reasoning(prober: Prober, specials: SpecialTokens) -> tuple[str, str, str]:
    """The key that holds reasoning, and the text before and after it."""
    for name in ("reasoning_content", "thinking", "reasoning"):
        for kind in ("think", "think_call"):
            message = turn("think" if kind == "think" else "think_call", MARK, field=name)
            closed = _first(prober, [_HELLO, message])
            if closed.count(REASON) != 1:
                continue
            at = closed.index(REASON)
            start = common_length(_first(prober, [_HELLO], generation=True), closed)
            # The generation prompt may open the block already.
            bare = _first(prober, [_HELLO, turn("text", MARK)])
            start = min(start, common_length(bare, closed))
            end = closed.find(MARK, at)
            if kind == "think":
                closing = closed[at + len(REASON) : end]
            else:
                # The call begins where a turn that does not reason is the same up to its end.
                called = _first(prober, [_HELLO, turn("call", MARK)])
                same = common_length(closed[::-1], called[::-1])
                closing = closed[at + len(REASON) : max(len(closed) - same, at + len(REASON))]
            opening = closed[start:at]
            if not opening.strip():
                # Every render opens the block here: take its marker, a token that no other
                # message has.
                match = specials.last(closed[:at])
                if match is not None and match.group() not in _first(prober, [_HELLO]):
                    opening = closed[match.start() : at]
            return name, opening, closing
    return "reasoning_content", "", ""


def _reasoning_end(prober: Prober, specials: SpecialTokens, field: str, closing: str) -> str:
    """The token that closes reasoning before a text and before a call alike, or what closes it
    before a text where there is none."""
    called = _first(prober, [_HELLO, turn("think_call", MARK, field=field)])
    at = called.rfind(REASON)
    if at < 0 or not closing:
        return closing
    shared = closing[: common_length(closing, called[at + len(REASON) :])]
    head = specials.head(shared)
    alone = head and head not in prober.stops and specials.find(shared[len(head) :]) is None
    return head if alone and shared != closing else closing


def _tool_call_open(prober: Prober, specials: SpecialTokens) -> str:
    """The marker that a tool call starts with."""
    message = turn("call", MARK)
    message["content"] = FIRST
    closed = prober.render([_HELLO, message], tools=True) or ""
    start, end = closed.rfind(FIRST), closed.rfind("find_order")
    if start < 0 or end < start:
        return ""
    between = closed[start + len(FIRST) : end]
    match = specials.find(between) or re.search(r"<[^<>\s]+>|\[[A-Z_]+\]", between)
    return match.group() if match else ""


def _tool_group(prober: Prober) -> Literal["one block", "separate", "unknown"]:
    """Whether a second tool result extends the render of the first."""
    for kind in ("call", "text"):
        last = turn("call", MARK, names=("find_order", "find_user")) if kind == "call" else None
        history = [_HELLO, last or turn("text", MARK)]
        one = prober.render([*history, tool(FIRST)], tools=True)
        two = prober.render([*history, tool(FIRST), tool(SECOND, 1)], tools=True)
        if one is not None and two is not None and FIRST in one and SECOND in two:
            return "separate" if two.startswith(one) else "one block"
    return "unknown"


def _reads_calls(prober: Prober) -> bool:
    """Whether one answer is shown otherwise behind calls of other names or ids."""
    tails = {
        prober.tail(
            [_HELLO, prober.turn("call", MARK, names=(name,), ids=(call_id,))],
            [tool(FIRST)],
            tools=True,
        )
        for name in ("find_order", "find_user")
        for call_id in CALL_IDS[:2]
    }
    return len(tails) > 1


def guards_of(source: str) -> tuple[str, ...]:
    """Texts that a template compares contents with, cuts them at, or replaces in them."""
    found = ((match["a"] or match["b"]) for match in _GUARD.finditer(source))
    texts = {text.encode().decode("unicode_escape", "ignore") for text in found if text.isascii()}
    return tuple(sorted(text for text in texts if len(text.strip()) > 1))


def by_sign(guards: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Guards by a character that they hold: a sign rather than a letter, as it is rarer."""
    groups: dict[str, list[str]] = {}
    for guard in guards:
        sign = next((c for c in guard if not c.isalnum() and not c.isspace()), guard.strip()[0])
        groups.setdefault(sign, []).append(guard)
    return tuple((sign, tuple(members)) for sign, members in groups.items())


def _shows_today(text: str) -> bool:
    return any(date.today().strftime(form) in text for form in _DATES)


def _changes(prober: Prober) -> dict[ChangeKey, Change]:
    changes = {}
    for kind in TURN_KINDS:
        for earlier in (False, True):
            for env in ENV_KINDS:
                changes[(kind, earlier, env)] = _change(prober, kind, earlier, env)
    return changes


def _change(prober: Prober, kind: TurnKind, earlier: bool, env: EnvKind) -> Change:
    """The effect of one transition over all histories, with reasoning in its field and inline."""
    seen: set[Any] = set()
    for style in ("", "inline") if kind in THINK_KINDS or earlier else ("",):
        for history in prober.histories(kind, style):
            if history.earlier_reasoning != earlier:
                continue
            for answer in environments(env):
                for tools in (False, True):
                    seen.add(prober.rewrites(history.messages, answer, kind, tools=tools))
    seen.discard(None)
    places = tuple(sorted(str(place) for place in seen - {"nothing"}))
    effect: Effect = "unknown"
    if seen == {"nothing"}:
        effect = "append"
    elif seen:
        effect = "mixed" if "nothing" in seen else "rewrite"
    return Change(effect, places)
