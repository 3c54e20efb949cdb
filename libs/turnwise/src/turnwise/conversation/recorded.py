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
            made, numbers = history.session.samples(), history.numbers
            # A session's segments stand in order; those of which nothing is trained are no samples.
            known = {sample.segment: len(segments) + at for at, sample in enumerate(made.samples)}
            segments += [_renumbered(sample, numbers) for sample in made.samples]
            self.dropped += [
                {**asdict(drop), "turn": _number(drop.turn, numbers)}
                | {"segment": known.get(drop.segment)}
                for drop in made.dropped
            ]
            self.rewrites += [
                {**asdict(rewrite), "turn": _number(rewrite.turn, numbers)}
                for rewrite in history.session.rewrites
            ]
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
    spans = tuple(replace(span, turn=_number(span.turn, numbers)) for span in sample.spans)
    return replace(sample, spans=spans)


def _number(turn: int, numbers: Sequence[int]) -> int:
    """The conversation's number of a session's turn; of one that was not sampled the next."""
    return numbers[turn] if turn < len(numbers) else numbers[-1] + 1


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
