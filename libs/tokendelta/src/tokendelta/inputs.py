"""Checks of what callers give, with errors that name the turn and the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tokendelta.errors import LengthError, LogprobError, TokenIdError


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError for a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


def as_list(values: Any) -> list[Any]:
    """A one-dimensional array or sequence as a list of Python numbers."""
    result: list[Any] = np.asarray(values).tolist()
    return result


def side_rows(side: Mapping[str, ArrayLike], count: int, turn: int) -> dict[str, Any]:
    """Side streams with one row for each id; raises LengthError where they have not."""
    rows = {}
    for name, values in side.items():
        array = np.asarray(values)
        if array.ndim == 0:
            array = np.full(count, array)
        if len(array) != count:
            raise LengthError(
                f"turn {turn}: side stream {name!r} has {len(array)} rows for {count} ids"
            )
        rows[name] = array
    return rows


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
