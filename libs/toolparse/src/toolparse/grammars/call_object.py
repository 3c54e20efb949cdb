"""A JSON object that is a call: which keys name the tool and hold the arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from toolparse.driver.run import Run
from toolparse.grammars.grammar import Fault, Repaired, Span, Written
from toolparse.repair import json_text
from toolparse.scan.json_value import json_value

Members = list[tuple[int, int, int, int]]


class Keys:
    """How an object spells a call. `keyed`: the name is the key, `{"NAME": {...}}`."""

    def __init__(
        self,
        name: tuple[str, ...] = ("name",),
        arguments: tuple[str, ...] = ("arguments", "parameters"),
        id: str = "id",
        keyed: bool = False,
    ) -> None:
        self.name = tuple(json.dumps(key).encode() for key in name)
        self.arguments = tuple(json.dumps(key).encode() for key in arguments)
        self.id = json.dumps(id).encode()
        self.keyed = keyed

    def read(
        self, data: bytes | bytearray, members: Members
    ) -> tuple[str | None, Span | None, Span | None, str | None, Fault | None]:
        """(name, its span, the arguments' span, native id, fault) of one object."""
        if self.keyed:
            if len(members) != 1:
                at = members[0][0] if members else 0
                return None, None, None, None, Fault("missing_name", at)
            key_start, key_end, start, end = members[0]
            fault = None if data[start] == 0x7B else Fault("args_not_object", start)
            name = json.loads(data[key_start:key_end])
            return name, (key_start + 1, key_end - 1), (start, end), None, fault
        name = name_span = args_span = native = fault = None
        for key_start, key_end, start, end in members:
            key = bytes(data[key_start:key_end])
            if key in self.name and name is None and data[start] == 0x22:
                name, name_span = json.loads(data[start:end]), (start + 1, end - 1)
            elif key in self.arguments:
                if args_span is not None:
                    fault = Fault("ambiguous_arguments", key_start)
                args_span = (start, end)
            elif key == self.id and data[start] == 0x22:
                native = json.loads(data[start:end])
        if not name:
            fault = Fault("missing_name", members[0][0] if members else 0)
        elif fault is None and args_span is not None and data[args_span[0]] != 0x7B:
            fault = Fault("args_not_object", args_span[0])
        return name, name_span, args_span, native, fault

    def add(self, run: Run, block: Span, start: int, end: int, outer: Fault | None = None) -> None:
        """Adds the call that the whole object data[start:end] is."""
        data = run.data
        if data[start] != 0x7B:
            run.add(block, fault=Fault("not_object", start), arguments=None)
            return
        _, _, duplicate, members = json_value(data, start, end)
        name, name_span, args_span, native, fault = self.read(data, members)
        if fault is not None and fault.kind == "missing_name":
            fault.offset = start
        if duplicate >= 0:
            fault = Fault("duplicate_key", duplicate)
        fault = outer or fault
        more: dict[str, Any] = {}
        if fault is not None:
            more = {"arguments": None} if fault.kind != "missing_name" or not args_span else {}
        elif args_span is None:
            more = {"arguments": {}}
        run.add(
            block,
            name=name,
            name_span=name_span,
            args_span=args_span,
            id=native,
            fault=fault,
            repair=self.repairer(run, start, end, ()),
            **more,
        )

    def repairer(
        self, run: Run, start: int, end: int, made: tuple[str, ...]
    ) -> Callable[[], Repaired | None]:
        return lambda: json_text.call_object(
            bytes(run.data[start:end]), self.name, self.arguments, made
        )


def objects(keys: Keys, calls: Sequence[Written], ids: bool = False) -> list[Any]:
    """The calls as JSON values."""
    if keys.keyed:
        return [{name: arguments} for name, arguments in calls]
    key, value = keys.name[0].decode()[1:-1], keys.arguments[0].decode()[1:-1]
    native = keys.id.decode()[1:-1]
    return [
        ({native: str(i)} if ids else {}) | {key: name, value: arguments}
        for i, (name, arguments) in enumerate(calls)
    ]
