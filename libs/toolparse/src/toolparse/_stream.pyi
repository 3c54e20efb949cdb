from collections.abc import Iterable, Mapping
from typing import Any

from toolparse._model import Call, Parsed
from toolparse._tools import ToolSet

class Stream:
    done: bool
    calls: list[Call]
    attempts: list[Call]
    def __init__(
        self,
        format: str = "qwen25",
        tools: ToolSet | Iterable[Mapping[str, Any]] | None = None,
        mode: str = "strict",
        *,
        thinking: bool = False,
        limit: int | None = None,
        max_calls: int | None = None,
        validate: bool = False,
    ) -> None: ...
    def feed(self, chunk: str | bytes) -> list[Call]: ...
    def finish(self) -> Parsed: ...
