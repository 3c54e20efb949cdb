"""Messages whose text does not depend on what came before them, found by audit.

For a conversation of plain messages, a pair of neighbouring roles is standalone if the second
message always adds the same text around its content. `get_token_delta` then needs no render.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokendelta.audit import by_sign, guards_of
from tokendelta.findings import Literals, Transform
from tokendelta.prober import Prober
from tokendelta.probes import CONTENTS, FIRST, Messages, tool, user
from tokendelta.rendering import Renderer

PLAIN_KEYS = frozenset(("role", "content", "name", "tool_call_id"))
Pair = tuple[str, str]
_PAIRS: tuple[Pair, ...] = (
    ("assistant", "user"),
    ("assistant", "tool"),
    ("user", "assistant"),
    ("tool", "assistant"),
)


@dataclass(frozen=True, slots=True)
class Standalone:
    """Text around contents by (role before, role), and the generation prompt by role before.

    Of an assistant message the text is what follows the generation prompt.
    """

    pairs: dict[Pair, Literals]
    prompts: dict[str, str]
    guards_by_sign: tuple[tuple[str, tuple[str, ...]], ...]

    def plain(self, message: Any) -> bool:
        """Whether the template does nothing with the message but write it down."""
        if type(message) is not dict or not PLAIN_KEYS.issuperset(message):
            return False
        content = message.get("content")
        if type(content) is not str:
            return False
        for sign, guards in self.guards_by_sign:
            if sign in content and any(guard in content for guard in guards):
                return False
        return True


def find_standalone(tokenizer: Any) -> Standalone:
    """Audit the template as `get_token_delta` uses it: without tools and arguments."""
    prober = Prober(Renderer(tokenizer, {}))
    pairs: dict[Pair, Literals] = {}
    prompts: dict[str, str] = {}
    for before, role in _PAIRS:
        histories = _histories(before)
        prompt = _same([_prompt(prober, history) for history in histories])
        literals = _literals(prober, histories, role)
        if literals is not None and (role != "assistant" or prompt is not None):
            pairs[(before, role)] = literals
            if prompt is not None:
                prompts[before] = prompt
    template = tokenizer.chat_template
    return Standalone(pairs, prompts, by_sign(guards_of(template)))


def _message(role: str, text: str, number: int = 0) -> dict[str, Any]:
    if role == "tool":
        # Names and ids vary, for the text may not hold them.
        bare = {"role": "tool", "content": text}
        return [bare, tool(text), tool(text, 1, "find_user")][number % 3]
    return user(text) if role == "user" else {"role": "assistant", "content": text}


def _histories(last: str) -> list[Messages]:
    """Plain conversations whose last message has the role."""
    system = {"role": "system", "content": "You help."}
    opened = [user("Hello."), _message("assistant", "Yes?")]
    asked = [*opened, user("Where?"), _message("assistant", "call")]
    told = [*asked, tool("found"), _message("assistant", "There.")]
    bases = {
        "assistant": [opened, asked, told, [*told, user("Why?"), _message("assistant", "So.")]],
        "user": [[*opened, user("Where?")], [*told, user("Why?")], [user("Hello.")]],
        "tool": [[*asked, tool("found")], [*opened[:1], _message("assistant", "c"), tool("x")]],
    }[last]
    return [[*start, *base] for base in bases for start in ([], [system])]


def _prompt(prober: Prober, history: Messages) -> str | None:
    before = prober.render(history)
    after = prober.render(history, generation=True)
    if before is None or after is None or not after.startswith(before):
        return None
    return after[len(before) :]


def _same(values: Sequence[str | None]) -> str | None:
    """The value that all agree on. One that could not be rendered agrees with none."""
    return values[0] if len(set(values)) == 1 else None


def _added(prober: Prober, history: Messages, role: str, text: str, number: int) -> str:
    """What a message adds to a history, or a text that no other can equal."""
    before = prober.render(history, generation=role == "assistant")
    after = prober.render([*history, _message(role, text, number)])
    if before is None or after is None or not after.startswith(before):
        return f"nothing: {id(history)}"
    return after[len(before) :]


def _literals(prober: Prober, histories: list[Messages], role: str) -> Literals | None:
    seen = {
        _added(prober, history, role, FIRST, number)
        for history in histories
        for number in range(3 if role == "tool" else 1)
    }
    if len(seen) != 1:
        return None
    (text,) = seen
    if text.count(FIRST) != 1:
        return None
    left, right = text.split(FIRST)
    transforms: tuple[Transform, ...] = ("verbatim", "strip")
    for transform in transforms:
        literals = Literals(left, "", right, transform)
        if all(
            _added(prober, history, role, content, number) == literals.join([content])
            for content in CONTENTS
            for number, history in enumerate(histories)
        ):
            return literals
    return None
