"""Thinking blocks and fences in what a model wrote."""

from __future__ import annotations

import re

FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})\s*(.*)$")


def after_thinking(text: str) -> str | None:
    """What follows the last closed thinking block; None if a block was opened and not closed."""
    head, closed, rest = text.rpartition("</think>")
    body = rest if closed else text
    return None if "<think>" in body else body


def fence_after(fence: str, line: str) -> tuple[str, bool]:
    """The fence that is open after the line, and whether the line belongs to one."""
    match = FENCE.match(line)
    if match is None:
        return fence, bool(fence)
    if not fence:
        return match[1], True
    closes = match[1][0] == fence[0] and len(match[1]) >= len(fence) and not match[2].strip()
    return ("" if closes else fence), True


def fenced(text: str) -> list[tuple[str, str]]:
    """The closed fences of a text in order: what follows the opening marks, and the inside."""
    blocks: list[tuple[str, str]] = []
    fence, info, lines = "", "", list[str]()
    for line in text.splitlines():
        match = FENCE.match(line)
        before = fence
        fence, _ = fence_after(fence, line)
        if not before and fence:
            assert match is not None
            info, lines = match[2].strip().lower(), []
        elif before and not fence:
            blocks.append((info, "\n".join(lines)))
        elif fence:
            lines.append(line)
    return blocks


def read_code(text: str) -> str | None:
    """The last Python fence of a coder's answer; without one the last fence that names no
    language; None without either, or if it is blank."""
    body = after_thinking(text)
    blocks = fenced(body or "")
    for wanted in (("python", "py", "python3"), ("",)):
        for info, code in reversed(blocks):
            if info in wanted:
                return code if code.strip() else None
    return None
