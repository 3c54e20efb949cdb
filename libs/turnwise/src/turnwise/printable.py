"""Text from outside, made harmless for terminals and logs, or short enough for a prompt."""

from __future__ import annotations

import re
from typing import TextIO

# C0 and C1 controls (an escape sequence begins with one), line and paragraph separators, and what
# reorders or hides the text around it: Unicode TR 36, section 3.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """`text` with each control and formatting character as its escape, such as `\\x1b`.

    Line feeds and tabs stay; the result can be encoded as UTF-8. Doing it twice changes nothing.
    """
    return _HARMFUL.sub(lambda found: _escaped(ord(found[0])), text)


def tell(text: str, out: TextIO | None = None) -> None:
    """Prints text in which names of tasks, models or files stand: no terminal obeys them.

    Args:
        out: Where to; stdout if None.
    """
    print(printable(text), file=out, flush=True)


def one_line(text: str, limit: int) -> str:
    """The first `limit` characters of `text` on one line, printable."""
    # More than `limit` is looked at, since white space is joined; the rest of a megabyte is not.
    return printable(" ".join(text[: 8 * limit].split()))[:limit]


def cut_middle(text: str, limit: int) -> str:
    """`text` in at most `limit` characters: where it is longer, its middle gives way to a note.

    Raises:
        ValueError: `limit` is below 1.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, found {limit}")
    if len(text) <= limit:
        return text
    note = f" [... {len(text)} characters in all ...] "
    kept = limit - len(note)
    if kept < 2:
        return text[:limit]
    head = (kept + 1) // 2
    return text[:head] + note + text[len(text) - (kept - head) :]


def _escaped(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
