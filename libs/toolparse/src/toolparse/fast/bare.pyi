from typing import Any

from toolparse.fast.tagged import Tags
from toolparse.result.model import Parsed, Source

def bare_objects(
    source: Source, tags: Tags, grammar: Any, tools: Any, thinking: bool
) -> Parsed | None: ...
