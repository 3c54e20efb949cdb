from typing import Any

from toolparse.result.model import Parsed, Source

class SectionTags:
    def __init__(
        self,
        section_open: tuple[bytes, ...],
        section_close: bytes,
        call_open: bytes,
        name_end: bytes,
        call_close: tuple[bytes, ...],
        think: tuple[bytes, bytes],
        stops: tuple[bytes, ...],
    ) -> None: ...

def section_json(
    source: Source, tags: SectionTags, grammar: Any, tools: Any, thinking: bool
) -> Parsed | None: ...
