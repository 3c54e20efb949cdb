"""Configuration as data: frozen pydantic models, a TOML file, command-line overrides.

Names are slime's where slime has the option, written with dashes in the file and on the command
line alike. Unknown keys are refused with the nearest name. Precedence: command line, file,
default.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import tyro
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError


class ConfigError(ValueError):
    """What a person asked for can't be done as asked; the message says what to change."""


class Config(BaseModel):
    """Base of every configuration: frozen, keyword-only, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from None


class CommandConfig(Config):
    """Base of what a command takes: its options may also come from a file."""

    config: Path | None = None
    """TOML file with any of these options; the command line goes before it."""


ConfigT = TypeVar("ConfigT", bound=CommandConfig)


def parse_args(
    model: type[ConfigT],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    defaults: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Builds `model` from the options in `argv` and the file that `--config` names.

    `defaults`, by field name, stand where neither says anything.

    Raises:
        ConfigError: naming the file and key, what was found and what is allowed.
        SystemExit: 0 after `--help`; 2 on a bad option, which has been printed with what is
            allowed or the nearest name.
    """
    name = named_option(argv, "--config")
    path = None if name is None else Path(name)
    given = {**(defaults or {}), **({} if path is None else read_toml(model, path))}
    return tyro.cli(
        model,
        prog=prog,
        description=description,
        args=list(argv),
        default=_partial(model, given, path),
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _partial(model: type[ConfigT], given: Mapping[str, Any], path: Path | None) -> ConfigT:
    """`model` with the file's values checked one by one; what they say together is checked later.

    Required fields that the file leaves out are left to the command line.
    """
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if name in given:
            try:
                adapter = TypeAdapter(field.rebuild_annotation())
                values[name] = adapter.validate_python(given[name])
            except ValidationError as error:
                raise ConfigError(f"{path}: {_explain(error, key=name)}") from None
        elif field.is_required():
            values[name] = tyro.MISSING
    return model.model_construct(**values)


def read_toml(model: type[Config], path: Path) -> dict[str, Any]:
    """Reads a TOML file into keyword arguments of `model`; dashed keys become field names.

    Raises:
        ConfigError: if it can't be read, is no TOML, or has an unknown key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    return _field_names(model, data, path)


def _field_names(model: type[BaseModel], data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    known = {name.replace("_", "-"): name for name in model.model_fields}
    fields: dict[str, Any] = {}
    for key, value in data.items():
        if key not in known:
            near = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{path}: unknown key {key!r}{hint}")
        section = _section(model, known[key])
        if section is not None and isinstance(value, Mapping):
            value = _field_names(section, value, path)
        fields[known[key]] = value
    return fields


def _section(model: type[BaseModel], field: str) -> type[BaseModel] | None:
    annotation = model.model_fields[field].annotation
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known: the nearest one, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"


def named_option(argv: Sequence[str], flag: str) -> str | None:
    """What a command line gives to `flag`, before the line is parsed; None where it gives nothing.

    For what decides how the line is parsed: the file with defaults, the backend.
    """
    for index, word in enumerate(argv):
        if word == flag and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def _explain(error: ValidationError, *, key: str = "") -> str:
    first = error.errors(include_url=False)[0]
    parts = [*([key] if key else []), *first["loc"]]
    key = ".".join(str(part).replace("_", "-") for part in parts)
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):
        return f"{key}.{inner}"
    found = "" if isinstance(first["input"], Mapping) else f", found {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{f'{key}: ' if key else ''}{message}{found}"
