"""What a format is made of, and what a grammar says of an attempt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
    b"<|eom|>",
    b"<|eos|>",
    b"<|EOT|>",
    b"<|flush|>",
    b"<|role_end|>",
    b"<|message_sep|>",
    b"<|endofresponse|>",
    b"<|assistant_end|>",
    b"<|end_of_sentence|>",
    b"<|end_of_msg|>",
    b"<|content_model_end_sampling|>",
    # After calls the templates of Gemma go on with these, on which generation stops.
    b"<|tool_response>",
    b"<start_function_response>",
)
LONGEST_STOP: Final = max(map(len, STOP_TOKENS))
# Every stop token ends with one of these.
LAST_BYTES: Final = b">["
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

    openers: what may begin a block, longest first; think: the pairs of tags around reasoning;
    texts: tags around visible text, which are no content. The table of formats names the
    latter two. stops: the stop tokens.
    """

    openers: tuple[bytes, ...] = ()
    think: tuple[tuple[bytes, bytes], ...] = ()
    texts: tuple[bytes, ...] = ()
    stops: tuple[bytes, ...] = STOP_TOKENS
    # Whether blocks begin with an opener and nothing else, but for the start of the text.
    uniform = True
    # Whether the template itself writes calls into reasoning that has not ended.
    calls_in_thought = False

    def __init__(self) -> None:
        # A think tag may begin with an opener, so it is looked for first.
        self.think_opens = tuple(pair[0] for pair in self.think)
        self.think_closes = tuple(pair[1] for pair in self.think)
        self.markers = self.think_opens + self.think_closes + self.texts + self.openers
        self.first_opener = len(self.markers) - len(self.openers)
        self.longest = max(map(len, self.markers), default=1)
        # The byte with which all markers begin, empty where they differ: a stream skips
        # text without it.
        firsts = {marker[:1] for marker in self.markers}
        self.first_byte = firsts.pop() if len(firsts) == 1 and self.uniform else b""

    def framed(
        self,
        think: tuple[tuple[bytes, bytes], ...],
        texts: tuple[bytes, ...] = (),
        stops: tuple[bytes, ...] = (),
    ) -> None:
        """Sets the tags around reasoning and visible text, and further stop tokens."""
        self.think = think
        self.texts = texts
        self.stops = (*type(self).stops, *stops)
        Grammar.__init__(self)

    def find(self, run: Run, pos: int, n: int, final: bool) -> tuple[int, int]:
        """The next marker as (offset, index in `markers`), or (-1, -1)."""
        return find_any(run.data, pos, n, self.markers)

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        """Whether a call begins at the opener data[at:n]; None where more text would tell."""
        return True

    def ahead(
        self, run: Run, start: int, offset: int, n: int, final: bool, closes: tuple[bytes, ...]
    ) -> tuple[int, int]:
        """What ends a block with a fault: (offset, index in `closes`); (offset, -1) the next
        place where a call begins, or a tag around reasoning or visible text; (-1, -1)
        nothing; (WAIT, -1) that depends on text to come.

        Looks from `start` on; close tags and tags around text count from `offset` on, the
        place of the fault, for before it they stand in what was read.
        """
        known = run.ahead.get(closes)
        if known is not None and known.holds(start, offset, n, final):
            return known.found
        found = self.looked_ahead(run, start, offset, n, final, closes)
        if found[0] != WAIT:
            run.ahead[closes] = Ahead(start, offset, n, final, found)
        return found

    def looked_ahead(
        self, run: Run, start: int, offset: int, n: int, final: bool, closes: tuple[bytes, ...]
    ) -> tuple[int, int]:
        """`ahead`, by looking."""
        data = run.data
        # The format may have more grammars than the one whose block this is.
        whole = run.grammar
        marks = closes + whole.markers
        frame = len(closes) + whole.first_opener
        pos = start
        while True:
            at, which = find_any(data, pos, n, marks)
            if at < 0:
                return (-1, -1) if final else (WAIT, -1)
            if which < len(closes):
                if at >= offset:
                    return at, which
            elif which < frame:
                if at >= offset and run.thinks:
                    return at, -1
            else:
                begins = whole.begins(data, at, n)
                if begins or (begins is None and not final):
                    return (at if begins else WAIT), -1
            pos = at + 1

    def mention(self, run: Run, pos: int, n: int, final: bool, closes: tuple[bytes, ...]) -> int:
        """Where content goes on after an opener that is talked about: with no call behind it,
        and the next call or tag before any close tag. 0 where it is a block; NEED_MORE."""
        found, which = self.ahead(run, pos, pos, n, final, closes)
        if found == WAIT:
            run.wait = closes[0] if closes else None
            return NEED_MORE
        return found if found > 0 and which < 0 else 0

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


class Ahead(NamedTuple):
    """What `Grammar.ahead` found, so that no text is looked through from each of its openers."""

    start: int
    offset: int
    n: int
    final: bool
    found: tuple[int, int]

    def holds(self, start: int, offset: int, n: int, final: bool) -> bool:
        """Whether a look from there finds the same."""
        at = self.found[0]
        return (
            (n, final) == (self.n, self.final)
            and self.start <= start
            and self.offset <= offset
            and (at < 0 or max(start, offset) <= at)
        )


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
