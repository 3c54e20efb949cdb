"""Inkling: messages that say of themselves what they hold."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from toolparse.driver.run import Run
from toolparse.grammars.call_object import Keys
from toolparse.grammars.channels import HEADER_LIMIT, Messages
from toolparse.grammars.grammar import NEED_MORE, Fault, Span, Written, skip_space
from toolparse.grammars.tagged_json import json_fault
from toolparse.scan.find import find_any
from toolparse.scan.json_value import json_value


class Inkling(Messages):
    """`<|message_model|>NAME<|content_invoke_tool_json|>{"name", "args"}<|end_message|>`."""

    call = b"<|content_invoke_tool_json|>"
    thinking = b"<|content_thinking|>"
    text = b"<|content_text|>"
    starts = (b"<|message_model|>", call, thinking, text)
    ends = (b"<|end_message|>",)
    # The prompt ends with `<|message_model|>`, and the name of a tool may come next.
    bare_header = re.compile(rb"[^\s<]{1,256}<\|content_invoke_tool_json\|>")
    message = call
    stops = (b"<|content_model_end_sampling|>",)

    def __init__(self) -> None:
        super().__init__()
        self.keys = Keys(("name",), ("args", "arguments"))

    def write(self, calls: Sequence[Written]) -> str:
        return "".join(
            f"<|message_model|>{name}{self.call.decode()}"
            f"{json.dumps({'name': name, 'args': arguments}, ensure_ascii=False)}<|end_message|>"
            for name, arguments in calls
        )

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        data = run.data
        start = at
        kinds = (self.call, self.thinking, self.text, *self.ends, self.starts[0])
        which = next((i for i in range(3) if data.startswith(kinds[i], at, n)), -1)
        if which < 0:
            head = at + (len(self.starts[0]) if data.startswith(self.starts[0], at, n) else 0)
            limit = min(n, head + HEADER_LIMIT)
            start, which = find_any(data, head, limit, kinds)
            if start < 0 and limit == n and not final:
                return NEED_MORE
            if start < 0 or which > 2:
                run.markup.append((at, head))
                if start >= 0 and which == 3:
                    run.markup.append((start, start + len(self.ends[0])))
                    return start + len(self.ends[0])
                return head
        if which:
            return self.plain(run, at, start + len(kinds[which]), n, final, which == 1)
        body = start + len(self.call)
        pos = skip_space(data, body, n)
        code, offset, _, _ = json_value(data, pos, n)
        if code == 1 and not final:
            run.wait = self.ends[0]
            return NEED_MORE
        search = pos if code == 1 else offset
        end, which = find_any(data, search, n, (self.ends[0], self.starts[0]))
        if end < 0 and not final:
            run.wait = self.ends[0]
            return NEED_MORE
        after = n if end < 0 else end + (len(self.ends[0]) if which == 0 else 0)
        self.invoke(run, (at, after), pos, n if end < 0 else end, code, offset, end < 0)
        return after

    def plain(self, run: Run, at: int, body: int, n: int, final: bool, thinking: bool) -> int:
        data = run.data
        end, which = find_any(data, body, n, (self.ends[0], self.starts[0]))
        if end < 0 and not final:
            run.wait = self.ends[0]
            return NEED_MORE
        after = n if end < 0 else end + (len(self.ends[0]) if which == 0 else 0)
        end = n if end < 0 else end
        if thinking:
            run.reasoning.append((body, end))
        self.around(run, (at, after), (body, end))
        return after

    def invoke(
        self, run: Run, block: Span, pos: int, end: int, code: int, offset: int, cut: bool
    ) -> None:
        data = run.data
        fault = None
        if code == 1:
            fault = Fault("unclosed" if cut else "bad_json", end)
        elif code:
            fault = json_fault(code, offset)
        elif skip_space(data, offset, end) < end:
            after = skip_space(data, offset, end)
            fault = Fault("bad_json" if data[after] in b"]}" else "extra_data", after)
        if fault is None:
            self.keys.add(run, block, pos, offset)
            return
        run.add(
            block,
            fault=fault,
            arguments=None,
            repair=None if cut else self.keys.repairer(run, pos, end, ()),
        )
