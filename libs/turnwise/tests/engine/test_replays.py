"""Replayed steps are the decoder's own; captures are few, and follow the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from turnwise.engine import replays
from turnwise.engine.decoder import Decoder
from turnwise.engine.replays import Replays

from .models import make_model, random_ids


class Recorder:
    """Captures on a CPU: what it gives does the work."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1

        def run() -> None:
            self.replayed += 1
            work()

        return run


def filled(model: Any) -> Decoder:
    """A decoder with three rows that begin alike."""
    decoder = Decoder(model, rows=4, context=256)
    common = random_ids(0, 70)
    parts = [torch.tensor([*common, *random_ids(1 + row, 5 + row)]) for row in range(3)]
    decoder.prefill([0, 1, 2], parts, [0, 0, 0])
    return decoder


@torch.inference_mode()
def stepped(decoder: Decoder, step: Callable[..., Tensor], steps: int, begin: int = 0) -> Tensor:
    """[steps, rows, V] of greedy decoding."""
    found = []
    tokens = torch.tensor([5, 6, 7])
    for at in range(begin, begin + steps):
        positions = torch.tensor([75, 76, 77]) + at
        logits = step(tokens, positions, used=78 + at, shared=70)
        found.append(logits.clone())
        tokens = logits.argmax(-1)
    return torch.stack(found)


def test_replayed_steps_give_what_the_decoder_gives() -> None:
    model = make_model("qwen3")
    plain, other = filled(model), filled(model)
    recorder = Recorder()
    replayed = stepped(other, Replays(other, recorder).step, 100)
    torch.testing.assert_close(replayed, stepped(plain, plain.step, 100), atol=1e-4, rtol=0)
    # Used lengths up to 128 and up to 192 are two kinds; the first step of each is no replay.
    assert (recorder.captured, recorder.replayed) == (2, 98)


def test_a_replay_reads_the_weights_that_were_loaded_since() -> None:
    model = make_model("qwen3")
    plain, other = filled(model), filled(model)
    recorder = Recorder()
    step = Replays(other, recorder).step
    steps = {plain: plain.step, other: step}
    for decoder, one in steps.items():
        stepped(decoder, one, 10)
        decoder.load(make_model("qwen3", seed=1))
    expected, replayed = (stepped(decoder, one, 10, begin=10) for decoder, one in steps.items())
    assert recorder.captured == 1
    torch.testing.assert_close(replayed, expected, atol=1e-4, rtol=0)


def test_the_kinds_that_were_used_last_are_kept(monkeypatch: Any) -> None:
    monkeypatch.setattr(replays, "KEPT", 2)
    decoder = filled(make_model("qwen3"))
    recorder = Recorder()
    step = Replays(decoder, recorder).step
    for rows in (1, 2, 1, 3, 1, 2):
        for _ in range(3):
            tokens, positions = torch.tensor([5, 6, 7][:rows]), torch.full((rows,), 80)
            step(tokens, positions, used=81, shared=64)
    # 1 and 2, then 3 in the place of 2, then 2 in the place of 3.
    assert recorder.captured == 4
