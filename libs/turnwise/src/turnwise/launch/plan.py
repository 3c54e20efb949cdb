"""A run's file as what slime is started with.

1. The arguments are slime's own: cluster, model, then the sections in the order of `SECTIONS`,
   then our hooks. Each is held against slime's table, all of them against each other (`rules`).
   A section's flag goes before the same flag of the model.
2. The method's section reaches the hooks as `args.turnwise`, a dict with the field names of its
   options and `method`, its name; the run folder as `args.turnwise_run_dir`. slime sets both from
   the file that `--custom-config-path` names; the file travels with our code, so the path is
   relative to the job's working folder.
3. An `objective` among the method's options becomes the flag of slime that gives it (`OBJECTIVES`).
4. A switch or value that a rule forbids for the model is left out and said in a note; SGLang's
   access log, some five lines an episode, is off unless it is asked for (`DEFAULTS`). Nothing else
   is changed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from turnwise.config import Config, ConfigError
from turnwise.launch.flags import check_arguments, split_arguments, to_arguments, unknown
from turnwise.launch.preset import SECTIONS, RunConfig
from turnwise.launch.rules import MLA_SWITCH, check_rules, whole
from turnwise.method import find_method

Debug = Literal["rollout", "replay"]
CUSTOM_CONFIG = "turnwise.json"
HOOKS = {
    "custom-generate-function-path": "turnwise.slime.generate",
    "custom-rm-path": "turnwise.slime.reward_func",
    "custom-reward-post-process-path": "turnwise.slime.post_process_rewards",
    "rollout-data-postprocess-path": "turnwise.slime.train_data",
    "dynamic-sampling-filter-path": "turnwise.slime.dynamic_filter",
    "custom-rollout-log-function-path": "turnwise.slime.rollout_log",
    "custom-eval-rollout-log-function-path": "turnwise.slime.eval_log",
    "custom-config-path": CUSTOM_CONFIG,
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "turn-mean": {},
    "rollout-token-mean": {},
    "global-token-mean": {"calculate-per-token-loss": True},
}
"""How the losses of a step's tokens are averaged, by the method's option `objective`: over
rollouts the mean over their turns of the token mean, which our hook in the trainer makes; over
rollouts the token mean (slime's own way); over all tokens of the step."""
DEFAULTS = {"sglang-log-level-http": "warning"}
"""Flags that a run has where it does not say otherwise."""
# Megatron overlaps communication and computation only with a single connection per device.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
# What a debug run has no use for: it ends after one rollout and evaluates nothing.
_NOT_IN_DEBUG = {"eval-interval", "save-interval", "num-epoch"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be started.

    Attributes:
        arguments: What slime's `train.py` gets.
        options: The same by flag, as `check_arguments` gives them.
        entrypoint: The shell command of the job.
        environment: The job's environment variables on every node.
        custom_config: Content of the file `turnwise.json` that the job finds in its working folder.
        nodes: Number of machines.
        gpus_per_node: GPUs that the run takes on each of them.
        notes: What was changed or is worth knowing, a sentence each.
    """

    arguments: tuple[str, ...]
    options: dict[str, list[str]]
    entrypoint: str
    environment: dict[str, str]
    custom_config: dict[str, Any]
    nodes: int
    gpus_per_node: int
    notes: tuple[str, ...]

    def text(self) -> str:
        """The arguments for people: a line a flag, then the notes."""
        lines = [
            f"{self.nodes} node(s) x {self.gpus_per_node} GPU(s), train.py with",
            *(f"  {' '.join((name, *values))}" for name, values in self.options.items()),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def value(self, name: str) -> str | None:
        """The value of a flag with one value, or None."""
        values = self.options.get(name)
        return values[0] if values else None


def make_plan(config: RunConfig, *, run_dir: Path, debug: Debug | None = None) -> Plan:
    """Resolves a run's configuration.

    Args:
        config: What `read_run` gave.
        run_dir: The run folder; a debug run keeps its rollouts there.
        debug: `rollout` makes one batch of rollouts and trains nothing; `replay` trains on rollouts
            that were saved.

    Raises:
        ConfigError: an unknown flag, a wrong type or choice, or flags that don't go together.
    """
    notes: list[str] = []
    sections = {name: dict(config.options.get(name, {})) for name in SECTIONS}
    _fit_attention(config, sections, notes)
    _add_gpus_per_node(sections)
    if debug is not None:
        _debug(sections, debug, run_dir, notes)
    words = to_arguments(sections["cluster"], "cluster")
    words += _model_words(config, sections)
    for name in SECTIONS[1:]:
        words += to_arguments(sections[name], name)
    given = {name for content in sections.values() for name in content}
    words += to_arguments({n: v for n, v in DEFAULTS.items() if n not in given}, "defaults")
    words += to_arguments(_hooks(config.method, sections), "hooks")
    words += to_arguments(_objective(config, sections), "objective")
    options = check_arguments(words)
    check_rules(options)
    _check_rows(config, options)
    _note_paths(options, notes)
    options_dump = config.method_options.model_dump(mode="json")
    _check_paths(config.method, config.method_options)
    ray = config.ray
    script = shlex.join([ray.python, str(ray.slime_dir / "train.py"), *words])
    return Plan(
        arguments=tuple(words),
        options=options,
        entrypoint=f"exec {script}",
        environment={**ENVIRONMENT, "PYTHONPATH": str(ray.megatron_dir), **ray.env_vars},
        custom_config={
            "turnwise": {"method": config.method, **options_dump},
            "turnwise_run_dir": str(run_dir),
        },
        nodes=whole(options, "--actor-num-nodes", 1),
        gpus_per_node=_gpus_per_node(options),
        notes=tuple(notes),
    )


def _model_words(config: RunConfig, sections: dict[str, dict[str, Any]]) -> list[str]:
    """The model's arguments without those that a section gives anew."""
    given = {f"--{name}" for content in sections.values() for name in content}
    return [
        word
        for name, values in split_arguments(config.model.words())
        if name not in given
        for word in (name, *values)
    ]


def _hooks(method: str, sections: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Our hooks, but where a section names another function."""
    given = {name for content in sections.values() for name in content}
    if "custom-config-path" in given:
        raise ConfigError(
            f"custom-config-path: carries [{method}] to the hooks as {CUSTOM_CONFIG}; "
            "put values for functions of your own into [ray] env-vars"
        )
    return {name: path for name, path in HOOKS.items() if name not in given}


def _objective(config: RunConfig, sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The flags of the method's objective; other objectives' flags are refused beside it."""
    objective = getattr(config.method_options, "objective", None)
    if objective is None:
        return {}
    if objective not in OBJECTIVES:
        raise ConfigError(
            f"[{config.method}] objective: {unknown(objective, OBJECTIVES, 'objective')}"
        )
    given = {name for content in sections.values() for name in content}
    deciding = {flag for flags in OBJECTIVES.values() for flag in flags}
    if objective == "turn-mean":
        deciding.add("rollout-data-postprocess-path")
    for name in sorted(given & deciding):
        raise ConfigError(
            f"{name}: [{config.method}] objective {objective} decides on it; leave it out"
        )
    return OBJECTIVES[objective]


def _check_rows(config: RunConfig, options: Mapping[str, Sequence[str]]) -> None:
    """What slime needs where an episode makes several rows (`turnwise.slime.settings.fans_out`)."""
    on_rewrite = getattr(config.method_options, "on_rewrite", "keep")
    if not find_method(config.method).fans_out and on_rewrite != "fork":
        return
    if "--use-dynamic-batch-size" not in options:
        raise ConfigError(
            "use-dynamic-batch-size: is needed, with max-tokens-per-gpu: the number of rows of a "
            f"step of {config.method} varies"
        )
    if "--partial-rollout" in options:
        raise ConfigError(
            "partial-rollout: keeps unfinished groups as single rows, and an episode of "
            f"{config.method} has several; leave it out"
        )
    if "--group-rm" in options:
        raise ConfigError(
            "group-rm: writes a reward into a single row of each episode, and an episode of "
            f"{config.method} has several; leave it out"
        )
    if any("fully_async" in value for value in options.get("--rollout-function-path", ())):
        raise ConfigError(
            "rollout-function-path: slime's fully asynchronous rollout takes single rows, and an "
            f"episode of {config.method} has several; leave it out"
        )


def _check_paths(place: str, options: Config) -> None:
    """A job's working folder is Ray's own and passes with it: a path into it would be lost."""
    for field in type(options).model_fields:
        value, key = getattr(options, field), f"{place}.{field.replace('_', '-')}"
        if isinstance(value, Config):
            _check_paths(key, value)
        elif isinstance(value, Path) and not value.is_absolute():
            raise ConfigError(f"{key}: is read and written on the nodes; give an absolute path")


def _fit_attention(
    config: RunConfig, sections: dict[str, dict[str, Any]], notes: list[str]
) -> None:
    if MLA_SWITCH not in config.model.words():
        return
    for content in sections.values():
        if content.get("attention-backend") == "flash":
            del content["attention-backend"]
            notes.append(
                f"attention-backend flash is left out: {config.model.name or 'the model'} has "
                "multi-head latent attention, which Megatron's flash backend does not run"
            )


def _add_gpus_per_node(sections: dict[str, dict[str, Any]]) -> None:
    """slime takes 8 GPUs a node for granted where engines share them with the trainer."""
    cluster = sections["cluster"]
    given = any("num-gpus-per-node" in content for content in sections.values())
    if cluster.get("colocate") and "actor-num-gpus-per-node" in cluster and not given:
        cluster["num-gpus-per-node"] = cluster["actor-num-gpus-per-node"]


def _gpus_per_node(options: dict[str, list[str]]) -> int:
    actor = whole(options, "--actor-num-gpus-per-node", 8)
    nodes = whole(options, "--actor-num-nodes", 1)
    rollout = whole(options, "--rollout-num-gpus", 0)
    if "--colocate" in options:
        return max(actor, -(-rollout // nodes))
    return actor + -(-rollout // nodes)


def _debug(
    sections: dict[str, dict[str, Any]], debug: Debug, run_dir: Path, notes: list[str]
) -> None:
    for content in sections.values():
        for name in _NOT_IN_DEBUG & content.keys():
            del content[name]
    sections["rollout"]["num-rollout"] = 1
    given = {name for content in sections.values() for name in content}
    misc = sections["misc"]
    kept = str(run_dir / "rollouts" / "{rollout_id}.pt")
    if debug == "rollout":
        misc["debug-rollout-only"] = True
        if "save-debug-rollout-data" not in given:
            misc["save-debug-rollout-data"] = kept
        if "rollout-external-engine-addrs" not in given:
            notes.append(
                "no rollout-external-engine-addrs is given, so slime starts the engines itself"
            )
        notes.append("one batch of rollouts, nothing is trained")
        return
    misc["debug-train-only"] = True
    if "load-debug-rollout-data" not in given:
        misc["load-debug-rollout-data"] = kept
    notes.append("trains on saved rollouts, no engine is started")


def _note_paths(options: dict[str, list[str]], notes: list[str]) -> None:
    load, save = options.get("--load"), options.get("--save")
    if load and save and Path(load[0]) != Path(save[0]):
        notes.append(
            f"checkpoints go to {save[0]}, but a later run would look in {load[0]}: it would not "
            "resume this one"
        )
    if "--use-wandb" in options and "--wandb-dir" not in options:
        notes.append("without wandb-dir, W&B keeps its files in the job's temporary folder")


def custom_config_text(plan: Plan) -> str:
    """The file for `--custom-config-path`: JSON, which is YAML too."""
    return json.dumps(plan.custom_config, indent=1) + "\n"
