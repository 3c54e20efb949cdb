"""Decoding steps of the embedded engine, replayed as CUDA graphs.

A step is some hundreds of kernels of a few microseconds, and the process that launches them one by
one is what every turn waits for. A graph launches them all at once.

1. A graph is of a number of rows, of a used length rounded up and a shared one rounded down to
   `GRAIN` tokens: what lies beyond a row's own position is masked. A burst needs one or two.
2. The first step of a kind is computed as ever, which loads what it calls; the second is captured.
3. The `KEPT` that were used last are kept. They share their memory and the tensor of their logits,
   since no two run at once.

Weights and cache are read where they lie, so an update in place needs no new graph.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from turnwise.engine.decoder import Decoder

GRAIN = 64
KEPT = 16

Kind: TypeAlias = tuple[int, int, int]
"""Rows, used and shared tokens."""
Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], Any]]
"""Records work without doing it; gives what does it."""


@dataclass(frozen=True, slots=True)
class _Replay:
    tokens: Tensor
    positions: Tensor
    run: Callable[[], Any]


class Replays:
    """Steps of one decoder; `step` is the decoder's.

    Args:
        decoder: What computes a step.
        capture: Of work on the decoder's device.
    """

    def __init__(self, decoder: Decoder, capture: Capture) -> None:
        self._decoder = decoder
        self._capture = capture
        shape = decoder.rows, decoder.shape.vocab
        self._logits = torch.empty(shape, dtype=torch.float32, device=decoder.device)
        self._kept: OrderedDict[Kind, _Replay] = OrderedDict()
        self._last: Kind | None = None

    def step(self, tokens_n: Tensor, positions_n: Tensor, *, used: int, shared: int) -> Tensor:
        """See `Decoder.step`; the result is valid until the next step."""
        used = min(-(-used // GRAIN) * GRAIN, self._decoder.context)
        kind = len(tokens_n), used, shared // GRAIN * GRAIN
        replay = self._kept.get(kind)
        if replay is None:
            if kind != self._last:
                self._last = kind
                return self._decoder.step(tokens_n, positions_n, used=used, shared=kind[2])
            replay = self._captured(kind, tokens_n, positions_n)
        self._kept.move_to_end(kind)
        replay.tokens.copy_(tokens_n)
        replay.positions.copy_(positions_n)
        replay.run()
        return self._logits[: len(tokens_n)]

    def _captured(self, kind: Kind, tokens_n: Tensor, positions_n: Tensor) -> _Replay:
        if len(self._kept) == KEPT:
            self._kept.popitem(last=False)
        tokens, positions = tokens_n.clone(), positions_n.clone()
        rows, used, shared = kind

        def work() -> None:
            logits = self._decoder.step(tokens, positions, used=used, shared=shared)
            self._logits[:rows].copy_(logits)

        self._kept[kind] = _Replay(tokens, positions, self._capture(work))
        return self._kept[kind]


def cuda_capture() -> Capture:
    """Captures CUDA graphs that share their memory.

    Neither waits for the device nor empties the allocator's cache, as `torch.cuda.graph` does, and
    leaves other threads alone, which may train meanwhile.
    """
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(work: Callable[[], None]) -> Callable[[], Any]:
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        replay: Callable[[], Any] = graph.replay
        return replay

    return capture
