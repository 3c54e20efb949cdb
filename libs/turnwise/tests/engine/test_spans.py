"""Short spans that are computed in one call give what a call for each gives."""

from __future__ import annotations

import pytest
import torch
from turnwise.engine.spans import SHORT, Span, Spans

CONTEXT = 203


@pytest.mark.parametrize(
    "spans",
    [
        [(3, 0, 5), (1, 40, 1), (0, 17, 64)],
        [(2, 90, 1), (0, 0, 1), (1, 202, 1), (3, 7, 1)],
        [(0, 0, 100), (1, 0, 3), (2, 50, SHORT + 1), (3, 195, 8)],
        [(0, 0, 100), (1, 3, 2)],
    ],
)
@pytest.mark.parametrize("heads", [(4, 2), (3, 3)])
def test_together_is_alone(spans: list[tuple[int, int, int]], heads: tuple[int, int]) -> None:
    torch.manual_seed(0)
    queries, kept = heads
    own = [Span(*one) for one in spans]
    q = torch.randn(sum(span.length for span in own), queries, 16)
    keys, values = torch.randn(2, 4, kept, CONTEXT, 16)
    device = torch.device("cpu")
    made = [
        Spans(own, CONTEXT, device, together=one).attend(q, keys, values) for one in (False, True)
    ]
    torch.testing.assert_close(made[1], made[0], atol=1e-5, rtol=0)
