"""Problems: a data file with questions and their answers, or the built-in sample.

    {"prompt": "Find ...", "label": "204"}

Files are read as every backend reads them (`turnwise.rows.reader`). `prompt` may be a conversation
of one user message as well, as slime's data has it; `label` whatever `turnwise.answers.labels`
finds an answer in. Other names of the two are given by `--input-key` and `--label-key`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from turnwise.answers.frames import asked_form
from turnwise.answers.labels import read_answer, same_text
from turnwise.config import ConfigError
from turnwise.rows import Row
from turnwise.rows.files import split_slice
from turnwise.rows.reader import read_rows

SAMPLE = "sample"
"""Names the built-in problems in place of a file."""
_SAMPLE_SEED = 20_251
_SAMPLE_OF_EACH = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One question.

    Attributes:
        data: Name of its data set.
        index: Place in the data set, from 1.
        question: As the file has it.
        label: The right answer.
        metadata: What else its row says.
    """

    data: str
    index: int
    question: str
    label: str
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def id(self) -> str:
        """`aime-2024/7`."""
        return f"{self.data}/{self.index}"

    @property
    def digest(self) -> str:
        """Equal for equal question and label, wherever they stand; 16 hex digits.

        Labels are equal here as `033` and `33` are, which the grader takes for the same.
        """
        text = f"{self.question.strip()}\x1f{same_text(self.label)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_data(names: Sequence[str], *, input_key: str, label_key: str) -> list[Problem]:
    """The problems of every data set, in order.

    Args:
        names: Each `sample`, a path, or `NAME=PATH`; without a name the file's stem is it. A path
            may end in a slice of rows, `@[start:end]`.
        input_key, label_key: Names of question and answer in a row.

    Raises:
        ConfigError: naming file and line, what was found and what is expected.
    """
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    for given in names:
        name, path = _named(given)
        if name in seen:
            raise ConfigError(
                f"--data {given}: {seen[name]} has the name {name!r} already;"
                f" write NAME=PATH to give it another"
            )
        seen[name] = given
        problems += sample() if path is None else read_problems(path, name, input_key, label_key)
    by_digest(problems)
    return problems


def by_digest(problems: Sequence[Problem]) -> dict[str, Problem]:
    """The problems by what pairs them with another evaluation's.

    Raises:
        ConfigError: naming two that are the same, which would count twice.
    """
    found: dict[str, Problem] = {}
    for problem in problems:
        same = found.setdefault(problem.digest, problem)
        if same is not problem:
            raise ConfigError(
                f"{problem.id} is the question of {same.id} again, with the same answer; give every"
                " question once"
            )
    return found


def read_problems(path: Path, name: str, input_key: str, label_key: str) -> list[Problem]:
    """The problems of one file.

    Raises:
        ConfigError: naming file and line.
    """
    problems: list[Problem] = []
    places: dict[str, str] = {}
    for row in read_rows(path, input_key=input_key, label_key=label_key):
        question = _question(row, input_key)
        if question in places:
            raise ConfigError(
                f"{row.where}: the question of {places[question]} again; give every question once,"
                " --n-samples-per-eval-prompt says how often it is asked"
            )
        places[question] = row.where
        answer = read_answer(row.label, row.where, label_key)
        problems.append(Problem(name, len(problems) + 1, question, answer, row.metadata))
    return problems


def sample() -> list[Problem]:
    """Generated problems with whole numbers from 0 to 999 as answers, always the same."""
    rng = Random(_SAMPLE_SEED)
    made = [make(rng) for _ in range(_SAMPLE_OF_EACH) for make in _KINDS]
    return [
        Problem(SAMPLE, index, question, str(answer))
        for index, (question, answer) in enumerate(made, start=1)
    ]


def _named(given: str) -> tuple[str, Path | None]:
    if given == SAMPLE:
        return SAMPLE, None
    name, equals, rest = given.partition("=")
    path = Path(rest if equals else given)
    name = name if equals else split_slice(path)[0].stem
    if not name or any(char in name for char in "#/\n"):
        raise ConfigError(f"--data {given}: a name may hold no #, / or line break, found {name!r}")
    return name, path


def _question(row: Row, key: str) -> str:
    value = row.prompt
    if not isinstance(value, str):
        if len(value) != 1 or value[0]["role"] != "user":
            raise ConfigError(
                f"{row.where}: {key}: a conversation must be one message of the user, found"
                f" {len(value)} of {', '.join(str(one['role']) for one in value)}"
            )
        value = value[0].get("content") or ""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{row.where}: {key}: expected a question, found {value!r:.60}")
    if form := asked_form(value):
        raise ConfigError(
            f"{row.where}: {key}: the question itself asks for {form}, and is graded by its last"
            " \\boxed{}: a model that obeys it would score 0. Take what frames the question off"
            " (apps/trainers/agentflow/data:prepare does, for DAPO-Math-17K)"
        )
    return value


def _power(rng: Random) -> tuple[str, int]:
    base, exponent, modulus = rng.randint(2, 40), rng.randint(20, 2000), rng.randint(50, 1000)
    question = f"Find the remainder when ${base}^{{{exponent}}}$ is divided by ${modulus}$."
    return question, pow(base, exponent, modulus)


def _multiples(rng: Random) -> tuple[str, int]:
    first, second, third = rng.sample((3, 4, 5, 7, 11, 13), 3)
    most = rng.randint(400, 1200)
    question = (
        f"How many positive integers not greater than ${most}$ are divisible by ${first}$ or by"
        f" ${second}$, but not by ${third}$?"
    )
    found = [n for n in range(1, most + 1) if (n % first == 0 or n % second == 0) and n % third]
    return question, len(found)


def _congruences(rng: Random) -> tuple[str, int]:
    moduli = (7, 9, 11)
    rests = [rng.randrange(modulus) for modulus in moduli]
    conditions = ", ".join(
        f"${rest}$ when divided by ${modulus}$" for rest, modulus in zip(rests, moduli, strict=True)
    )
    product = math.prod(moduli)
    found = next(
        n
        for n in range(1, product + 1)
        if all(n % modulus == rest for rest, modulus in zip(rests, moduli, strict=True))
    )
    return f"Find the least positive integer that leaves remainder {conditions}.", found


def _paths(rng: Random) -> tuple[str, int]:
    right, up = rng.randint(4, 6), rng.randint(4, 5)
    x, y = rng.randint(1, right - 1), rng.randint(1, up - 1)
    question = (
        f"A path goes from $(0,0)$ to $({right},{up})$ by steps of length $1$ to the right or up."
        f" How many such paths do not pass through $({x},{y})$?"
    )
    through = math.comb(x + y, x) * math.comb(right - x + up - y, right - x)
    return question, math.comb(right + up, right) - through


_KINDS = (_power, _multiples, _congruences, _paths)
