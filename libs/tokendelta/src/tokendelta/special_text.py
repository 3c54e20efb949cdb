"""What is done with text of the environment that spells a special token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tokendelta.errors import SpecialTextError
from tokendelta.probes import Messages

if TYPE_CHECKING:
    from tokendelta.encoding import SpecialTokens
    from tokendelta.state import Record


def by_policy(record: Record, messages: Messages, turn: int) -> Messages:
    """The messages by the policy of the record, which speaks of user and tool messages alone.

    Raises SpecialTextError with the message and the character where it is `reject`.
    """
    if record.specials == "parity":
        return messages
    specials, escape = record.profile.specials, record.specials == "escape"
    result = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if message["role"] in ("user", "tool") and content:
            where = f"turn {turn}: message {index}"
            if isinstance(content, str):
                message = {**message, "content": _allowed(specials, content, escape, where)}
            else:
                parts = [
                    {**part, "text": _allowed(specials, part["text"], escape, where)}
                    if isinstance(part, Mapping) and isinstance(part.get("text"), str)
                    else part
                    for part in content
                ]
                message = {**message, "content": parts}
        result.append(message)
    return result


def _allowed(specials: SpecialTokens, text: str, escape: bool, where: str) -> str:
    match = specials.spelled(text)
    if match is None:
        return text
    if not escape:
        raise SpecialTextError(
            f"{where} spells the special token {match.group()!r} at character"
            f' {match.start()}; change the text, or take specials="escape"'
        )
    return specials.broken(text)
