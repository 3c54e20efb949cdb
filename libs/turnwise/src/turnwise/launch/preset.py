"""A run of the cluster as one TOML file: slime's options in sections, ours in four more.

    [model]     name = "qwen3-4B-Instruct-2507"     a model of slime, args = [...] after it
    [method]    the method's options, tables within it included; its own name, [tau], does as well
    [ray]       where the job runs
    [stop]      where it ends because it goes wrong
    [cluster] [ckpt] [rollout] [optimizer] [grpo] [wandb] [perf] [eval] [sglang] [misc]
                slime's flags by their names without dashes, in any of them

The command line goes before the file: `--eps-clip 0.1` changes slime's flag in the section that
has it (or adds it to [misc]); `--tau.env airline`, `--tau.user.strategy offline`,
`--ray.address URL`, `--model.name NAME` and `--ray.env-vars.NCCL_DEBUG INFO` change ours, and
`--max-logprob-diff 0.2` and `--patience 40` those of [stop]. Our sections are read by the rules of
`turnwise.config`, as every command line and file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny, field_validator, model_validator

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
)
from turnwise.launch.flags import (
    Flag,
    find_flag,
    model_arguments,
    slime_flags,
    split_arguments,
    unknown,
)
from turnwise.local.options import TrainOptions
from turnwise.method import Method, find_method, method_name
from turnwise.stopping import StopLimits

# Options of the commands themselves, for hints.
COMMAND = ("run-dir", "detach", "takeover", "dry-run", "debug", "config")
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


_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH", re.IGNORECASE)


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
            if _SECRET.search(name):
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
    """What the hooks play: a name or an import path."""
    method_options: SerializeAsAny[Config]
    """Its options."""
    ray: RayConfig = RayConfig()
    """Where the job runs."""
    stop: StopLimits = StopLimits()
    """Where it ends because it goes wrong."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """slime's flags by section."""


def read_run(path: Path, overrides: Sequence[str] = (), *, method: str | None = None) -> RunConfig:
    """Reads a run's file and the command line that goes before it.

    Args:
        path: The TOML file.
        overrides: Words of the command line, `--eps-clip 0.1 --tau.env airline`.
        method: By its name or import path; the name of the file's section where None.

    Raises:
        ConfigError: naming file or flag, what was found and what is allowed.
    """
    local = find_method(method).preset if method is not None else None
    data = load_toml(path, presets=None if local is None else local.parent)
    method = method or _only_method(data, path)
    cls = find_method(method)
    own = {"method": "method", method_name(cls): "method", method: "method"}
    homes = {"model": "model", "ray": "ray", "stop": "stop", **own}
    _check_shape(data, (*homes, *SECTIONS), path)
    _check_flags(data, cls, path)
    models: dict[str, type[Config]] = {
        "model": ModelConfig,
        "ray": RayConfig,
        "stop": StopLimits,
        "method": cls.Options,
    }
    ours: dict[str, dict[str, Any]] = {name: {} for name in models}
    named = {name: name for name in models}
    for section in homes:
        if section in data:
            home = homes[section]
            if named[home] != home and ours[home]:
                raise ConfigError(f"{path}: [{section}] is [{named[home]}]: give one of them")
            named[home] = section
            ours[home] = field_names(models[home], data.pop(section), f"{path}: [{section}] ")
    flags: dict[tuple[str, ...], str] = {}
    for name, values in split_arguments(overrides):
        word = name.removeprefix("--")
        if word.replace("-", "_") in StopLimits.model_fields:
            word = f"stop.{word}"
        section, _, key = word.partition(".")
        if key and section in homes:
            home = homes[section]
            place = override(models[home], ours[home], key, values, section=f"{section}.")
            flags[(home, *place)] = name
        else:
            _check_override(word, cls, tuple(homes))
            _override(data, word, values)

    def made(home: str) -> Any:
        def call(place: Place) -> str:
            key = ".".join(part.replace("_", "-") for part in place)
            return flags.get((home, *place)) or f"{path}: [{named[home]}] {key}"

        return build(models[home], ours[home], call)

    return RunConfig(
        model=made("model"),
        method=method,
        method_options=made("method"),
        ray=made("ray"),
        stop=made("stop"),
        options={section: dict(data[section]) for section in SECTIONS if section in data},
    )


def _only_method(data: Mapping[str, Any], path: Path) -> str:
    """The method that the file's own section names."""
    known = ("model", "ray", "stop", *SECTIONS)
    others = [name for name, one in data.items() if name not in known and isinstance(one, dict)]
    if not others or others == ["method"]:
        raise ConfigError(f"{path}: say which method it is for: --method NAME, or a section [NAME]")
    try:
        find_method(others[0])
    except ConfigError:
        raise ConfigError(f"{path}: {unknown(others[0], known, 'section')}") from None
    return others[0]


def _check_shape(data: Mapping[str, Any], known: Sequence[str], path: Path) -> None:
    homes: dict[str, str] = {}
    for section, content in data.items():
        if section not in known and not isinstance(content, dict):
            raise ConfigError(
                f"{path}: {section}: stands in no section, and a run on slime has nothing but"
                " sections; a file of a run on one machine goes without --backend slime"
            )
        if section not in known:
            raise ConfigError(f"{path}: unknown section [{section}]; {nearest(section, known)}")
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {section}: must be a section, [{section}]")
        for key in content if section in SECTIONS else ():
            if key in homes:
                raise ConfigError(f"{path}: {key} stands in [{homes[key]}] and in [{section}]")
            homes[key] = section


def _check_flags(data: Mapping[str, Any], cls: type[Method[Any, Any]], path: Path) -> None:
    """Raises ConfigError where a section of slime's has a key that is no flag of slime."""
    for section in SECTIONS:
        for key in data.get(section, {}):
            if f"--{key}" in slime_flags():
                continue
            if field_name(cls.Options, key):
                own = method_name(cls)
                raise ConfigError(f"{path}: [{section}] {key}: is an option of [{own}], the method")
            names = [flag.removeprefix("--") for flag in slime_flags()]
            raise ConfigError(f"{path}: [{section}] {unknown(key, names, 'flag of slime')}")


def _check_override(name: str, cls: type[Method[Any, Any]], ours: Sequence[str]) -> None:
    """Raises ConfigError where an option of the command line is neither slime's nor ours."""
    section, dot, key = name.partition(".")
    if dot and section not in SECTIONS:
        raise ConfigError(f"--{name}: {unknown(section, (*ours, *SECTIONS), 'section')}")
    bare = key if dot else name
    if f"--{bare}" in slime_flags():
        return
    if field_name(cls.Options, bare):
        own = method_name(cls)
        raise ConfigError(f"--{name}: is an option of the method: --{own}.{bare}")
    if field_name(TrainOptions, bare):
        raise ConfigError(f"--{name}: is an option of a run on one machine, --backend local")
    flags = [flag.removeprefix("--") for flag in slime_flags()]
    limits = [limit.replace("_", "-") for limit in StopLimits.model_fields]
    raise ConfigError(unknown(bare, [*limits, *flags, *COMMAND], "flag of slime"))


def _override(data: dict[str, Any], name: str, values: list[str]) -> None:
    section, dot, key = name.partition(".")
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
