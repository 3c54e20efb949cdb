"""Objects one behind the other between tags (MiniMax-M1), and a fenced list behind a word
(Command R+)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolparse.driver.run import Run
from toolparse.grammars.call_object import Keys, objects
from toolparse.grammars.grammar import NEED_MORE, Fault, Written, skip_space
from toolparse.grammars.json_list import TaggedArray
from toolparse.grammars.tagged_json import json_fault
from toolparse.scan.json_value import json_value
from toolparse.scan.pairs import begun


class JsonLines(TaggedArray):
    """`<tool_calls>`, an object a line, `</tool_calls>`."""

    def write(self, calls: Sequence[Written]) -> str:
        lines = [json.dumps(item, ensure_ascii=False) for item in objects(self.keys, calls)]
        return "\n".join((self.open.decode(), *lines, self.close.decode()))

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        pos = skip_space(data, at + len(self.open), n)
        return data[pos] == 0x7B if pos < n else None

    def array(self, run: Run, at: int, pos: int, n: int, final: bool) -> int:
        data = run.data
        found: list[tuple[int, int]] = []
        start = pos = skip_space(data, pos, n)
        while not data.startswith(self.close, pos, n):
            if begun(self.close, data, pos, n):
                return self.unclosed(run, at, n, final)
            if data[pos] != 0x7B and not found:
                after = self.mention(run, pos, n, final, (self.close,))
                if after != 0:
                    return after
            code, offset, _, _ = json_value(data, pos, n)
            if code == 1:
                return self.unclosed(run, at, n, final)
            if code:
                return self.broken(run, at, start, offset, n, final, json_fault(code, offset))
            found.append((pos, offset))
            pos = skip_space(data, offset, n)
        end = pos + len(self.close)
        if not found:
            run.add((at, end), fault=Fault("empty_body", pos), arguments=None)
        for first, last in found:
            self.keys.add(run, (at, end), first, last)
        return end


class ActionList(TaggedArray):
    """`Action:`, a fence, the list of calls, the end of the fence."""

    uniform = False
    HEAD = re.compile(rb"Action:\s{0,16}```(?:json)?\s{0,64}")
    PART = re.compile(rb"Action:\s{0,16}`{0,3}(?:j|js|jso|json)?\s{0,64}\Z")

    def __init__(self) -> None:
        super().__init__(b"Action:", b"```", Keys(("tool_name",), ("parameters",)))

    def write(self, calls: Sequence[Written]) -> str:
        body = json.dumps(objects(self.keys, calls), indent=4, ensure_ascii=False)
        return f"Action:\n```json\n{body}```"

    def spell(self, arguments: Mapping[str, Any]) -> str:
        return json.dumps(arguments, indent=4, ensure_ascii=False).replace("\n", "\n" + " " * 8)

    def begins(self, data: bytes | bytearray, at: int, n: int) -> bool | None:
        found = self.HEAD.match(data, at, n)
        if found and found.end() < n:
            return data[found.end()] == 0x5B
        return None if found or self.PART.match(data[at : min(n, at + 128)]) else False

    def block(self, run: Run, at: int, n: int, final: bool) -> int:
        begins = self.begins(run.data, at, n)
        if begins is None and not final:
            return NEED_MORE
        found = self.HEAD.match(run.data, at, n)
        if not begins or not found:
            return at + 1
        return self.array(run, at, found.end(), n, final)
