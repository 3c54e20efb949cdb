"""Labels that answers can be compared with: what data sets write in a label's place.

| a row's label                                   | the answer                            |
|-------------------------------------------------|---------------------------------------|
| `"204"`, `204`, `204.0`, `[204]`                | `204`                                 |
| `"... <<3*4=12>>12.\\n#### 12"` (GSM8K)         | `12`                                  |
| `"... so \\\\boxed{12}."`                       | `12`                                  |
| `{"ground_truth": "12", "style": "rule"}`       | `12`                                  |
| `"[\\"12\\"]"`                                  | `12`                                  |
| null, true, `""`, several, NaN, too long a text | none: an error that names the row     |
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from turnwise.answers.boxed import boxed
from turnwise.answers.notation import plain
from turnwise.answers.verifier import MAX_CHARACTERS, MathVerifier
from turnwise.config import ConfigError
from turnwise.rows.checks import check_text, shown

_AFTER_MARK = re.compile(r"####[ \t]*([^\n]*)\s*\Z")
_NOTHING = frozenset({"nan", "<na>", "null"})
_WHOLE = re.compile(r"([+-]?)0*(\d{1,50}?)(?:\.0+)?")
_COMMON_SPACE = re.compile(r"\s+")


def read_answer(label: Any, where: str, key: str = "label") -> str:
    """The answer that a row's label holds, as text. See the module.

    Raises:
        ConfigError: naming the row and the key, what was found and what to do.
    """
    value = label
    if isinstance(value, Mapping) and "ground_truth" in value:
        value, key = value["ground_truth"], f"{key}.ground_truth"
    value = _only(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(
            f"{where}: {key}: expected a text or a number as the one right answer, found"
            f" {shown(value)}; --label-key names another column"
        )
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(
                f"{where}: {key}: is {value}, which no answer equals; correct the row"
            )
        value = int(value) if value.is_integer() and abs(value) < 1e15 else value
    if isinstance(value, str):
        check_text(value, where, key)
    text = _answer_in(str(value).strip())
    if not text:
        raise ConfigError(f"{where}: {key}: is empty; a problem needs its answer")
    if text.lower() in _NOTHING:
        raise ConfigError(f"{where}: {key}: is {text!r}, a missing value; correct or drop the row")
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"{where}: {key}: has {len(text):,} characters and neither a \\boxed answer nor one"
            f" behind ####; answers of up to {MAX_CHARACTERS:,} are compared. --label-key names"
            " another column"
        )
    return text


def same_text(label: str) -> str:
    """One text for a label that is written in several ways: `033`, `33.` and `$33$` are `33`.

    Labels with equal texts are equal to the grader; others may be.
    """
    found = _COMMON_SPACE.sub(" ", plain(label))
    whole = _WHOLE.fullmatch(found)
    if whole is None:
        return found
    return ("-" if whole[1] == "-" and whole[2] != "0" else "") + whole[2]


class SameAnswers:
    """Whether two labels are one answer to the grader; for code without an event loop.

    with SameAnswers() as same:
        same(r"\\frac{1}{2}", "0.5")       # True
    """

    def __init__(self) -> None:
        self._verifier = MathVerifier(workers=1)
        self._runner = asyncio.Runner()
        self._known: dict[tuple[str, str], bool] = {}

    def __call__(self, one: str, other: str) -> bool:
        """
        Raises:
            BoundaryError: at `Boundary.JUDGE`, formulas can't be compared here.
        """
        if one == other or same_text(one) == same_text(other):
            return True
        if (one, other) not in self._known:
            found = self._runner.run(self._verifier.equal(other, one))
            self._known[one, other] = found is True
        return self._known[one, other]

    def __enter__(self) -> SameAnswers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._runner:
            self._runner.run(self._verifier.close())


def _only(value: Any) -> Any:
    """The one item of a list, or of a list of texts that is written as JSON."""
    if isinstance(value, str) and value.lstrip().startswith('["'):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def _answer_in(text: str) -> str:
    if found := _AFTER_MARK.search(text):
        return found[1].strip()
    return boxed(text) or text
