"""The driver that all formats share: text in, attempts out.

1. Content is searched for the grammar's openers and for the think tags.
2. At an opener the grammar reads one block and gives the offset after it, or
   `NEED_MORE` where that depends on text that has not arrived yet. A decision never
   depends on how the text was cut, so a stream gives the one-shot result.
3. Reasoning. A think block open at the start (by the prompt, or by the text itself)
   runs to the first close tag; a later one counts where it is closed. A close tag
   with no open one before it, before any executable call, means that the prompt had
   opened the block. Calls inside are reported as `in_reasoning`. A block that never closes runs
   to the end in `strict` mode; `lenient` closes it at the first opener.
4. Stop tokens at the very end are neither content nor part of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from toolparse.driver.tools import misfit
from toolparse.grammars.grammar import (
    LAST_BYTES,
    LONGEST_STOP,
    SPACE,
    WAIT,
    Ahead,
    Fault,
    Grammar,
    Repaired,
    Span,
)
from toolparse.result.messages import message
from toolparse.result.model import Call, Error, Parsed, Source
from toolparse.scan.find import find_any
from toolparse.scan.pairs import begun

if TYPE_CHECKING:
    from toolparse.driver.tools import ToolSet
    from toolparse.scan.pairs import Quiet

# The nearest tool name is looked for in so many errors of a text.
_HINTS: Final = 16


class Run:
    """The state of one parse."""

    __slots__ = (
        "ahead",
        "attempts",
        "begins",
        "blank",
        "choice",
        "cut",
        "data",
        "errors",
        "executable",
        "given",
        "grammar",
        "implicit",
        "in_think",
        "max_calls",
        "special",
        "validate",
        "inside",
        "lenient",
        "looks",
        "markup",
        "pos",
        "never_closed",
        "quiet",
        "reasoning",
        "section",
        "section_calls",
        "source",
        "think_closes",
        "think_from",
        "thinks",
        "tools",
        "wait",
    )

    def __init__(
        self,
        grammar: Grammar,
        source: Source,
        tools: ToolSet | None,
        lenient: bool,
        thinking: bool | None,
        *,
        special: Collection[int] | None = None,
        max_calls: int | None = None,
        validate: bool = False,
    ) -> None:
        self.grammar = grammar
        self.source = source
        self.data = source.data
        self.tools = tools
        self.lenient = lenient
        self.special = special
        self.max_calls = max_calls
        self.validate = validate
        self.pos = 0
        # What `Grammar.ahead` found last, by close tags.
        self.ahead: dict[tuple[bytes, ...], Ahead] = {}
        # What `scan_call` left for the next call.
        self.quiet: Quiet = {}
        # Where the white space that was walked over last begins and ends.
        self.blank: Span = (0, 0)
        self.attempts: list[Call] = []
        self.errors: list[Error] = []
        self.executable = 0
        # How many attempts a stream has looked at.
        self.given = 0
        self.reasoning: list[Span] = []
        self.markup: list[Span] = []
        self.cut = -1
        # How often the text to the end was looked at again.
        self.looks = 0
        self.wait: bytes | None = None
        # Without reasoning rules the think tags are plain text.
        self.thinks = thinking is not None and bool(grammar.think)
        self.in_think = bool(thinking) and self.thinks
        self.think_from = 0
        # What ends the open think block; a prompt may have opened any kind of it.
        self.think_closes = grammar.think_closes
        self.implicit = False
        self.never_closed: set[bytes] = set()
        # Where the text begins, after a think block.
        self.begins = 0
        self.choice: Grammar | None = None
        # A section that holds several calls is read call by call.
        self.inside = False
        self.section = 0
        self.section_calls = 0

    def advance(self, final: bool) -> None:
        """Reads as far as the text so far allows; with `final`, to the end."""
        grammar = self.grammar
        n = self.stop_start(len(self.data) if final else self.held())
        if final:
            self.cut = n if n < len(self.data) else -1
        if self.pos == 0 and not self.in_think and not self.open_at_start(n, final):
            return
        while self.pos < n or (final and (self.in_think or self.inside)):
            if self.in_think:
                if not self.through_think(n, final):
                    return
                continue
            if self.inside:
                after = grammar.within(self, self.pos, n, final)
                if after < 0:
                    return
                self.pos = after
                continue
            at, which = grammar.find(self, self.pos, n, final)
            if at == WAIT:
                return
            if at < 0:
                self.pos = n if final else max(self.pos, n - grammar.longest + 1)
                return
            if self.special is not None and at not in self.special:
                # Typed as ordinary tokens: it looks like a marker and is content.
                self.pos = at + 1
                continue
            if which < grammar.first_opener:
                if not self.frame_tag(at, which, n, final):
                    return
                continue
            after = grammar.block(self, at, n, final)
            if after < 0:
                self.pos = at
                return
            self.pos = after

    def at_start(self, at: int) -> bool:
        """Whether only white space and reasoning stand before `at`."""
        end = self.before_space(at)
        return end == 0 or end == self.begins

    def before_space(self, end: int) -> int:
        """The end of what stands before the white space that ends at `end`."""
        data = self.data
        start, stop = self.blank
        at = end
        while at and data[at - 1] in SPACE:
            if start < at <= stop:
                at = start
            else:
                at -= 1
        self.blank = (at, end)
        return at

    def held(self) -> int:
        """The end of the text without a tail that may become a stop token."""
        data = self.data
        n = len(data)
        start = max(data.rfind(b"<", max(0, n - LONGEST_STOP)), data.rfind(b"[", max(0, n - 4)))
        if start >= 0:
            tail = bytes(data[start:])
            if any(token.startswith(tail) for token in self.grammar.stops):
                return start
        return n

    def stop_start(self, end: int) -> int:
        """Where the stop tokens before `end` begin, with nothing but white space behind."""
        data = self.data
        n = end
        while True:
            end = self.before_space(end)
            if not end or data[end - 1] not in LAST_BYTES:
                break
            token = next((t for t in self.grammar.stops if data.endswith(t, 0, end)), None)
            if token is None:
                break
            end -= len(token)
            n = end
        return n

    def open_at_start(self, n: int, final: bool) -> bool:
        """Looks for a think tag before anything else; False where more text is needed."""
        grammar = self.grammar
        if not self.thinks:
            return True
        data = self.data
        start = 0
        while start < n and data[start] in SPACE:
            start += 1
        for open_tag, close_tag in grammar.think:
            if data.startswith(open_tag, start, n):
                self.markup.append((start, start + len(open_tag)))
                self.pos = self.think_from = start + len(open_tag)
                self.in_think, self.think_closes = True, (close_tag,)
                return True
            if not final and begun(open_tag, data, start, n):
                return False
        return True

    def through_think(self, n: int, final: bool) -> bool:
        """Inside a think block; False where its end has not arrived."""
        tags = self.think_closes
        end, which = find_any(self.data, max(self.pos, self.think_from), n, tags)
        if end < 0 and not final:
            self.pos = max(self.think_from, n - max(map(len, tags)) + 1)
            return False
        self.in_think = False
        if end >= 0:
            self.reasoned(self.think_from, end)
            self.markup.append((end, end + len(tags[which])))
            self.pos = self.begins = end + len(tags[which])
            return True
        if (self.lenient or self.grammar.calls_in_thought) and self.closed_by_call(n):
            return True
        self.reasoned(self.think_from, n)
        self.pos = n
        return True

    def closed_by_call(self, n: int) -> bool:
        """Reads on from the first executable call in a think block that never closes."""
        grammar = self.grammar
        pos = self.think_from
        marks = (len(self.attempts), len(self.errors), len(self.markup), self.executable)
        self.implicit = not grammar.calls_in_thought
        while pos < n:
            at, which = grammar.find(self, pos, n, True)
            if at < 0:
                break
            if which < grammar.first_opener:
                pos = at + 1
                continue
            pos = max(grammar.block(self, at, n, True), at + 1)
            while self.inside:
                pos = grammar.within(self, pos, n, True)
            if self.executable > marks[3]:
                self.reasoning.append((self.think_from, at))
                self.pos = pos
                return True
            del self.attempts[marks[0] :], self.errors[marks[1] :], self.markup[marks[2] :]
        self.implicit = False
        return False

    def reasoned(self, start: int, end: int) -> None:
        """Notes a think block and reports the calls inside it."""
        self.reasoning.append((start, end))
        grammar = self.grammar
        pos = start
        inside, self.in_think = self.in_think, True
        markup = len(self.markup)
        while pos < end:
            at, which = grammar.find(self, pos, end, True)
            if at < 0:
                break
            if which < grammar.first_opener:
                pos = at + 1
                continue
            pos = max(grammar.block(self, at, end, True), at + 1)
            while self.inside:
                pos = grammar.within(self, pos, end, True)
        del self.markup[markup:]
        self.in_think = inside

    def frame_tag(self, at: int, which: int, n: int, final: bool) -> bool:
        """A think tag or a text tag in content; False where more text is needed."""
        grammar = self.grammar
        pairs = len(grammar.think)
        if which >= 2 * pairs:
            self.pos = at + len(grammar.markers[which])
            self.markup.append((at, self.pos))
            return True
        if not self.thinks:
            self.pos = at + 1
            return True
        open_tag, close_tag = grammar.think[which % pairs]
        if which >= pairs:
            self.pos = at + len(close_tag)
            if not self.executable and not self.reasoning:
                self.opened_by_prompt(at, close_tag)
            return True
        end = -1 if close_tag in self.never_closed else self.data.find(close_tag, at, n)
        if end < 0:
            if not final:
                self.pos = at
                self.wait = close_tag
                return False
            self.never_closed.add(close_tag)
            self.pos = at + len(open_tag)
            return True
        self.reasoned(at + len(open_tag), end)
        self.markup.append((at, at + len(open_tag)))
        self.markup.append((end, end + len(close_tag)))
        self.pos = self.begins = end + len(close_tag)
        return True

    def opened_by_prompt(self, at: int, close_tag: bytes) -> None:
        """All before the close tag at `at` was reasoning; what was refused there is read again."""
        self.attempts.clear()
        self.errors.clear()
        self.markup.clear()
        self.given = 0
        self.reasoned(0, at)
        self.markup.append((at, at + len(close_tag)))
        self.begins = at + len(close_tag)

    def add(
        self,
        block: Span,
        *,
        name: str | None = None,
        name_span: Span | None = None,
        args_span: Span | None = None,
        id: str | None = None,
        fault: Fault | None = None,
        repair: Callable[[], Repaired | None] | None = None,
        **more: Any,
    ) -> None:
        """Adds an attempt: looks the tool up, repairs if it may, writes the error."""
        repairs: tuple[str, ...] = ()
        if self.in_think:
            fault = Fault("in_reasoning", block[0])
        else:
            if fault is not None and self.lenient and repair is not None:
                repaired = repair()
                if repaired is not None:
                    name, more["arguments"] = repaired.name, repaired.arguments
                    repairs, fault = repaired.names, None
            if fault is None and self.tools is not None and name not in self.tools.names:
                fault = Fault("unknown_tool", name_span[0] if name_span else block[0], name)
            if fault is None and self.max_calls is not None:
                if self.executable >= self.max_calls:
                    fault = Fault("too_many_calls", block[0])
            if self.implicit and fault is None:
                repairs = ("implicit_think_close", *repairs)
        error = None
        index = len(self.attempts)
        if fault is None and self.validate and self.tools is not None:
            fault = self.checked(name, block, args_span, id, more)
        if fault is not None:
            error = Error(
                self.source,
                fault.kind,
                message(fault, name, block, self.tools if len(self.errors) < _HINTS else None),
                block,
                fault.offset,
                fault.param,
                index,
            )
            self.errors.append(error)
        else:
            self.executable += 1
        self.attempts.append(
            Call(
                self.source,
                index,
                block,
                name=name,
                name_span=name_span,
                args_span=args_span,
                id=id,
                error=error,
                repairs=repairs,
                **more,
            )
        )

    def result(self, content: str | None = None, calls: list[Call] | None = None) -> Parsed:
        """What was read."""
        return Parsed(
            self.source,
            self.attempts,
            self.errors,
            self.grammar,
            self.reasoning,
            self.markup,
            self.cut,
            content,
            calls,
        )

    def checked(
        self, name: str | None, block: Span, args_span: Span | None, id: str | None, more: Any
    ) -> Fault | None:
        """Whether the decoded arguments fit the declaration."""
        assert self.tools is not None
        tool = self.tools.tool(name)
        arguments = Call(self.source, 0, block, args_span=args_span, **more).arguments
        found = misfit(tool, arguments) if tool is not None and arguments is not None else None
        if found is None:
            return None
        kind, param, detail = found
        return Fault(kind, args_span[0] if args_span else block[0], detail, param)
