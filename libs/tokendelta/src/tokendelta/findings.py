"""What an audit of a chat template found, as data and as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tokendelta.probes import EnvKind, TurnKind

Way = Literal["literal", "prefix", "full"]
Transform = Literal["verbatim", "strip", "json"]
Effect = Literal["append", "rewrite", "mixed", "unknown"]
StopStyle = Literal["terminator", "deferred", "header", "none"]


@dataclass(frozen=True, slots=True)
class Literals:
    """Fixed text around and between the contents of an environment group."""

    left: str
    between: str
    right: str
    transform: Transform

    def join(self, texts: Sequence[str]) -> str:
        """The continuation for the contents, the transform applied to each."""
        return self.left + self.between.join(self.apply(texts)) + self.right

    def apply(self, texts: Sequence[str]) -> Sequence[str]:
        if self.transform == "strip":
            return [text.strip() for text in texts]
        if self.transform == "json":
            return [json.dumps(text, ensure_ascii=False) for text in texts]
        return texts


@dataclass(frozen=True, slots=True)
class Rule:
    """How the continuation after one kind of turn and before one kind of answer is found.

    literal      fixed text around the contents.
    prefix       a render after the probe history of this number; with the tools if `needs_tools`.
    full         a render of the whole history: the text depends on it, or was never seen.
    uses_calls   names or ids of the turn's calls, or of the answers, stand in the text.
    moves        the system prompt or the tool list is moved into the text.
    """

    way: Way
    literals: Literals | None
    prefix: int
    needs_tools: bool
    uses_calls: bool
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """Whether a transition leaves what was rendered before as it was.

    append   every probe history stayed a prefix.
    rewrite  no probe history did; `where` says what changed first: the history before the turn, the
             header of the turn (its generation prompt was taken back), or the turn itself.
    mixed    some did and some did not, or it depends on how the turn is written.
    unknown  the template renders no such transition.
    """

    effect: Effect
    where: tuple[str, ...] = ()


ChangeKey = tuple[TurnKind, bool, EnvKind]


@dataclass(frozen=True, slots=True)
class Findings:
    """The facts of one template with one set of arguments. `""` stands for not found.

    `ending` is all that the template writes behind the text of a turn, up to its stop token.
    `openers` are stop tokens that open the next message. `reasoning_close` stands between reasoning
    and a text, `reasoning_end` is the part of it that closes reasoning before a call as well.
    `reads_calls` says that the names or ids of a turn's calls stand in what follows the turn.
    `guards` are texts that the template compares contents with; `guards_by_sign` are the same by
    one character each, so that most contents are let through after one search.
    """

    stops: tuple[str, ...]
    stop_style: StopStyle
    last_stop: str
    openers: tuple[str, ...]
    ending: str
    separator: str
    generation_prompt: str
    header: Literal["equal", "continued", "different"]
    reasoning_field: str
    reasoning_open: str
    reasoning_close: str
    reasoning_end: str
    tool_call_open: str
    tool_group: Literal["one block", "separate", "unknown"]
    shows_calls: bool
    reads_calls: bool
    takes_tools: bool
    takes_system: bool
    dated: bool
    timed: bool
    prompts_when_asked: bool
    guards: tuple[str, ...]
    guards_by_sign: tuple[tuple[str, tuple[str, ...]], ...]
    rules: dict[tuple[TurnKind, EnvKind], Rule]
    changes: dict[ChangeKey, Change]

    def guarded(self, texts: Sequence[str]) -> bool:
        """Whether a text holds something that the template compares content with."""
        for text in texts:
            for sign, guards in self.guards_by_sign:
                if sign in text and any(guard in text for guard in guards):
                    return True
        return False

    def change(self, turn: TurnKind, earlier_reasoning: bool, env: EnvKind) -> Change:
        return self.changes[(turn, earlier_reasoning, env)]


@dataclass(frozen=True, slots=True)
class Report:
    """Findings for people: `str(report)` is a table, `report.data` is plain data for JSON."""

    data: dict[str, Any]
    text: str

    def __str__(self) -> str:
        return self.text


_STOP_STYLES = {
    "terminator": "closes the turn",
    "deferred": "is written only when another message follows",
    "header": "is the header of the next message",
    "none": "is not written by the template",
}


def report(findings: Findings, template_hash: str) -> Report:
    """The findings with one line for each fact and one for each transition."""
    data: dict[str, Any] = {"template_hash": template_hash}
    for name, value in asdict(findings).items():
        if name not in ("rules", "changes", "guards_by_sign"):
            data[name] = list(value) if isinstance(value, tuple) else value
    data["transitions"] = [
        _transition(findings, turn, earlier, env) for turn, earlier, env in findings.changes
    ]
    data["not_established"] = not_established(findings)
    data["warnings"] = warnings(findings)
    stops = ", ".join(findings.stops) or "none"
    lines = [
        f"template            {template_hash[:16]}",
        f"stop tokens         {stops}; the first {_STOP_STYLES[findings.stop_style]}",
        f"after the stop      {findings.separator!r}, belongs to the environment",
        f"generation prompt   {findings.generation_prompt!r}, {findings.header} as the header of an"
        " assistant message",
        f"reasoning           {findings.reasoning_open!r} ... {findings.reasoning_close!r}",
        f"tool call opens     {findings.tool_call_open!r}",
        f"tool results        {findings.tool_group}",
        f"tools, system       {'yes' if findings.takes_tools else 'no'},"
        f" {'yes' if findings.takes_system else 'no'}",
        f"date in the prompt  {'yes: render once for a session' if findings.dated else 'no'}",
    ]
    if findings.ending not in ("", *findings.stops):
        lines.insert(2, f"a turn ends         {findings.ending!r}")
    if findings.last_stop:
        lines.insert(2, f"last turn ends      {findings.last_stop!r}, rewritten when it is history")
    groups: dict[str, list[str]] = {}
    for row in data["transitions"]:
        where = f" of {', '.join(row['where'])}" if row["where"] else ""
        name = row["turn"] + (" after reasoning" if row["earlier_reasoning"] else "")
        key = f"{row['environment']:<6} {row['effect']}{where}; {row['way']}"
        groups.setdefault(key, []).append(name)
    for key in sorted(groups):
        lines.append(f"then {key}\n       after {', '.join(groups[key])}")
    lines += [f"warning: {item}" for item in data["warnings"]]
    lines += [f"not established: {item}" for item in data["not_established"]]
    return Report(data, "\n".join(lines))


def _transition(findings: Findings, turn: TurnKind, earlier: bool, env: EnvKind) -> dict[str, Any]:
    rule, change = findings.rules[(turn, env)], findings.change(turn, earlier, env)
    way: str = rule.way
    if rule.literals is not None and rule.literals.transform != "verbatim":
        way += f", content by {rule.literals.transform}"
    if rule.needs_tools:
        way += ", with tools"
    if rule.uses_calls:
        way += ", with the calls"
    return {
        "turn": turn,
        "earlier_reasoning": earlier,
        "environment": env,
        "effect": change.effect,
        "where": list(change.where),
        "way": way,
    }


def warnings(findings: Findings) -> list[str]:
    """What a template does that nobody wants and that no accounting can mend."""
    found = []
    if not findings.prompts_when_asked:
        found.append(
            "the template ignores add_generation_prompt: a prompt is the same with and without it"
        )
    if findings.timed:
        found.append(
            "the template prints the time: the first prompt holds the time of its render, and forks"
            " and full renders show another one"
        )
    return found


def not_established(findings: Findings) -> list[str]:
    """What the audit could not find out, and what is done instead."""
    missing = []
    if not findings.stops:
        missing.append("no stop token: give stop_token_ids, or a turn's end is never recognised")
    if not findings.reasoning_close:
        missing.append("no reasoning markers: spans hold no reasoning, a cut block stays open")
    if not findings.takes_tools:
        missing.append("the template ignores the tool list")
    if findings.tool_group == "unknown":
        missing.append("the template renders no tool result")
    unknown = [key for key, change in findings.changes.items() if change.effect == "unknown"]
    for turn, earlier, env in unknown:
        after = " after reasoning" if earlier else ""
        missing.append(f"{turn}{after} -> {env}: rendered in full each time")
    return missing
