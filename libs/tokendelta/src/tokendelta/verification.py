"""The record against a full render of the same conversation."""

from __future__ import annotations

import numpy as np

from tokendelta._core import common_prefix
from tokendelta.sample import Drift
from tokendelta.state import SessionState


def drift_of(state: SessionState) -> Drift | None:
    """Where the current segment and a full render of it differ first, or None if nowhere."""
    record, segment = state.record, state.current("verify")
    rendered = record.profile.encode_prompt(
        state.messages(), state.tools, record.specials == "escape"
    )
    tokens = segment.tokens
    at = common_prefix(tokens.view(0, tokens.size), np.array(rendered, dtype=np.int32))
    if at == tokens.size == len(rendered):
        return None
    block = next((b for b in segment.blocks if b.start <= at < b.stop), segment.blocks[-1])
    return Drift(
        segment.blocks[-1].number,
        at,
        block.kind,
        tokens[at] if at < tokens.size else -1,
        rendered[at] if at < len(rendered) else -1,
    )
