"""What models wrote, read strictly.

| contract      | by whom  | a text that does not keep it                                         |
|---------------|----------|----------------------------------------------------------------------|
| `read_step`   | planner  | `Malformed` with a kind; the policy's failure, the episode's rule     |
| `read_command`| executor | `Malformed` with a kind; asked again, then a failed action            |
| `read_verdict`| verifier | None; the episode goes on, counted                                    |

Nothing that a model wrote is ever executed here: a command is JSON, or one call whose keywords are
literals. Its length is bounded before it is parsed, its depth after: within that length Python's
parsers give up on what is nested too deep for them with an exception, which is caught.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from turnwise.fences import FENCE, after_thinking, fence_after, fenced

from apps.trainers.agentflow.toolbox import Toolbox
from apps.trainers.agentflow.tools.tool import Tool

JUSTIFICATION, CONTEXT, SUB_GOAL, TOOL_NAME = "Justification", "Context", "Sub-Goal", "Tool Name"
MAX_COMMAND_CHARACTERS = 16_384
MAX_COMMAND_DEPTH = 8

StepError = Literal[
    "empty",
    "cut",
    "unfinished_thinking",
    "missing_section",
    "repeated_section",
    "wrong_order",
    "empty_section",
    "several_tools",
    "trailing_text",
    "unknown_tool",
]
CommandError = Literal["empty", "not_a_command", "too_long", "too_deep", "wrong_tool", "arguments"]


@dataclass(frozen=True, slots=True)
class NextStep:
    """A step that a planner chose. Sections that its prompt does not ask for are ""."""

    justification: str
    context: str
    sub_goal: str
    tool: Tool


@dataclass(frozen=True, slots=True)
class Malformed:
    """Why a text could not be read: a kind to count, and a sentence for its author."""

    kind: StepError | CommandError
    message: str


def read_step(text: str, tools: Toolbox, labels: Sequence[str]) -> NextStep | Malformed:
    """A planner's next step.

    Args:
        text: The turn, without special tokens.
        tools: What it can choose from.
        labels: The sections that the prompt asks for, in order; the last is `TOOL_NAME`.

    A label stands at the start of a line, before a colon, in any case, perhaps in bold, as a
    heading or numbered. Inside of a fence it is no label, unless one fence holds the whole text. Of
    several complete answers in one turn the last is taken: a label that starts the contract again
    drops what came before it.
    """
    body = after_thinking(text)
    if body is None:
        return Malformed("unfinished_thinking", "the thinking block was not closed")
    if not body.strip():
        return Malformed("empty", "the answer was empty")
    problem = Malformed("missing_section", f"the section {labels[0]} is missing")
    for candidate in (body, _inside_of_fence(body)):
        found = _last_answer(_labelled(candidate), labels[0])
        if not found:
            continue
        problem_here = _check_labels(found, labels)
        if problem_here is None:
            return _step(dict(found), tools)
        problem = problem_here
    return problem


_ALL_LABELS = {
    re.sub(r"[ _-]", "", label.lower()): label
    for label in (JUSTIFICATION, CONTEXT, SUB_GOAL, TOOL_NAME)
}
_LABEL_LINE = re.compile(
    r"^\s{0,3}(?:#{1,6}\s+|[-*]\s+|\d{1,2}[.)]\s+)?(?:\*\*|__)?"
    r"(justification|context|sub[ _-]?goal|tool[ _-]?name)"
    r"(?:(?:\*\*|__)\s*:|:\s*(?:\*\*|__)|\s*:)\s?(.*)$",
    re.IGNORECASE,
)


def _labelled(body: str) -> list[tuple[str, str]]:
    """Labels outside of fences, each with its text."""
    found: list[tuple[str, list[str]]] = []
    fence = ""
    for line in body.splitlines():
        fence, in_code = fence_after(fence, line)
        match = None if in_code else _LABEL_LINE.match(line)
        if match is not None:
            label = _ALL_LABELS[re.sub(r"[ _-]", "", match[1].lower())]
            fence, _ = fence_after(fence, match[2])
            found.append((label, [match[2]]))
        elif found:
            found[-1][1].append(line)
    return [(label, "\n".join(lines).strip()) for label, lines in found]


def _inside_of_fence(body: str) -> str:
    """The text without the fence around it; "" if there is none."""
    lines = body.strip().splitlines()
    first, last = FENCE.match(lines[0]), FENCE.match(lines[-1])
    if len(lines) < 3 or first is None or last is None or last[2].strip():
        return ""
    return "\n".join(lines[1:-1])


def _last_answer(found: list[tuple[str, str]], first: str) -> list[tuple[str, str]]:
    starts = [place for place, (label, _) in enumerate(found) if label == first]
    return found[starts[-1] :] if starts else found


def _check_labels(found: list[tuple[str, str]], labels: Sequence[str]) -> Malformed | None:
    order = ", ".join(labels)
    names = [label for label, _ in found]
    for label in labels:
        if label not in names:
            return Malformed("missing_section", f"the section {label} is missing, of {order}")
    for label in names:
        if names.count(label) > 1:
            return Malformed("repeated_section", f"the section {label} is there twice")
    asked = [label for label in names if label in labels]
    if asked != list(labels) or names[-1] != labels[-1]:
        return Malformed("wrong_order", f"the sections must be {order}, in this order")
    for label, text in found:
        if not _bare(text):
            return Malformed("empty_section", f"the section {label} is empty")
    return None


def _step(texts: Mapping[str, str], tools: Toolbox) -> NextStep | Malformed:
    tool = _tool(texts[TOOL_NAME], tools)
    if isinstance(tool, Malformed):
        return tool
    return NextStep(
        justification=texts.get(JUSTIFICATION, ""),
        context=texts.get(CONTEXT, ""),
        sub_goal=texts[SUB_GOAL],
        tool=tool,
    )


def _tool(text: str, tools: Toolbox) -> Tool | Malformed:
    first, *rest = text.strip().splitlines()
    known = ", ".join(tools.names)
    if any(line.strip() for line in rest):
        return Malformed("trailing_text", "nothing may follow the name of the tool")
    name = _bare(first)
    tool = tools.match(name)
    if tool is not None:
        return tool
    words = {word.strip("`*'\".") for word in re.split(r"[\s,;/&+]+", name.lower())}
    if len(words & set(tools.names)) > 1:
        return Malformed("several_tools", f"one step takes one tool, of {known}")
    return Malformed("unknown_tool", f"there is no tool {name[:80]!r}, only {known}")


def _bare(text: str) -> str:
    """Without the quotes, bold and full stop that a model may put around a name."""
    return text.strip().strip("`*_'\"").rstrip(".").strip("`*'\"").strip()


# Between the words stands no letter; at most one line ends there, so that time stays linear.
_CONCLUSION = re.compile(
    r"^[^\w\n]*conclusion(?:[^\w\n]*\n)?[^\w\n]*(stop|continue)\b[^\w\n]*$",
    re.IGNORECASE | re.MULTILINE,
)


def read_verdict(text: str) -> bool | None:
    """Whether a verifier says that nothing more is needed: its last line
    `Conclusion: STOP` or `Conclusion: CONTINUE`, None if no line is one."""
    body = after_thinking(text)
    found = _CONCLUSION.findall(body or "")
    return found[-1].lower() == "stop" if found else None


def read_command(text: str, tool: Tool) -> Mapping[str, Any] | Malformed:
    """An executor's command for `tool`: its arguments, checked against the tool's schema.

    The last fence that holds something, or the whole text, is a JSON object of the arguments, or
    one call `name(key=literal, ...)` of the tool's name or of `execute`.
    """
    body = (after_thinking(text) or "").strip()
    blocks = fenced(body)
    if blocks:
        body = next((code.strip() for _, code in reversed(blocks) if code.strip()), "")
    command = body
    if not command:
        return Malformed("empty", "there was no command")
    if len(command) > MAX_COMMAND_CHARACTERS:
        return Malformed(
            "too_long", f"{len(command)} characters, at most {MAX_COMMAND_CHARACTERS} are read"
        )
    given = _json_object(command) if command.startswith("{") else _call(command, tool.name)
    if isinstance(given, Malformed):
        return given
    if _is_deeper(given, MAX_COMMAND_DEPTH):
        return Malformed("too_deep", f"values may be nested {MAX_COMMAND_DEPTH} deep")
    return _checked(given, tool)


def _is_deeper(value: Any, limit: int) -> bool:
    layer = [value]
    for _ in range(limit):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, dict | list | tuple | set)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(layer)


def _json_object(command: str) -> dict[str, Any] | Malformed:
    try:
        given = json.loads(command, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Malformed("not_a_command", f"no valid JSON: {error}")
    return dict(given)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _call(command: str, name: str) -> dict[str, Any] | Malformed:
    try:
        # The compiler prints a line for each odd literal, however many there are.
        with warnings.catch_warnings(action="ignore"):
            node = ast.parse(command, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Malformed("not_a_command", f"neither a JSON object nor one call: {error}")
    if not isinstance(node, ast.Call):
        return Malformed("not_a_command", "neither a JSON object nor one call")
    called = node.func.attr if isinstance(node.func, ast.Attribute) else None
    if isinstance(node.func, ast.Name):
        called = node.func.id
    if called not in (name, "execute"):
        return Malformed("wrong_tool", f"the command must call {name}, it calls {called}")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return Malformed("arguments", "every argument needs its name, as in key=value")
    given: dict[str, Any] = {}
    for keyword in node.keywords:
        assert keyword.arg is not None
        try:
            given[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError, MemoryError):
            return Malformed("arguments", f"the value of {keyword.arg} is no literal")
    return given


def _checked(given: Mapping[str, Any], tool: Tool) -> Mapping[str, Any] | Malformed:
    try:
        return tool.Arguments.model_validate(dict(given)).model_dump(mode="json")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return Malformed("arguments", f"{where}: {first['msg']}")
