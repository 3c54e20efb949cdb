"""A command line as a configuration, by the rules of `turnwise.config`.

    options = parse_args(Options, argv, prog="tau:eval", description="Evaluates.")

An option is `--key value`, `--key=value`, or for a switch `--key` alone; a list takes several
words; `--section.key` reaches into a table. The file that `--config` names has the same keys.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from turnwise.config import (
    Config,
    ConfigError,
    Place,
    build,
    field_name,
    field_names,
    load_toml,
    nearest,
    override,
    table_model,
)
from turnwise.console import OutputConsole

ConfigT = TypeVar("ConfigT", bound=Config)
HELP = ("--help", "-h")


def parse_args(
    model: type[ConfigT],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    defaults: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Builds `model` from the options in `argv` and the file that `--config` names.

    Args:
        defaults: By field name, where neither says anything.

    Raises:
        ConfigError: naming the option, or the file and its key, what was found and what is
            allowed.
        SystemExit: 0 after `--help`.
    """
    parsed = parse_sections(model, {}, argv, prog=prog, description=description, defaults=defaults)
    options: ConfigT = parsed.options
    return options


@dataclass(frozen=True, slots=True)
class Parsed:
    """A configuration with sections.

    Attributes:
        options: What stands outside of the sections.
        sections: By name.
    """

    options: Any
    sections: dict[str, Any] = field(default_factory=dict)


def parse_sections(
    model: type[Config],
    sections: Mapping[str, type[Config]],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    defaults: Mapping[str, Any] | None = None,
    aliases: Mapping[str, str] | None = None,
    default_file: Path | None = None,
    origin: Path | None = None,
) -> Parsed:
    """A configuration whose file has tables of their own models beside the options.

    A key that `model` has not and one section has may be written without its section.

    Args:
        sections: Their models, by name.
        defaults: As of `parse_args`; sections by their names.
        aliases: Other names of sections.
        default_file: Read where `--config` names none.
        origin: The file that has the defaults, for errors: that of a run which goes on.

    Raises:
        ConfigError, SystemExit: see `parse_args`.
    """
    if any(word in HELP for word in argv):
        if default_file is not None:
            description += (
                f"\n\nWithout --config {default_file} is read, whose values go before the defaults"
                " below; a --config file takes its place as a whole."
            )
        print_help(model, sections, prog=prog, description=description)
        raise SystemExit(0)
    reader = _Reader(model, sections, aliases or {}, dict(defaults or {}), origin)
    given = named_option(argv, "--config")
    path = Path(given) if given is not None else default_file
    if path is not None:
        flag = "--config" if given is not None else f"the preset of {prog},"
        reader.read_file(path, flag, None if default_file is None else default_file.parent)
    for name, words in split_words(argv):
        reader.read_option(name, words)
    return reader.built()


class _Reader:
    def __init__(
        self,
        model: type[Config],
        sections: Mapping[str, type[Config]],
        aliases: Mapping[str, str],
        values: dict[str, Any],
        origin: Path | None,
    ) -> None:
        self._origin = origin
        self._models: dict[str, type[Config]] = {"": model, **sections}
        self._aliases = aliases
        self._values: dict[str, dict[str, Any]] = {
            name: dict(values.pop(name, {})) for name in sections
        }
        self._values[""] = values
        self._defaults = {
            (name, *_dashed(place)) for name, one in self._values.items() for place in _places(one)
        }
        self._path: Path | None = None
        self._in_file: set[Place] = set()
        self._flags: dict[Place, str] = {}

    def read_file(self, path: Path, flag: str, presets: Path | None) -> None:
        self._path = path
        for key, value in load_toml(path, flag, presets).items():
            section = self._section(key)
            if section and not isinstance(value, Mapping) and not field_name(self._models[""], key):
                raise ConfigError(f"{path}: {key}: must be a section, [{key}], found {value!r:.80}")
            if section is None and isinstance(value, Mapping):
                self._check_section(key, path)
            if section is not None and isinstance(value, Mapping):
                for inner in value:
                    self._check_place(section, inner, f"{path}: [{key}] {inner}", inner)
                found = field_names(self._models[section], value, f"{path}: [{key}] ")
            else:
                section = self._home(key, f"{path}: ", "key ", repr(key))
                found = field_names(self._models[section], {key: value}, f"{path}: ")
            _merge(self._values[section], found)
            self._in_file |= {(section, *place) for place in _places(found)}

    def read_option(self, name: str, words: Sequence[str]) -> None:
        section: str | None = None
        head, dot, rest = name.partition(".")
        if dot:
            section = self._section(head)
        if section is None:
            if dot:
                self._check_section(head)
            section, rest = self._home(head, "", "option ", f"--{name}"), name
        before = name.removesuffix(rest)
        if section and before:
            self._check_place(section, rest.partition(".")[0], f"--{name}", f"--{rest}")
        place = override(self._models[section], self._values[section], rest, words, section=before)
        self._flags[(section, *place)] = f"--{name}"

    def built(self) -> Parsed:
        made = {
            name: build(model, self._values[name], partial(self._name, name))
            for name, model in self._models.items()
        }
        return Parsed(made.pop(""), made)

    def _section(self, key: str) -> str | None:
        name = self._aliases.get(key, key)
        return name if name and name in self._models else None

    def _check_place(self, section: str, key: str, found: str, meant: str) -> None:
        """Raises ConfigError where a section has an option of the run, which stands in none."""
        if field_name(self._models[""], key) and not field_name(self._models[section], key):
            raise ConfigError(
                f"{found}: is an option of the run, not of {section}: write {meant}"
                + ("" if meant.startswith("--") else " before the first section")
            )

    def _check_section(self, name: str, path: Path | None = None) -> None:
        """Raises ConfigError where no section and no table is called so, with those that there are.

        The file of another method has its section, which is near to an option at best by chance.
        """
        sections = [one for one in self._models if one]
        if not sections or any(field_name(model, name) for model in self._models.values()):
            return
        tables = [
            field.replace("_", "-")
            for model in self._models.values()
            for field in model.model_fields
            if table_model(model, field) is not None
        ]
        near = difflib.get_close_matches(name, [*sections, *tables], n=1)
        hint = f"did you mean [{near[0]}]?" if near else f"there is [{'], ['.join(sections)}]"
        shown = f"--{name}.KEY" if path is None else path
        raise ConfigError(f"{shown}: unknown section [{name}]; {hint}")

    def _home(self, key: str, where: str, what: str, shown: str) -> str:
        """The section that has a key; the options before all."""
        homes = [name for name, model in self._models.items() if field_name(model, key)]
        if "" in homes or len(homes) == 1:
            return "" if "" in homes else homes[0]
        if homes:
            raise ConfigError(f"{where}{shown} is of {' and '.join(homes)}: name its section")
        known = [
            one.replace("_", "-") for model in self._models.values() for one in model.model_fields
        ]
        known += [name for name in self._models if name]
        prefix = "--" if shown.startswith("--") else ""
        raise ConfigError(f"{where}unknown {what}{shown}; {nearest(key, known, prefix=prefix)}")

    def _name(self, section: str, place: Place) -> str:
        """What to call a wrong value: the option, or the file and its key."""
        own = _dashed((section, *place))
        flags = {_dashed(one): flag for one, flag in self._flags.items()}
        for size in range(len(own), 1, -1):
            if own[:size] in flags:
                return flags[own[:size]]
        key = ".".join(part for part in own if part)
        if not place:
            of_flags = any(one[0] == section for one in flags)
            return f"{self._path}: " if self._path is not None and not of_flags else ""
        if any(own[: len(one)] == one for one in map(_dashed, self._in_file)):
            return f"{self._path}: {key}"
        if self._origin is not None and own in self._defaults:
            return f"{self._origin}: {key}"
        return f"--{key}"


def _dashed(place: Place) -> Place:
    return tuple(part.replace("_", "-") for part in place)


def split_words(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Options with their words, in order; a name without its dashes.

    Raises:
        ConfigError: a word that belongs to no option.
    """
    found: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found.append((name, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            raise ConfigError(f"{word!r} belongs to no option; options begin with --")
    return found


def named_option(argv: Sequence[str], flag: str) -> str | None:
    """What a command line gives to `flag`, before the line is parsed; None where it gives nothing.

    For what decides how the line is parsed: the file with defaults, the backend, the method.
    """
    found = None
    for index, word in enumerate(argv):
        if word == flag and index + 1 < len(argv):
            found = argv[index + 1]
        if word.startswith(f"{flag}="):
            found = word.removeprefix(f"{flag}=")
    return found


def without_option(argv: Sequence[str], flag: str) -> list[str]:
    """A command line without an option of one value."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == flag:
            next(words, None)
        elif not word.startswith(f"{flag}="):
            kept.append(word)
    return kept


NAMING = (
    "--method: name one of apps/trainers, or the import path package.module:Class of your own;"
    " --help after it lists its options"
)
"""What a command of any method says where none is named."""


def of_any_method(
    command: Callable[[str, Sequence[str]], int | None],
    before: Callable[[Sequence[str]], str | None] = lambda argv: None,
) -> Callable[[Sequence[str]], int | None]:
    """A method's command as one for every method, which `--method` names, or else `before`."""

    def run(argv: Sequence[str]) -> int | None:
        method = named_option(argv, "--method")
        if method is None:
            method = before(argv)
        if method is None and set(HELP) & set(argv):
            print(f"usage: --method NAME [--OPTION VALUE ...]\n\n{NAMING}")
            return 0
        if method is None:
            raise ConfigError(NAMING)
        return command(method, without_option(argv, "--method"))

    return run


def print_help(
    model: type[Config],
    sections: Mapping[str, type[Config]],
    *,
    prog: str,
    description: str,
) -> None:
    """Every option with what it means and its default."""
    console = OutputConsole(file=sys.stdout, highlight=False)
    console.print(Text(f"usage: {prog} [--OPTION VALUE ...]\n"), Text(f"{description}\n"), sep="\n")
    _print_options(console, model, "")
    for name, section in sections.items():
        console.print(Text(f"\n[{name}], and where no other option has the name without {name}."))
        _print_options(console, section, f"{name}.")


def _print_options(console: Console, model: type[BaseModel], prefix: str) -> None:
    for name, info in model.model_fields.items():
        flag = f"--{prefix}{name.replace('_', '-')}"
        inner = table_model(model, name)
        if inner is not None:
            console.print(Text(f"{flag}.*  {_sentence(info)}", style="bold"))
            _print_options(console, inner, f"{prefix}{name.replace('_', '-')}.")
            continue
        console.print(Text(f"{flag} {_metavar(info)}".rstrip(), style="bold"))
        console.print(Padding(Text(f"{_sentence(info)} {_default(info)}".strip()), (0, 0, 0, 4)))


def _sentence(info: FieldInfo) -> str:
    return " ".join((info.description or "").split())


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "(required)"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None or value is False or value == ():
        return ""
    shown = " ".join(map(str, value)) if isinstance(value, tuple | list) else value
    return f"(default: {shown})"


def _metavar(info: FieldInfo) -> str:
    def word(annotation: Any) -> str:
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Literal:
            return "{" + ",".join(map(str, args)) + "}"
        if origin in (tuple, list):
            return f"{word(args[0])} ..."
        if args:
            return "|".join(dict.fromkeys(word(arg) for arg in args if arg is not type(None)))
        name = getattr(annotation, "__name__", str(annotation))
        return "" if name == "bool" else name.upper()

    return word(info.annotation)


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), Mapping):
            into[name] = dict(into[name])
            _merge(into[name], value)
        else:
            into[name] = value


def _places(values: Mapping[str, Any]) -> list[Place]:
    places: list[Place] = []
    for name, value in values.items():
        inner = _places(value) if isinstance(value, Mapping) and value else [()]
        places += [(name, *place) for place in inner]
    return places
