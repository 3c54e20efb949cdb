from collections.abc import Mapping
from typing import Any

class Source:
    data: bytes | bytearray
    text: str
    def __init__(self, data: bytes | bytearray, text: str | None = None) -> None: ...
    def grew(self, plain: bool) -> None: ...
    def slice(self, start: int, end: int) -> str: ...
    def char(self, offset: int) -> int: ...
    def span(self, span: tuple[int, int]) -> tuple[int, int]: ...

class Error:
    kind: str
    group: str
    message: str
    offset: int
    param: str | None
    span: tuple[int, int]
    byte_span: tuple[int, int]
    call: int | None
    def to_dict(self) -> dict[str, Any]: ...
    def __init__(
        self,
        source: Source,
        kind: str,
        message: str,
        byte_span: tuple[int, int],
        offset: int | None = None,
        param: str | None = None,
        call: int | None = None,
    ) -> None: ...

class Call:
    index: int
    tool_index: int
    name: str | None
    id: str | None
    arguments: dict[str, Any] | None
    raw_arguments: str | None
    arguments_json: str
    source: Source
    error: Error | None
    repairs: tuple[str, ...]
    ok: bool
    status: str
    raw: str
    span: tuple[int, int]
    byte_span: tuple[int, int]
    name_span: tuple[int, int] | None
    name_byte_span: tuple[int, int] | None
    arguments_span: tuple[int, int] | None
    arguments_byte_span: tuple[int, int] | None
    value_spans: dict[str, tuple[int, int]] | None
    value_byte_spans: dict[str, tuple[int, int]] | None
    def to_dict(self) -> dict[str, Any]: ...
    def __init__(
        self,
        source: Source,
        index: int,
        block: tuple[int, int],
        *,
        name: str | None = None,
        name_span: tuple[int, int] | None = None,
        args_span: tuple[int, int] | None = None,
        id: str | None = None,
        arguments: Any = ...,
        values: Mapping[str, tuple[int, int]] | None = None,
        converted: Mapping[str, Any] | None = None,
        error: Error | None = None,
        repairs: tuple[str, ...] = (),
        raw_arguments: str | None = None,
        tool_index: int = -1,
    ) -> None: ...

class Parsed:
    source: Source
    attempts: list[Call]
    errors: list[Error]
    calls: list[Call]
    grammar: Any
    cut: int
    content: str
    content_spans: list[tuple[int, int]]
    content_byte_spans: list[tuple[int, int]]
    reasoning: str | None
    reasoning_spans: list[tuple[int, int]]
    reasoning_byte_spans: list[tuple[int, int]]
    markup_byte_spans: list[tuple[int, int]]
    stop_span: tuple[int, int] | None
    stop_byte_span: tuple[int, int] | None
    flags: list[Error]
    is_canonical: bool
    canonical_text: str | None
    counts: dict[str, int]
    def __init__(
        self,
        source: Source,
        attempts: list[Call],
        errors: list[Error],
        grammar: Any,
        reasoning: list[tuple[int, int]],
        markup: list[tuple[int, int]],
        cut: int,
        content: str | None = None,
        calls: list[Call] | None = None,
    ) -> None: ...
    def to_dict(self) -> dict[str, Any]: ...
