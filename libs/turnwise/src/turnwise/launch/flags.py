"""What slime's `train.py` accepts, checked before anything starts.

slime parses its command line three times with unknown flags ignored, so a misspelt one is lost
without a word. `slime_flags.tsv` (made by `make_tables`) lists every flag of slime, Megatron-LM and
SGLang with its type and choices at one commit; this module holds options against it. `ask_slime`
additionally asks the parser of the slime that a node has.
"""

from __future__ import annotations

import difflib
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from turnwise.config import MAX_NAMES, ConfigError, nearest

_SIZE = re.compile(r"\d+(?:\.\d+)?[kKmMgG]?")
_NUMBER = re.compile(r"-\.?\d")
ASK_TIMEOUT_S = 120
# Runs in the node's Python: argparse answers on stderr with exit status 2, slime's own checks by
# an exception. A parser that can't be loaded has refused nothing.
NOT_LOADED = 77
_ASK = f"""
import os, sys, traceback
try:
    from slime.utils.arguments import parse_args
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit({NOT_LOADED})
sys.argv = ["train.py", *sys.argv[1:]]
parse_args()
"""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of slime's command line.

    Attributes:
        name: With its dashes, `--eps-clip-high`.
        owner: The parser that adds it: `slime`, `megatron` or `sglang`.
        kind: `switch` (takes nothing), `text`, `int`, `float`, `bool`, `json`, `size` (an int that
            may end in k, M or G) or `choice`.
        count: How many values follow, as argparse's nargs: "" is one, else `?`, `*`, `+` or a
            number.
        repeats: May be given several times.
        choices: The allowed values; empty if any value of the kind is.
    """

    name: str
    owner: str
    kind: str
    count: str = ""
    repeats: bool = False
    choices: tuple[str, ...] = ()


def _table(name: str) -> tuple[dict[str, str], list[list[str]]]:
    text = resources.files("turnwise.launch").joinpath(name).read_text("utf-8")
    lines = text.splitlines()
    versions = dict(line[2:].split(" ", 1) for line in lines if line.startswith("#"))
    return versions, [line.split("\t") for line in lines if not line.startswith("#")]


@cache
def versions() -> Mapping[str, str]:
    """Commits of `slime` and `megatron` and version of `sglang` that the table was made from."""
    return _table("slime_flags.tsv")[0]


@cache
def slime_flags() -> Mapping[str, Flag]:
    """Every flag by its name with dashes."""
    flags = {}
    for row in _table("slime_flags.tsv")[1]:
        name, owner, kind, count, choices = row + [""] * (5 - len(row))
        flags[name] = Flag(
            name,
            owner,
            kind,
            count.removesuffix("append").strip(),
            count.endswith("append"),
            tuple(choices.split()),
        )
    return flags


@cache
def model_arguments() -> Mapping[str, tuple[str, ...]]:
    """Megatron's arguments of every model that slime has a script for, by slime's name."""
    return {name: tuple(words.split()) for name, words in _table("slime_models.tsv")[1]}


def unknown(name: str, known: Iterable[str], what: str) -> str:
    """The sentence for a name that does not exist, with the nearest one that does, or all where
    they are few."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = nearest(name, names) if near or len(names) <= MAX_NAMES else ""
    return f"unknown {what} {name!r}" + (f"; {hint}" if hint else "")


def find_flag(name: str) -> Flag:
    """The flag of that name, given with or without its dashes.

    Raises:
        ConfigError: there is none; the message has the nearest name.
    """
    bare = name.removeprefix("--")
    flag = slime_flags().get(f"--{bare}")
    if flag is None:
        names = [known.removeprefix("--") for known in slime_flags()]
        raise ConfigError(unknown(bare, names, "flag of slime"))
    return flag


def to_arguments(options: Mapping[str, Any], section: str) -> list[str]:
    """Options as command-line words, each checked.

    Args:
        options: Values by flag name without dashes. A switch takes true, or false to leave it
            out; a flag with several values takes a list.
        section: Where they stand, for errors.

    Raises:
        ConfigError: unknown flag, wrong type, wrong number of values or not a choice.
    """
    words: list[str] = []
    for name, value in options.items():
        try:
            flag = find_flag(name)
            words += _words(flag, value)
        except ConfigError as error:
            raise ConfigError(f"[{section}] {error}") from None
    return words


def check_arguments(argv: Sequence[str]) -> dict[str, list[str]]:
    """Holds a list of command-line words against the table.

    Returns:
        The values by flag name with dashes, in order; a switch has none.

    Raises:
        ConfigError: as `to_arguments`, or a word belongs to no flag, or a flag occurs twice.
    """
    found: dict[str, list[str]] = {}
    for name, values in split_arguments(argv):
        flag = find_flag(name)
        if name in found and not flag.repeats:
            raise ConfigError(f"{name} is given twice: {found[name]} and {values}")
        _check_count(flag, values)
        for value in values:
            _check_text(flag, value)
        found.setdefault(name, []).extend(values)
    return found


def split_arguments(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each `--name` with the words up to the next one; `--name=value` is taken apart.

    Raises:
        ConfigError: the first word is no flag.
    """
    name: str | None = None
    values: list[str] = []
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            if name is not None:
                yield name, values
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        elif name is None:
            raise ConfigError(f"{word!r} belongs to no flag")
        else:
            values.append(word)
    if name is not None:
        yield name, values


def _words(flag: Flag, value: Any) -> list[str]:
    bare = flag.name.removeprefix("--")
    if flag.kind in ("switch", "bool"):
        if not isinstance(value, bool):
            raise ConfigError(f"{bare}: must be true or false, found {value!r}")
        # argparse's `bool` takes every text for true, "false" included.
        return [flag.name, *(["true"] if flag.kind == "bool" else [])] if value else []
    given = value if isinstance(value, (list, tuple)) else [value]
    texts = [_text(flag, one) for one in given]
    _check_count(flag, texts)
    for text in texts:
        _check_text(flag, text)
    return [flag.name, *texts]


def _text(flag: Flag, value: Any) -> str:
    bare = flag.name.removeprefix("--")
    if flag.kind == "json":
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(f"{bare}: must be {_expected(flag)}, found {value!r}")
    return str(value)


def _expected(flag: Flag) -> str:
    if flag.choices:
        return "one of " + ", ".join(flag.choices)
    return {
        "int": "a whole number",
        "float": "a number",
        "bool": "true",
        "json": "JSON",
        "size": "a whole number, or one with k, M or G",
    }.get(flag.kind, "text")


def _check_count(flag: Flag, values: Sequence[str]) -> None:
    bare = flag.name.removeprefix("--")
    number = len(values)
    if flag.kind == "switch":
        if number:
            raise ConfigError(f"{bare}: takes no value, found {' '.join(values)!r}")
        return
    fits = {"": number == 1, "?": number <= 1, "*": True, "+": number >= 1}
    if not fits.get(flag.count, number == (int(flag.count) if flag.count.isdigit() else -1)):
        wanted = {"": "one value", "?": "at most one value", "+": "one value or more"}
        raise ConfigError(
            f"{bare}: takes {wanted.get(flag.count, f'{flag.count} values')}, found {number}"
        )


def _check_text(flag: Flag, value: str) -> None:
    if flag.choices:
        fits = value in flag.choices
    elif flag.kind == "int":
        fits = re.fullmatch(r"[+-]?\d+", value) is not None
    elif flag.kind == "float":
        fits = _is_float(value)
    elif flag.kind == "size":
        fits = _SIZE.fullmatch(value) is not None
    elif flag.kind == "bool":
        fits = value == "true"
    elif flag.kind == "json":
        fits = _is_json(value)
    else:
        fits = value != "" and (not value.startswith("-") or _NUMBER.match(value) is not None)
    if not fits:
        bare = flag.name.removeprefix("--")
        raise ConfigError(f"{bare}: must be {_expected(flag)}, found {value!r}")


def _is_float(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


class NoAnswer(Exception):
    """slime's parser said nothing about the flags."""


def ask_slime(
    arguments: Sequence[str],
    python: str,
    environment: Mapping[str, str],
    timeout_s: float = ASK_TIMEOUT_S,
) -> str:
    """Asks the parser of the installed slime, in a process of its own.

    Its checks open the checkpoint folders that the arguments name, so this must run where they
    are. Unknown flags pass it; `check_arguments` finds those.

    Args:
        arguments: What `train.py` will get.
        python: The node's interpreter.
        environment: The complete environment of the process.
        timeout_s: Importing Megatron and SGLang takes most of it.

    Returns:
        "" if it agrees, else its last words.

    Raises:
        NoAnswer: it could not be loaded, or not in time.
    """
    try:
        done = subprocess.run(
            [python, "-c", _ASK, *arguments],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"gave no answer in {timeout_s:.0f} s") from None
    except OSError as error:
        raise NoAnswer(f"{python}: {error.strerror}") from None
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    last = said[-1] if said else f"it ended with status {done.returncode}"
    if done.returncode == NOT_LOADED or done.returncode < 0:
        raise NoAnswer(f"could not be loaded: {last}")
    return last
