"""Finds the cheapest way to the continuation of one kind of transition."""

from __future__ import annotations

from tokendelta.findings import Literals, Rule, Transform
from tokendelta.prober import Prober
from tokendelta.probes import (
    CALL_IDS,
    CONTENTS,
    FIRST,
    MARK,
    SECOND,
    SYSTEM,
    THIRD,
    TOOLS,
    EnvKind,
    Messages,
    TurnKind,
    environments,
    tool,
    user,
)

_NAMES = ("find_order", "find_user", "find_order")


def find_rule(prober: Prober, kind: TurnKind, env: EnvKind) -> Rule:
    """Compare the continuation over histories, with and without tools."""
    candidates = [history.messages for history in prober.histories(kind)]
    uses_calls = env != "user" and _uses_calls(prober, kind)
    bare = [_stable(prober, candidates, answer, (False, True)) for answer in environments(env)]
    if _usable(bare):
        prefix = _first_prefix(prober, candidates, environments(env), tools=False)
        if prefix is not None:
            literals = None
            if not uses_calls and env != "mixed":
                literals = _literals(prober, kind, prefix, env)
            return Rule("literal" if literals else "prefix", literals, prefix, False, uses_calls)
    listed = [_stable(prober, candidates, answer, (True,)) for answer in environments(env)]
    if _usable(listed):
        prefix = _first_prefix(prober, candidates, environments(env), tools=True)
        if prefix is not None:
            return Rule("prefix", None, prefix, True, uses_calls, _moves(prober, candidates, env))
    return Rule("full", None, 0, True, uses_calls, _moves(prober, candidates, env))


def _moves(prober: Prober, candidates: list[Messages], env: EnvKind) -> bool:
    """Whether a continuation shows the system prompt or a tool that is not called."""
    shown = SYSTEM["content"], TOOLS[1]["function"]["description"]
    tails = (
        prober.tail(history, answer, tools=True) or ""
        for history in candidates
        for answer in environments(env)
    )
    return any(text in tail for tail in tails for text in shown)


def _stable(
    prober: Prober, candidates: list[Messages], answer: Messages, tools: tuple[bool, ...]
) -> bool | None:
    """Whether all histories have the same continuation; None if none can be rendered."""
    tails = {
        prober.tail(history, answer, tools=listed) for history in candidates for listed in tools
    } - {None}
    return len(tails) == 1 if tails else None


def _usable(stable: list[bool | None]) -> bool:
    return False not in stable and True in stable


def _first_prefix(
    prober: Prober, candidates: list[Messages], answers: list[Messages], *, tools: bool
) -> int | None:
    """The first history that renders with every answer that any history renders with."""
    wanted = [
        answer
        for answer in answers
        if any(prober.tail(history, answer, tools=tools) is not None for history in candidates)
    ]
    for index, history in enumerate(candidates):
        if wanted and all(
            prober.tail(history, answer, tools=tools) is not None for answer in wanted
        ):
            return index
    return None


def _uses_calls(prober: Prober, kind: TurnKind) -> bool:
    """Whether names, ids or the number of calls, or keys of the answer, change the text."""
    tails = set()
    for name, call_id in (("find_order", CALL_IDS[0]), ("find_user", CALL_IDS[1])):
        for count in (1, 2):
            last = prober.turn(kind, MARK, names=(name,) * count, ids=(call_id, CALL_IDS[3]))
            for tools in (False, True):
                history = [user("Hello."), last]
                answer = [tool(FIRST, name=name, call_id=call_id)]
                tails.add(prober.tail(history, answer, tools=tools))
    tails.discard(None)
    bare = [user("Hello."), prober.turn(kind, MARK)]
    answer = [{"role": "tool", "content": FIRST}]
    tails.add(prober.tail(bare, answer, tools=True))
    return len(tails) != 1


def _literals(prober: Prober, kind: TurnKind, prefix: int, env: EnvKind) -> Literals | None:
    """The fixed text around contents, if every probe content is copied or changed as known."""
    base = prober.histories(kind)[prefix].messages

    def tail(texts: tuple[str, ...]) -> str | None:
        last = base[-1]
        if len(texts) > 1 and last.get("tool_calls"):
            last = prober.turn(kind, MARK, names=_NAMES[: len(texts)])
        answer = [
            user(text) if env == "user" else tool(text, index, _NAMES[index])
            for index, text in enumerate(texts)
        ]
        return prober.tail([*base[:-1], last], answer)

    one = tail((FIRST,))
    if one is None or one.count(FIRST) != 1:
        return None
    left, right = one.split(FIRST)
    between = ""
    if env == "tool":
        two = tail((FIRST, SECOND))
        if two is None or two.count(FIRST) != 1 or two.count(SECOND) != 1:
            return None
        between = two[two.index(FIRST) + len(FIRST) : two.index(SECOND)]
    transforms: tuple[Transform, ...] = ("verbatim", "strip", "json")
    groups: list[tuple[str, ...]] = [(text,) for text in CONTENTS]
    if env == "tool":
        groups += [(text, SECOND) for text in CONTENTS] + [(FIRST, t, THIRD) for t in CONTENTS]
    for transform in transforms:
        quote = '"' if transform == "json" else ""
        if not left.endswith(quote) or not right.startswith(quote):
            continue
        literals = Literals(
            left.removesuffix(quote),
            between.removeprefix(quote).removesuffix(quote),
            right.removeprefix(quote),
            transform,
        )
        if all(tail(group) == literals.join(group) for group in groups):
            return literals
    return None
