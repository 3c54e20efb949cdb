"""A run of the cluster as one TOML file: slime's options in sections, ours in three more.

    [model]     name = "qwen3-4B-Instruct-2507"     a model of slime, args = [...] after it
    [tau]       what the hooks do; the section's name is the method, and its keys are the method's
                options, tables within it included
    [ray]       where the job runs
    [cluster] [ckpt] [rollout] [optimizer] [grpo] [wandb] [perf] [eval] [sglang] [misc]
                slime's flags by their names without dashes, in any of them

The command line goes before the file: `--eps-clip 0.1` changes slime's flag in the section that
has it (or adds it to [misc]); `--tau.env airline`, `--tau.user.strategy offline`,
`--ray.address URL`, `--model.name NAME` and `--ray.env-vars.NCCL_DEBUG INFO` change ours.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, Field, SerializeAsAny, field_validator, model_validator

from turnwise.config import Config, ConfigError
from turnwise.launch.flags import Flag, find_flag, model_arguments, split_arguments, unknown
from turnwise.method import find_method

# The order in which a plan lists the sections.
SECTIONS = (
    "cluster",
    "ckpt",
    "rollout",
    "optimizer",
    "grpo",
    "wandb",
    "perf",
    "eval",
    "sglang",
    "misc",
)
ConfigT = TypeVar("ConfigT", bound=Config)
OURS = ("model", "ray")


class ModelConfig(Config):
    """[model]: the architecture, which Megatron is told by arguments."""

    name: str | None = None
    """slime's name of the model; its arguments are shipped."""
    args: tuple[str, ...] = ()
    """Arguments after the model's own: all of them if there is no name."""

    @model_validator(mode="after")
    def _known(self) -> ModelConfig:
        if self.name is not None and self.name not in model_arguments():
            raise ValueError(f"name: {unknown(self.name, model_arguments(), 'model of slime')}")
        if self.name is None and not self.args:
            raise ValueError("name: is needed, or args with all of Megatron's model arguments")
        return self

    def words(self) -> tuple[str, ...]:
        """The model's arguments; a flag in `args` takes the place of the same flag before it."""
        own = dict(split_arguments(self.args))
        named = () if self.name is None else model_arguments()[self.name]
        merged = {**dict(split_arguments(named)), **own}
        return tuple(word for name, values in merged.items() for word in (name, *values))


class RayConfig(Config):
    """[ray]: the cluster that the job is submitted to."""

    address: str | None = None
    """Address of a running cluster's Jobs API, http://HOST:8265; without it the run has a head of
    its own."""
    python: str = "python3"
    """Interpreter on the nodes."""
    slime_dir: Path = Path("/root/slime")
    """slime on the nodes."""
    megatron_dir: Path = Path("/root/Megatron-LM")
    """Megatron-LM on the nodes."""
    node_ip: str = "127.0.0.1"
    """Address that an own head listens at; other nodes join only if they can reach it."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of an own head for nodes that join; 0 takes a free one."""
    dashboard_port: int = Field(default=0, ge=0, le=65535)
    """Port of an own head's dashboard and Jobs API; 0 takes a free one."""
    temp_dir: Path | None = None
    """Folder of an own head's sessions, a short path: Unix sockets lie in it. Without it, a new
    folder under the system's."""
    env_vars: dict[str, str] = Field(default_factory=dict)
    """Environment of the job on every node. Ray shows it in its dashboard: no secrets here."""

    @field_validator("address")
    @classmethod
    def _is_a_url(cls, address: str | None) -> str | None:
        if address is not None and not address.startswith(("http://", "https://")):
            raise ValueError("must be the address of the Jobs API such as http://HOST:8265")
        return address

    @field_validator("env_vars")
    @classmethod
    def _holds_no_secret(cls, variables: dict[str, str]) -> dict[str, str]:
        for name in variables:
            if name.upper().endswith(("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")):
                raise ValueError(
                    f"{name} looks like a secret, and Ray shows the environment of a job to "
                    "everybody; set it in the environment of the nodes instead"
                )
        return variables


class RunConfig(Config):
    """The whole file."""

    model: ModelConfig
    """The architecture."""
    method: str
    """What the hooks play, by the name of its section."""
    method_options: SerializeAsAny[Config]
    """That section, as the method takes it."""
    ray: RayConfig = RayConfig()
    """Where the job runs."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """slime's flags by section."""


def read_run(path: Path, overrides: Sequence[str] = (), *, method: str | None = None) -> RunConfig:
    """Reads a run's file and the command line that goes before it.

    Args:
        path: The TOML file.
        overrides: Words of the command line, `--eps-clip 0.1 --tau.env airline`.
        method: The only one that the command is for.

    Raises:
        ConfigError: naming file or flag, what was found and what is allowed.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    section = _method(data, method, path)
    _check_shape(data, path)
    for name, values in split_arguments(overrides):
        try:
            _override(data, name.removeprefix("--"), values, section)
        except ConfigError as error:
            raise ConfigError(f"command line: {error}") from None
    try:
        return _build(data, section)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _method(data: Mapping[str, Any], wanted: str | None, path: Path) -> str:
    """The method, which is the section's name."""
    others = [name for name in data if name not in (*OURS, *SECTIONS)]
    if wanted is None and not others:
        raise ConfigError(f"{path}: one section must name the method, such as [tau]; found none")
    method = wanted or others[0]
    wrong = [name for name in others if name != method]
    try:
        find_method(method)
    except ConfigError:
        if wanted is not None:
            raise
        wrong = others
    if wrong:
        names = (*OURS, *SECTIONS, *([method] if wanted else []))
        raise ConfigError(f"{path}: {unknown(wrong[0], names, 'section')}")
    return method


def _check_shape(data: Mapping[str, Any], path: Path) -> None:
    homes: dict[str, str] = {}
    for section, content in data.items():
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {section}: must be a section, [{section}]")
        for key in content if section in SECTIONS else ():
            if key in homes:
                raise ConfigError(f"{path}: {key} stands in [{homes[key]}] and in [{section}]")
            homes[key] = section


def _override(data: dict[str, Any], name: str, values: list[str], method: str) -> None:
    section, dot, key = name.partition(".")
    if dot and section in (*OURS, method):
        place = data.setdefault(section, {})
        key, dot, inner = key.partition(".")
        if dot:
            place, key = place.setdefault(key, {}), inner
        if not values:
            raise ConfigError(f"--{name}: takes a value")
        place[key] = values[0] if len(values) == 1 else values
        return
    if dot and section not in SECTIONS:
        raise ConfigError(unknown(section, (*OURS, method, *SECTIONS), "section"))
    flag = find_flag(key if dot else name)
    bare = flag.name.removeprefix("--")
    homes = [home for home in SECTIONS if bare in data.get(home, {})]
    home = homes[0] if homes else (section if dot else "misc")
    data.setdefault(home, {})[bare] = _override_value(flag, values)


def _override_value(flag: Flag, values: list[str]) -> Any:
    if flag.kind in ("switch", "bool"):
        word = values[0] if len(values) == 1 else "true" if not values else " ".join(values)
        if word not in ("true", "false"):
            raise ConfigError(f"{flag.name}: takes nothing, true or false, found {word!r}")
        return word == "true"
    if not values:
        raise ConfigError(f"{flag.name}: takes a value")
    return values if flag.count else values[0] if len(values) == 1 else values


def _build(data: Mapping[str, Any], method: str) -> RunConfig:
    options = {section: dict(data[section]) for section in SECTIONS if section in data}
    return RunConfig(
        model=_section(ModelConfig, data, "model"),
        method=method,
        method_options=_section(find_method(method).Options, data, method),
        ray=_section(RayConfig, data, "ray"),
        options=options,
    )


def _section(model: type[ConfigT], data: Mapping[str, Any], name: str) -> ConfigT:
    fields = _fields(model, data.get(name, {}), f"[{name}]")
    try:
        return model(**fields)
    except ConfigError as error:
        raise ConfigError(f"[{name}] {error}") from None


def _fields(model: type[BaseModel], section: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A section's keys as the fields of `model`, tables within it included."""
    known = {field.replace("_", "-"): field for field in model.model_fields}
    fields: dict[str, Any] = {}
    for key, value in section.items():
        if key not in known:
            raise ConfigError(f"{place} {unknown(key, known, 'key')}")
        inner = _table(model, known[key])
        if known[key] == "args" and isinstance(value, str):
            value = [value]
        elif inner is not None and isinstance(value, Mapping):
            value = _fields(inner, value, f"{place.removesuffix(']')}.{key}]")
        fields[known[key]] = value
    return fields


def _table(model: type[BaseModel], field: str) -> type[BaseModel] | None:
    """The model that a field holds, if it holds one."""
    annotation = model.model_fields[field].annotation
    for found in (annotation, *get_args(annotation)):
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return None
