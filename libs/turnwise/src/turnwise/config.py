"""Configuration as data: frozen pydantic models, from a TOML file and dotted overrides.

Names are slime's where slime has the option, written with dashes in the file and on the command
line alike. Unknown keys are refused with the nearest name. `turnwise.arguments` reads a command
line into a model; precedence is command line, file, default.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

MAX_NAMES = 16
"""So many names are listed where none is near: more of them hide what was wrong."""

_ALLOWED = re.compile(r"'([^']*)'")


class ConfigError(ValueError):
    """What a person asked for can't be done as asked; the message says what to change."""

    invalid: ValidationError | None = None
    """What the validation of a model found."""
    model: type[BaseModel] | None = None
    """That model."""


class Config(BaseModel):
    """Base of every configuration: frozen, keyword-only, unknown keys and infinities refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            refusal = ConfigError(explain(error, model=type(self)))
            refusal.invalid, refusal.model = error, type(self)
            raise refusal from None


class CommandConfig(Config):
    """Base of what a command takes: its options may also come from a file."""

    config: Path | None = None
    """TOML file with any of these options; the command line goes before it."""


ModelT = TypeVar("ModelT", bound=BaseModel)
Place = tuple[str, ...]
"""Field names from the outermost model to a value."""


def load_toml(path: Path, flag: str = "--config", presets: Path | None = None) -> dict[str, Any]:
    """A TOML file as it stands.

    Args:
        path: The file.
        flag: Who named it, for errors: an option, or `the preset of tau`.
        presets: A folder whose files are told of where there is no such file.

    Raises:
        ConfigError: it can't be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        found = f"{flag} {path}: {error.strerror}{_files(path, presets)}"
        raise ConfigError(found) from None
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from None
    except ValueError as error:
        what = "TOML" if isinstance(error, tomllib.TOMLDecodeError) else "TOML, which is UTF-8"
        raise ConfigError(f"{path}: not valid {what}: {error}") from None
    except RecursionError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _files(path: Path, presets: Path | None) -> str:
    """A hint at the files that there are, for one that is not."""
    own = sorted((path if path.is_dir() else path.parent).glob("*.toml"))
    others = sorted(presets.glob("*.toml")) if presets is not None else []
    for folder in (own, others):
        by_name = {one.stem: one for one in folder}
        if near := difflib.get_close_matches(path.name.removesuffix(".toml"), by_name, n=1):
            return f"; did you mean {by_name[near[0]]}?"
    found = own if path.is_dir() and own else others or own
    more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
    return f"; there are {', '.join(map(str, found[:MAX_NAMES]))}{more}" if found else ""


def field_names(model: type[BaseModel], data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """A table's dashed keys as field names of `model`, the tables within it included.

    Raises:
        ConfigError: an unknown key, with the nearest one; begins with `where`.
    """
    fields: dict[str, Any] = {}
    for key, value in data.items():
        name = field_name(model, key)
        if name is None:
            known = (field.replace("_", "-") for field in model.model_fields)
            raise ConfigError(f"{where}unknown key {key!r}; {nearest(_dashed(key), known)}")
        inner = table_model(model, name)
        if inner is not None and isinstance(value, Mapping):
            value = field_names(inner, value, f"{where}{key}: ")
        fields[name] = value
    return fields


def field_name(model: type[BaseModel], key: str) -> str | None:
    """The field that a dashed key names, None if there is none."""
    name = key.replace("-", "_")
    return name if name in model.model_fields and "_" not in key else None


def table_model(model: type[BaseModel], field: str) -> type[BaseModel] | None:
    """The model that a field holds, if it holds one."""
    for found in _members(model.model_fields[field].annotation):
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return None


def override(
    model: type[BaseModel],
    data: dict[str, Any],
    key: str,
    words: Sequence[str],
    *,
    section: str = "",
) -> Place:
    """Sets what a dotted key names in `data`, which has field names; returns its place.

    A list takes all the words, a switch none or one, everything else one. `section` is what stands
    before the key on the command line.

    Raises:
        ConfigError: there is no such key, with the nearest one, or it takes other words.
    """
    place: list[str] = []
    parts, table = key.split("."), data
    key = f"{section}{key}"
    for depth, part in enumerate(parts):
        name = field_name(model, part)
        if name is None:
            known = (field.replace("_", "-") for field in model.model_fields)
            before = section + ".".join([*parts[:depth], ""])
            raise ConfigError(
                f"unknown option --{key}; {nearest(part, known, prefix=f'--{before}')}"
            )
        place.append(name)
        inner = table_model(model, name)
        rest = parts[depth + 1 :]
        if rest and inner is None:
            if dict not in map(_origin, _members(model.model_fields[name].annotation)):
                raise ConfigError(f"--{key}: {'.'.join(parts[: depth + 1])} has no keys")
            table[name] = {**table.get(name, {}), ".".join(rest): " ".join(words)}
            return (*place, *rest)
        if not rest:
            table[name] = _value(key, model.model_fields[name].annotation, words)
            return tuple(place)
        assert inner is not None
        found = table.get(name)
        model, table[name] = inner, dict(found) if isinstance(found, Mapping) else {}
        table = table[name]
    raise AssertionError("a key has at least one part")


def build(model: type[ModelT], values: Mapping[str, Any], name: Callable[[Place], str]) -> ModelT:
    """`model` from values by field name.

    Args:
        name: What to call the value at a place, where it is wrong.

    Raises:
        ConfigError: naming the value, what was found and what is allowed.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, name, model=model)) from None


def explain(
    error: ValidationError,
    name: Callable[[Place], str] | None = None,
    *,
    model: type[BaseModel] | None = None,
) -> str:
    """The first thing that a validation found, in one line.

    Args:
        error: Of the validation.
        name: What to call the value at a place; its dashed key where None.
        model: What was validated.
    """
    first = _first(error)
    place = tuple(str(part) for part in first["loc"])
    inner = first.get("ctx", {}).get("error")
    while isinstance(inner, ConfigError) and inner.invalid is not None:
        first, model = _first(inner.invalid), inner.model
        place += tuple(str(part) for part in first["loc"])
        inner = first.get("ctx", {}).get("error")
    key = ".".join(map(_dashed, place)) if name is None else name(place)
    if isinstance(inner, ConfigError):
        return f"{key}.{inner}" if place else f"{key}{inner}"
    found = "" if isinstance(first["input"], Mapping) else f", found {_shown(first['input'])}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        message, found = "is needed", ""
    elif first["type"] == "extra_forbidden" and model is not None and len(first["loc"]) == 1:
        message, found = (
            f"unknown key; {nearest(_dashed(place[-1]), map(_dashed, model.model_fields))}",
            "",
        )
    elif first["type"] == "literal_error":
        allowed = _ALLOWED.findall(first["ctx"]["expected"])
        if near := difflib.get_close_matches(str(first["input"]), allowed, n=1):
            found += f"; did you mean {near[0]!r}?"
    return f"{f'{key}: ' if place else key}{message}{found}"


def _first(error: ValidationError) -> Any:
    """What is to be told of it: a misspelt key before the one that is missing for that."""
    found = error.errors(include_url=False)
    return next((one for one in found if one["type"] == "extra_forbidden"), found[0])


def nearest(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """A hint for a name that is not known: the nearest one, or all of them where they are few."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {prefix}{near[0]!s}?" if prefix else f"did you mean {near[0]!r}?"
    shown = ", ".join(f"{prefix}{one}" for one in names[:MAX_NAMES])
    if len(names) <= MAX_NAMES:
        return f"there are {shown}"
    return f"there are {shown} and {len(names) - MAX_NAMES} more, which --help lists"


def _value(key: str, annotation: Any, words: Sequence[str]) -> Any:
    members = _members(annotation)
    if bool in members and not words:
        return True
    if any(_origin(member) in (list, tuple, set, frozenset) for member in members):
        return list(words)
    if len(words) != 1:
        found = f"found {' '.join(words)!r}" if words else "found none"
        raise ConfigError(f"--{key}: takes one value, {found}")
    if type(None) in members and words[0].lower() == "none":
        return None
    return words[0]


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, however it is written; else the annotation itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(inner for arg in get_args(annotation) for inner in _members(arg))
    return (annotation,)


def _origin(annotation: Any) -> Any:
    return get_origin(annotation) or annotation


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
