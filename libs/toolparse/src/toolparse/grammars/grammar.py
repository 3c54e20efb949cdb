"""What a format is made of, and what a grammar says of an attempt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from toolparse.result.model import Parsed, Source
from toolparse.scan.find import find_any

if TYPE_CHECKING:
    from toolparse.driver.run import Run
    from toolparse.driver.tools import ToolSet

NEED_MORE: Final = -1
# `Grammar.find` cannot tell yet.
WAIT: Final = -2

STOP_TOKENS: Final = (
    b"<|im_end|>",
    b"<|endoftext|>",
    b"<|eot_id|>",
    b"<|eom_id|>",
    b"</s>",
    b"<|end_of_text|>",
    b"<|eot|>",
    b"<|return|>",
    b"<|end|>",
    b"<eos>",
    b"<end_of_turn>",
    b"<turn|>",
    b"<|user|>",
    b"<|observation|>",
    b"[e~[",
    b"<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>".encode(),
)
LONGEST_STOP: Final = max(map(len, STOP_TOKENS))
LAST_BYTES: Final = frozenset(token[-1] for token in STOP_TOKENS)
SPACE: Final = b" \t\r\n"

Span = tuple[int, int]
# A call to be written: name and arguments.
Written = tuple[str, Mapping[str, Any]]


def skip_space(data: bytes | bytearray, pos: int, n: int) -> int:
    """The offset of the next byte that is no JSON white space."""
    while pos < n and data[pos] in SPACE:
        pos += 1
    return pos


class Grammar:
    """What a format is made of. Offsets are bytes.

    openers: what may begin a block, longest first; think: open and close tag.
    """

    openers: tuple[bytes, ...] = ()
    think: tuple[bytes, bytes] | None = (b"<think>", b"</think>")
    stops: tuple[bytes, ...] = STOP_TOKENS
    # Whether blocks begin with an opener and nothing else, but for the start of the text.
    uniform = True

    def __init__(self) -> None:
        self.markers = self.openers + (self.think or ())
        self.longest = max(map(len, self.markers), default=1)
        # The byte with which all markers begin, empty where they differ: a stream skips
        # text without it.
        firsts = {marker[:1] for marker in self.markers}
        self.first_byte = firsts.pop() if len(firsts) == 1 and self.uniform else b""

    def thinks_between(self, tags: tuple[bytes, bytes]) -> None:
        """Sets the tags around the reasoning."""
        self.think = tags
        Grammar.__init__(self)

    def find(self, run: Run, pos: int, n: int, final: bool) -> tuple[int, int]:
        """The next opener or think tag as (offset, index in `markers`), or (-1, -1)."""
        return find_any(run.data, pos, n, self.markers)

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        """Reads the block at `at`, adds its attempts, gives the offset after it or NEED_MORE."""
        raise NotImplementedError

    def within(self, run: Run, pos: int, n: int, final: bool) -> int:
        """Goes on inside a section that `block` has opened (`run.inside`)."""
        raise NotImplementedError

    def fast(self, source: Source, tools: ToolSet | None, thinking: bool) -> Parsed | None:
        """The result for a text without a fault, where a fast path knows the format."""
        return None

    def write(self, calls: Sequence[Written]) -> str:
        """The text that the chat template writes for these calls."""
        raise NotImplementedError

    def spell(self, arguments: Mapping[str, Any]) -> str:
        """The arguments as they stand inside the text of `write`."""
        return json.dumps(arguments, ensure_ascii=False)


class Fault:
    """What is wrong with an attempt, before it becomes an `Error`."""

    __slots__ = ("detail", "kind", "offset", "param")

    def __init__(
        self, kind: str, offset: int, detail: str | None = None, param: str | None = None
    ) -> None:
        self.kind = kind
        self.offset = offset
        self.detail = detail
        self.param = param


class Repaired:
    """What `lenient` mode makes of a faulty attempt."""

    __slots__ = ("arguments", "name", "names")

    def __init__(self, name: str, arguments: Any, names: tuple[str, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.names = names
