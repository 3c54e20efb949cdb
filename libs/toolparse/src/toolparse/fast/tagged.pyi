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

class PairTags:
    def __init__(
        self, shape: Any, single: bool, think: tuple[bytes, bytes], stops: tuple[bytes, ...]
    ) -> None: ...

def tagged_json(
    source: Source, tags: Tags, grammar: Any, tools: Any, thinking: bool
) -> Parsed | None: ...
def tagged_pairs(
    source: Source, tags: PairTags, grammar: Any, tools: Any, thinking: bool
) -> Parsed | None: ...
