"""Checks of what callers give, with errors that name the turn and the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokendelta.errors import LengthError, LogprobError, TokenIdError

if TYPE_CHECKING:
    from tokendelta.profile import Profile


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError for a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


def as_list(values: Any) -> list[Any]:
    """A one-dimensional array or sequence as a list of Python numbers."""
    result: list[Any] = np.asarray(values).tolist()
    return result


def checked_scores(ids: Any, logprobs: Any, turn: int) -> tuple[list[Any], list[Any]]:
    """Sampled ids and log-probs as lists; raises LengthError where they differ in length."""
    sampled = ids if isinstance(ids, list) else as_list(ids)
    scores = logprobs if isinstance(logprobs, list) else as_list(logprobs)
    if len(scores) != len(sampled):
        raise LengthError(
            f"turn {turn}: {len(sampled)} ids but {len(scores)} log-probs; give one for each id"
        )
    return sampled, scores


def check_prompt(counted: int, sent: int, turn: int) -> None:
    """Raises LengthError if the engine counted another number of prompt tokens than it was sent."""
    if counted != sent:
        raise LengthError(
            f"turn {turn}: the engine counted {counted} prompt tokens, the session sent {sent};"
            " send ids, not text, and see whether the engine encodes them again"
        )


def check_text(profile: Profile, text: str, ids: list[Any], turn: int) -> None:
    """Raises TokenIdError if the ids do not spell the engine's own text."""
    bare = ids[:-1] if ids and ids[-1] in profile.stop_ids else ids
    whole, cut = profile.text_of(ids), profile.text_of(bare)
    plain = profile.text_of(bare, plain=True)
    if text not in (whole, plain, cut):
        raise TokenIdError(
            f"turn {turn}: the ids decode to {whole[:80]!r}, the engine's text is {text[:80]!r};"
            " its ids are not what it sampled"
        )


def side_streams(
    side: Mapping[str, ArrayLike] | None, count: int, turn: int, offset: int = 0
) -> list[tuple[str, int, NDArray[Any]]] | None:
    """Side streams as (name, offset in the turn, one row for each id), or None.

    Raises LengthError where they have another number of rows.
    """
    rows = []
    for name, values in (side or {}).items():
        array = np.asarray(values)
        if array.ndim == 0:
            array = np.full(count, array)
        if len(array) != count:
            raise LengthError(
                f"turn {turn}: side stream {name!r} has {len(array)} rows for {count} ids"
            )
        rows.append((name, offset, array))
    return rows or None


def raise_refused(
    turn: int,
    refused: tuple[str, int],
    ids: Sequence[int],
    logprobs: Sequence[float],
    vocab_size: int,
) -> None:
    """Raises the error for what Tokens.append_sampled refused."""
    stream, index = refused
    if stream == "id":
        limit = vocab_size or int(np.iinfo(np.int32).max)
        raise TokenIdError(
            f"turn {turn}: id {ids[index]!r} at index {index} is not in 0..{limit - 1}; if the"
            " model's output layer is larger than the tokenizer, give Profile its vocab_size"
        )
    raise LogprobError(
        f"turn {turn}: log-prob {logprobs[index]!r} at index {index} is not a finite number of"
        " at most 0"
    )
