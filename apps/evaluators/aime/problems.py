"""Problems: a data file with questions and their answers, or the built-in sample.

    {"prompt": "Find ...", "label": "204"}

Files are read as every backend reads them (`turnwise.rows.reader`). `prompt` may be a conversation
of one user message as well, as slime's data has it; `label` whatever `turnwise.answers.labels`
finds an answer in. Other names of the two are given by `--input-key` and `--label-key`: FRAMES'
`test.tsv` has `Prompt` and `Answer`, HLE `question` and `answer`, whose pictures are left out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

from turnwise.answers.frames import asked_form
from turnwise.answers.labels import read_answer, same_text
from turnwise.config import ConfigError
from turnwise.rows import Row
from turnwise.rows.files import records, split_slice
from turnwise.rows.reader import read_rows

SAMPLE = "sample"
"""Names the built-in problems in place of a file."""
_SAMPLE_SEED = 20_251
_SAMPLE_OF_EACH = 3


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of question, answer and metadata in a row."""

    input: str = "prompt"
    label: str = "label"
    metadata: str = "metadata"


def load_data(names: Sequence[str], keys: Keys) -> list[Row]:
    """The problems of every data set, in order; problem 7 of aime-2024 has the id `aime-2024/7`.

    Args:
        names: Each `sample`, a path, or `NAME=PATH`; without a name the file's stem is it. A path
            may end in a slice of rows, `@[start:end]`.
        keys: Of files.

    Raises:
        ConfigError: naming file and line, what was found and what is expected.
    """
    problems: list[Row] = []
    seen: dict[str, str] = {}
    for given in names:
        name, path = _named(given)
        if name in seen:
            raise ConfigError(
                f"--data {given}: {seen[name]} has the name {name!r} already;"
                f" write NAME=PATH to give it another"
            )
        seen[name] = given
        problems += sample() if path is None else read_problems(path, name, keys)
    return problems


def data_set(row: Row) -> str:
    """The name of a problem's data set."""
    return row.id.rpartition("/")[0]


def digest(question: str, answer: str) -> str:
    """Equal for equal question and answer, wherever they stand; 16 hex digits.

    Answers are equal here as `033` and `33` are, which the grader takes for the same.
    """
    text = f"{question.strip()}\x1f{same_text(answer)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_problems(path: Path, name: str, keys: Keys) -> list[Row]:
    """The problems of one file.

    Raises:
        ConfigError: naming file and line.
    """
    problems: list[Row] = []
    places: dict[str, str] = {}
    unseen = pictured(path)
    rows = read_rows(path, input_key=keys.input, label_key=keys.label, metadata_key=keys.metadata)
    for row in rows:
        if row.where in unseen:
            continue
        question = _question(row, keys.input)
        if question in places:
            raise ConfigError(
                f"{row.where}: the question of {places[question]} again; give every question once,"
                " --n-samples-per-eval-prompt says how often it is asked"
            )
        places[question] = row.where
        read_answer(row.label, row.where, keys.label)
        problems.append(replace(row, prompt=question, id=f"{name}/{len(problems) + 1}"))
    return problems


@cache
def pictured(path: Path) -> frozenset[str]:
    """The places of rows with a picture (`image`, as HLE has it): no policy here is shown any.

    Raises:
        ConfigError: naming file and line.
    """
    found = set()
    for number, record in enumerate(records(path)):
        if not number and "image" not in record.fields:
            break
        if record.fields.get("image"):
            found.add(record.where)
    return frozenset(found)


def left_out(names: Sequence[str]) -> int:
    """Rows with a picture of all data sets, which are no problems here."""
    paths = (_named(given)[1] for given in names)
    return sum(len(pictured(path)) for path in paths if path is not None)


def sample() -> list[Row]:
    """Generated problems with whole numbers from 0 to 999 as answers, always the same."""
    rng = Random(_SAMPLE_SEED)
    made = [make(rng) for _ in range(_SAMPLE_OF_EACH) for make in _KINDS]
    return [
        Row(question, str(answer), id=f"{SAMPLE}/{index}", where=f"{SAMPLE}/{index}")
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
