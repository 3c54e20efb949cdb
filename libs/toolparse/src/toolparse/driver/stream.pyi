from collections.abc import Iterable, Mapping
from typing import Any

from toolparse.driver.tools import ToolSet
from toolparse.result.model import Call, Parsed

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
