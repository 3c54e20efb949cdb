from typing import Any

from toolparse.result.model import Parsed, Source

class Tags:
    def __init__(
        self,
        open_tag: bytes,
        close_tag: bytes,
        names: tuple[bytes, ...],
        arguments: tuple[bytes, ...],
        think: tuple[bytes, bytes],
        stops: tuple[bytes, ...],
    ) -> None: ...

def tagged_json(
    source: Source, tags: Tags, grammar: Any, tools: Any, thinking: bool
) -> Parsed | None: ...
