"""Prompts of ids: the chat template's own text encoded once, what changes put in as ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import tokendelta
from numpy.typing import NDArray

from apps.trainers.memagent.prompts import MEMORY, PLACES, PROBLEM, SECTION, Prompts

Ids = NDArray[np.int32]
_PLACE = re.compile(f"([{''.join(PLACES)}])")


class Template:
    """The prompts of a policy. Training and evaluation build them here and nowhere else.

    The ids are those of the template's own render wherever its tokenizer splits at the borders of
    what is put in; elsewhere the parts stay as they are, since ids of a section or a memory are
    never decoded and encoded again.

    Attributes:
        nothing: int32[n], the memory before the first section.
    """

    def __init__(self, profile: tokendelta.Profile, prompts: Prompts) -> None:
        """
        Args:
            profile: The audited template.
            prompts: What it is given, as the one message of a user.
        """
        self._profile = profile
        self._update = self._parts(prompts.update)
        self._final = self._parts(prompts.final)
        self.nothing = self.encode(prompts.nothing)

    def encode(self, text: str) -> Ids:
        """int32[n] of a text inside a prompt; what spells a special token stays text."""
        text = self._profile.specials.broken(text)
        return np.array(self._profile.encoder.encode_broken(text, inside=True), dtype=np.int32)

    def update(self, problem: Ids, memory: Ids, section: Ids) -> Ids:
        """int32[n], the prompt that asks for the next memory."""
        return _filled(self._update, {PROBLEM: problem, MEMORY: memory, SECTION: section})

    def final(self, problem: Ids, memory: Ids) -> Ids:
        """int32[n], the prompt that asks for the answer."""
        return _filled(self._final, {PROBLEM: problem, MEMORY: memory})

    def memory(self, sampled: Ids) -> Ids:
        """What was sampled as a memory: without stop and control tokens, the rest verbatim."""
        dropped = [*self._profile.stop_ids, *self._profile.specials.control]
        return sampled[~np.isin(sampled, dropped)]

    def _parts(self, content: str) -> Sequence[Ids | str]:
        """Ids of what stays, and the places between them."""
        message = {"role": "user", "content": content}
        text = self._profile.renderer.render([message], generation=True)
        encoder = self._profile.encoder
        parts: list[Ids | str] = []
        for number, piece in enumerate(_PLACE.split(text)):
            if piece in PLACES:
                parts.append(piece)
            elif piece:
                ids = encoder.encode_inside(piece) if number else encoder.encode(piece)
                parts.append(np.array(ids, dtype=np.int32))
        return parts


def _filled(parts: Sequence[Ids | str], values: Mapping[str, Ids]) -> Ids:
    return np.concatenate([values[part] if isinstance(part, str) else part for part in parts])
