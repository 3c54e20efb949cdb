"""What an episode's histories hold together: segments, and where each turn stands in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import tokendelta

from turnwise.conversation.tokens import TokenHistory


class Recorded:
    """The samples of all histories, as if one session had made them."""

    def __init__(self, histories: Sequence[TokenHistory]) -> None:
        histories = sorted(histories, key=lambda one: one.numbers[0])
        self.dropped: list[dict[str, Any]] = []
        self.rewrites: list[dict[str, Any]] = []
        segments: list[tokendelta.Sample] = []
        for history in histories:
            made = history.session.samples()
            segments += [_renumbered(sample, history.numbers) for sample in made.samples]
            self.dropped += [asdict(drop) for drop in made.dropped]
            self.rewrites += [asdict(rewrite) for rewrite in history.session.rewrites]
        if len(histories) > 1:
            total = sum(sample.trained_tokens for sample in segments) or 1
            segments = [
                replace(sample, segment=number, weight=sample.trained_tokens / total)
                for number, sample in enumerate(segments)
            ]
        self.segments = tuple(segments)
        self.places = places_of(self.segments)


def _renumbered(sample: tokendelta.Sample, numbers: Sequence[int]) -> tokendelta.Sample:
    if list(numbers) == list(range(len(numbers))):
        return sample
    after = numbers[-1] + 1
    spans = tuple(
        replace(span, turn=numbers[span.turn] if span.turn < len(numbers) else after)
        for span in sample.spans
    )
    return replace(sample, spans=spans)


def places_of(
    segments: Sequence[tokendelta.Sample],
) -> dict[tuple[int | None, bool], list[int]]:
    """Where the prompt of each turn and the turn itself stand: [segment, start, stop) by the turn's
    number and whether it was trained, in the first segment that holds it."""
    places: dict[tuple[int | None, bool], list[int]] = {}
    for number, sample in enumerate(segments):
        for span in sample.spans:
            place = places.setdefault((span.turn, span.trained), [number, span.start, 0])
            if place[0] == number:
                place[2] = span.stop
    return places
