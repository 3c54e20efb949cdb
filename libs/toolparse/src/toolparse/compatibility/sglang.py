"""`sglang` mode: the `(normal_text, calls)` that sglang 0.5.23 returns, for migration.

The text is read once, in linear time, by our own grammar; a profile per format says which
text sglang keeps, whether it keeps undeclared tools, how it numbers calls and spells
arguments. Where sglang loses a call, cuts or rewrites a value, executes a call that was
never finished, or raises, its behaviour is not copied; README.md lists those cases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from toolparse.driver.run import Run
from toolparse.driver.tools import ToolSet
from toolparse.grammars.channels import Messages
from toolparse.grammars.table import grammar_of
from toolparse.result.model import Call, Source

# (name, arguments as JSON text, tool index, block in bytes)
Item = tuple[str, str, int, tuple[int, int]]
View = tuple[str, list[Item]]


class Profile(NamedTuple):
    """text: what is kept of the content, one-shot; streamed: likewise for a stream.

    unknown: undeclared tools are kept; by_call: the index counts calls, not tools; raw: a
    stream gives the arguments as written; all_or_nothing: a fault makes all text content;
    repairs: faults that sglang does not mind; orphans: calls outside of a section run
    "always", "behind" the open tag of one, or "never"; unread: where no call was read, all
    text is content if the section was never "opened" or never "closed", or "always".
    """

    text: str = "stripped"
    streamed: str = "around"
    unknown: bool = False
    by_call: bool = False
    raw: bool = False
    all_or_nothing: bool = False
    compact: bool = False
    repairs: frozenset[str] = frozenset()
    orphans: str = "behind"
    unread: str = "opened"


_JSON_TAGS: Final = Profile("stripped", "line")
_QWEN3_CODER: Final = Profile(
    "before", "around", True, True,
    repairs=frozenset(("close_tag", "param_close", "stray_close")), orphans="never",
)  # fmt: skip
_DSML: Final = Profile("paragraph", "paragraph", orphans="always")

PROFILES: Final[dict[str, Profile]] = {
    "qwen": _JSON_TAGS,
    "qwen25": _JSON_TAGS,
    "trinity": _JSON_TAGS,
    "hermes": Profile("stripped", "around", all_or_nothing=True),
    "interns1": Profile("stripped", "before", unread="always"),
    "qwen3_coder": _QWEN3_CODER,
    "step3p5": _QWEN3_CODER,
    "nanbeige": _QWEN3_CODER,
    "mimo": Profile("before", orphans="never"),
    "dots": Profile(orphans="never"),
    "kimi_k2": Profile("before", "around", True, True, True),
    "kimi_k3": Profile("around", "around", True, True),
    "deepseekv3": Profile("stripped", "around", raw=True),
    "deepseekv31": Profile("stripped", "around", raw=True),
    "deepseekv32": _DSML,
    "deepseekv4": _DSML,
    "deepseekv41": _DSML,
    "gigachat35": Profile("newlines", "before", unread="always"),
    "gigachat3": Profile("before", "before", raw=True, all_or_nothing=True),
    "gemma4": Profile("before", "around", True, unread="always"),
    "inkling": Profile("around", "around", True, True),
    "glm47": Profile("around", unread="always"),
    "iquest_q1": Profile("around", by_call=True, unread="always"),
    "poolside_v1": Profile("before"),
    "spark25": Profile("around", by_call=True, compact=True, unread="always"),
    "minimax-m2": Profile("around", unread="closed"),
    "minimax-m3": Profile("around", by_call=True, all_or_nothing=True),
    "minicpm5": Profile("around", "before"),
    "pythonic": Profile("around", by_call=True),
    "lfm2": Profile("stripped", "around", by_call=True),
    "step3": Profile("around", unread="closed"),
    "mistral": Profile("joined"),
    "cohere_command4": Profile("before"),
    "llama3": Profile("trimmed"),
    "apertus2509": Profile("stripped", by_call=True, unread="always"),
    "k2_horizon": Profile("around", by_call=True, unread="always"),
    "muse": Profile("around", by_call=True),
    "beam": Profile("around", by_call=True),
    "gpt-oss": Profile("around", by_call=True),
}
_DEFAULT: Final = Profile()

_KIMI_TOKENS: Final = re.compile(
    r"<\|tool_calls?_section_(?:begin|end)\|>|<\|tool_call_(?:begin|end|argument_begin)\|>"
)
_PAIR: Final = re.compile(
    r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)(</arg_value>|\Z)", re.DOTALL
)
_M3_PAIR: Final = re.compile(r"\]<\]minimax\[>\[<([^</>= ]+)>((?:(?!\]<\]minimax).)*)", re.DOTALL)
_SELF_CLOSED: Final = re.compile(r'"[ \t]*/>')
_UNREAD: Final = ("bad_json", "unclosed", "too_deep", "too_long")
_NULL_WORDS: Final = frozenset(("null", "none", "nil"))


def view(format: str, source: Source, toolset: ToolSet, streamed: bool) -> tuple[Run, View]:
    """The run, and what sglang returns for it."""
    text = source.text
    run = Run(grammar_of(format), source, toolset, True, None)
    run.advance(True)
    if format == "inkling":
        return run, _inkling(text, streamed)
    profile = PROFILES.get(format, _DEFAULT)
    items: list[Item] = []
    dropped: list[Call] = []
    opened = run.data.find(run.grammar.openers[0])
    for call in run.attempts:
        behind = 0 <= opened < call.byte_span[0]
        spelled = None
        if _taken(profile, call, behind, streamed):
            spelled = _arguments(format, profile, call, toolset, streamed)
        if spelled is None:
            dropped.append(call)
            continue
        name = call.name or ""
        position = len(items) if profile.by_call else toolset.positions.get(name, -1)
        items.append((name, spelled, position, call.byte_span))
    faulty = any(c.repairs or c.status not in ("ok", "unknown_tool") for c in dropped)
    if profile.all_or_nothing and not streamed and faulty:
        unread = all(c.status in _UNREAD for c in dropped)
        if unread or format != "gigachat3":
            return run, (text, [])
    if format in ("qwen", "qwen25") and not items and "<tool_call>\n" not in text:
        return run, (text, [])
    if not items and not streamed and _all_content(profile, run, text, dropped):
        return run, (text.strip() if format == "apertus2509" else text, [])
    kept = dropped if format in ("minicpm5", "mimo") else []
    rule = profile.streamed if streamed else profile.text
    return run, (_content(format, run, rule, kept), items)


def _arguments(
    format: str, profile: Profile, call: Call, toolset: ToolSet, streamed: bool
) -> str | None:
    """The arguments of a call as sglang spells them; None where it drops the call."""
    status, known = call.status, call.name in toolset
    if call.name is None or not (known or profile.unknown):
        return None
    if _foreign(format, call):
        return None
    if status == "unclosed":
        return _partial(format, call.raw) if streamed else None
    if status == "bad_json" and streamed and format == "kimi_k2":
        return call.raw.partition("<|tool_call_argument_begin|>")[2].removesuffix(
            "<|tool_call_end|>"
        )
    if status == "malformed_tag" and format == "poolside_v1":
        pairs = {key: value for key, value, closed in _PAIR.findall(call.raw) if closed}
        return json.dumps(_glm_values(call.name, pairs, toolset), ensure_ascii=False)
    if status not in ("ok", "bad_param_type", "unknown_tool") or call.arguments is None:
        return None
    arguments = dict(call.arguments)
    if format == "gigachat3" and call.raw_arguments is None:
        return None
    if format == "minicpm5" and not _declared(call, toolset):
        return None
    if profile.raw and streamed and call.raw_arguments is not None:
        return call.raw_arguments
    fix = _VALUES.get(format)
    if fix is not None:
        arguments = fix(call.name, arguments, toolset)
    separators = (",", ":") if profile.compact else None
    return json.dumps(arguments, ensure_ascii=False, separators=separators)


def _all_content(profile: Profile, run: Run, text: str, dropped: list[Call]) -> bool:
    """Whether a text in which no call was read is content, markup and all."""
    grammar = run.grammar
    shape = getattr(grammar, "shape", None)
    section = bool(shape.section_open) if shape else bool(getattr(grammar, "section_open", ()))
    openers = grammar.openers[:1] if section else grammar.openers
    headed = isinstance(grammar, Messages) or not grammar.uniform
    if not headed and not any(opener.decode() in text for opener in openers):
        return True
    if profile.unread == "closed":
        return shape is not None and shape.section_close.decode() not in text
    refused = any(call.status == "unknown_tool" for call in dropped)
    return profile.unread == "always" and bool(dropped) and not refused


def _foreign(format: str, call: Call) -> bool:
    """Whether a call is written in a form that sglang does not know for the format."""
    if format == "interns1":
        return not call.raw.startswith("<|action_start|> <|plugin|>")
    closed = call.raw_arguments is None and _SELF_CLOSED.search(call.raw) is not None
    return closed and format not in ("deepseekv32", "deepseekv4", "deepseekv41")


def _taken(profile: Profile, call: Call, behind: bool, streamed: bool) -> bool:
    """Whether sglang executes a call in spite of what had to be repaired."""
    others = set(call.repairs) - {"open_tag", "wrapper_spelling"} - profile.repairs
    if others or streamed or not call.repairs:
        return not others
    if not set(call.repairs) - profile.repairs:
        return True
    if profile.orphans == "behind":
        return behind
    return profile.orphans == "always"


def _declared(call: Call, toolset: ToolSet) -> bool:
    """Whether every argument is declared and given once."""
    tool = toolset.tool(call.name)
    return (
        tool is not None
        and "last_wins" not in call.repairs
        and all(key in tool.types for key in call.arguments or ())
    )


def _qwen3_values(name: str, arguments: dict[str, Any], toolset: ToolSet) -> dict[str, Any]:
    """The word null is null for every type."""
    return {
        key: None if isinstance(value, str) and value.lower() == "null" else value
        for key, value in arguments.items()
    }


def _minimax_values(name: str, arguments: dict[str, Any], toolset: ToolSet) -> dict[str, Any]:
    return {
        key: None if isinstance(value, str) and value.lower() in _NULL_WORDS else value
        for key, value in arguments.items()
    }


def _glm_values(name: str, arguments: dict[str, Any], toolset: ToolSet) -> dict[str, Any]:
    """An undeclared argument that reads as JSON is JSON; so is one of a declared type."""
    tool = toolset.tool(name)
    result: dict[str, Any] = {}
    for key, value in arguments.items():
        declared = tool is not None and key in tool.types
        if isinstance(value, str) and tool is not None:
            try:
                value = tool.value(key, value)[0] if declared else json.loads(value)
            except (ValueError, RecursionError):
                pass
        result[key] = value
    return result


_VALUES: Final[dict[str, Callable[[str, dict[str, Any], ToolSet], dict[str, Any]]]] = {
    "qwen3_coder": _qwen3_values,
    "step3p5": _qwen3_values,
    "nanbeige": _qwen3_values,
    "minimax-m2": _minimax_values,
    "glm45": _glm_values,
    "glm": _glm_values,
    "ling3": _glm_values,
    "glm47": _glm_values,
    "iquest_q1": _glm_values,
    "poolside_v1": _glm_values,
}


def _partial(format: str, raw: str) -> str | None:
    """The arguments that a stream had given out when the call was cut off."""
    if format == "kimi_k2":
        return raw.partition("<|tool_call_argument_begin|>")[2]
    if format == "gigachat3":
        found = re.search(r'"arguments"\s*:\s*', raw)
        return raw[found.end() :] if found else None
    if format in ("glm45", "glm", "glm47", "minimax-m3"):
        pattern = _M3_PAIR if format == "minimax-m3" else _PAIR
        pairs = list(pattern.finditer(raw))
        if not pairs:
            return None
        spelled = ", ".join(
            f"{json.dumps(m.group(1), ensure_ascii=False)}: "
            f"{json.dumps(m.group(2), ensure_ascii=False)}"
            for m in pairs
        )
        return "{" + spelled[:-1]
    return None


def _content(format: str, run: Run, rule: str, kept: list[Call]) -> str:
    """What sglang keeps of the text."""
    left_out = {call.index for call in kept}
    blocks = [call for call in run.attempts if call.index not in left_out]
    taken = [call.byte_span for call in blocks] + run.markup
    taken = sorted(taken + run.reasoning if format == "gpt-oss" else taken)
    data = run.data
    end = run.cut if run.cut >= 0 and format == "gigachat3" else len(data)
    pieces: list[str] = []
    pos = 0
    for start, stop in taken:
        if start > pos:
            pieces.append(data[pos:start].decode())
        pos = max(pos, stop)
    pieces.append(data[pos:end].decode())
    text = "".join(pieces)
    if format == "kimi_k2" and rule == "around":
        text = _KIMI_TOKENS.sub("", text)
    if not blocks:
        return text
    before = data[: taken[0][0]].decode()
    if rule == "stripped":
        return before.strip()
    if rule == "before":
        return before
    if rule == "line":
        return before.removesuffix("\n")
    if rule == "paragraph":
        return before.removesuffix("\n\n")
    if rule == "joined":
        return " ".join(stripped for piece in pieces if (stripped := piece.strip()))
    if rule == "newlines":
        return before.rstrip("\n")
    return before + text[len(before) :].strip() if rule == "trimmed" else text


_INKLING_MARK: Final = re.compile(r"<\|(?:message_model|content_[a-z_]+|end_message)\|>")
_INKLING_CALL: Final = "<|content_invoke_tool_json|>"


def _inkling(text: str, streamed: bool) -> View:
    """Inkling: a message whose JSON does not read makes all text content."""
    items: list[Item] = []
    content: list[str] = []
    pos = 0
    whole = (0, len(text.encode("utf-8", "replace")))
    while pos < len(text):
        end = text.find("<|end_message|>", pos)
        stop = len(text) if end < 0 else end
        message = text[pos:stop]
        after = stop + len("<|end_message|>")
        mark = message.rfind(_INKLING_CALL)
        if mark < 0:
            if "<|content_invoke_tool_text|>" in message:
                spoken = message.partition("<|content_invoke_tool_text|>")[2]
                items.append(
                    ("", json.dumps({"text": spoken}, ensure_ascii=False), len(items), whole)
                )
            else:
                content.append(_INKLING_MARK.sub("", message))
            pos = after
            continue
        try:
            found = json.loads(message[mark + len(_INKLING_CALL) :])
            name, arguments = found["name"], found.get("args", {})
            if not isinstance(name, str):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if end < 0:
                break
            if not streamed:
                return _INKLING_MARK.sub("", text), []
            broken = message[mark + len(_INKLING_CALL) :]
            content.append(broken + _INKLING_MARK.sub("", text[after:]))
            break
        head = (
            message[: message.find("<|message_model|>")] if "<|message_model|>" in message else ""
        )
        content.append(head)
        items.append((name, json.dumps(arguments, ensure_ascii=False), len(items), whole))
        pos = after
    return "".join(content), items
