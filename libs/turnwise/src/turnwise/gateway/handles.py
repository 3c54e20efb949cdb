"""Names of turns and calls that a client sends back, and that nobody else can make.

They stand where each dialect has something opaque: ids of calls, of items, of answers, signatures
of reasoning. A name that comes back tells a turn from others that say the same. A forged one, or
one of another rollout, is no turn's: what it is attached to is text from outside.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any

_FORM = re.compile(r"(?:[a-z]+_)?([0-9a-f]{1,8}(?:_[0-9a-f]{1,8})?)_([0-9a-f]{16})")


class Handles:
    """Makes and checks the names of one rollout."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, name: str) -> str:
        """`name` with a code that needs the key."""
        return f"{name}_{self._code(name)}"

    def forged(self, message: Mapping[str, Any]) -> bool:
        """Whether a message holds a name of this form that was not made here."""
        named = [call.get("id", "") for call in message.get("tool_calls") or ()]
        named += [message.get("tool_call_id", ""), *message.get("handle", "").split()]
        for one in named:
            found = _FORM.fullmatch(one)
            if found and not hmac.compare_digest(self._code(found[1]), found[2]):
                return True
        return False

    def _code(self, name: str) -> str:
        return hmac.digest(self._key, name.encode(), "sha256").hex()[:16]


def attach(message: dict[str, Any], handle: str) -> None:
    """Notes the name that one part of a turn came back with. Parts of different turns make a name
    that is no turn's."""
    known = message.get("handle", handle)
    message["handle"] = handle if known == handle else f"{known} {handle}"


def of_item(item_id: Any) -> str:
    """The name in an item's id; "" where the client has made up an id of its own."""
    if not isinstance(item_id, str) or not _FORM.fullmatch(item_id):
        return ""
    return item_id.partition("_")[2]
