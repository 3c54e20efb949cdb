"""The command that trains a method: options, folder, training, verdict, report.

    exit_code = train_method("tau", argv)                # as `apps.trainers.tau`'s own command
    exit_code = train_method("my_agent:MyAgent", argv)   # a method of one's own

`--backend slime` hands the line over to `turnwise.launch`. Nothing here imports torch before the
line is read.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.arguments import named_option, parse_sections
from turnwise.command import RunError
from turnwise.config import ConfigError, load_toml
from turnwise.local.options import MAX_THREADS, SHIPPED, TrainOptions
from turnwise.local.threads import choose_threads, set_threads, wait_passively
from turnwise.method import Method, MethodOptions, find_method, import_name, method_name
from turnwise.own_code import new_method
from turnwise.printable import tell
from turnwise.run.folder import RunFolder
from turnwise.run.lock import locked
from turnwise.run.start import Start, how_started, read_start, write_start
from turnwise.run.summary import capitalised
from turnwise.run.trackers import require_packages

if TYPE_CHECKING:
    from turnwise.local.experiment import Experiment, MakeEngine
    from turnwise.local.policy import LoadedPolicy

SCHEDULER = "override_opt_param_scheduler"
MAY_CHANGE = frozenset(
    {"config", "resume", "run_dir", "num_rollout", "save_interval", "threads", "dry_run", "track"}
    | {"replay", SCHEDULER}
    | {"engine_url", "engine_device", "engine_port", "engine_python", "engine_start_s"}
    | {"sglang_mem_fraction_static", "sglang_options", "offload_rollout"}
)
"""Options that a resumed run may be given anew."""
CODES = (
    "Exit codes: 0 ok, 2 usage or configuration, 3 a service or the disk can't carry the run,"
    " 4 run failed, 130 interrupted."
)


def train_method(method: str | type[Method[Any, Any]], argv: Sequence[str]) -> int:
    """Trains a method on the backend that `argv` names; returns the exit code.

    Args:
        method: A name of `apps.trainers`, an import path `package.module:Class`, or the class.
        argv: Options of the run and, under its own name or `method`, of the method.

    Raises:
        ConfigError, PreflightError, RunError: see `turnwise.command`.
    """
    if named_option(argv, "--backend") == "slime":
        from turnwise.launch.command import train_on_cluster

        assert isinstance(method, str), "the nodes import the method by its name"
        return train_on_cluster(method, argv)
    # Read once, when torch is imported.
    wait_passively()
    return LocalRun(find_method(method), argv).run()


def method_before(argv: Sequence[str]) -> str | None:
    """The method of the run that a command line goes on with or replays; None of any other line.

    Raises:
        ConfigError: the folder is none of a run.
    """
    named = named_option(argv, "--run-dir")
    options = {word.partition("=")[0] for word in argv}
    if named is None or options.isdisjoint({"--resume", "--replay"}):
        return None
    folder = RunFolder.open(Path(named))
    start = read_start(folder.path)
    if start is not None:
        return start.method
    # Of an earlier version: the name is enough for a method of apps/trainers.
    found = folder.read_config().get("method")
    return found if isinstance(found, str) else None


class LocalRun:
    """One run on this machine."""

    def __init__(
        self,
        cls: type[Method[Any, Any]],
        argv: Sequence[str],
        make_engine: MakeEngine | None = None,
    ) -> None:
        """
        Args:
            cls: The method.
            argv: Its command line.
            make_engine: Makes the engine that samples; the one that the options name where None.

        Raises:
            ConfigError: an option is wrong, or the run to go on with is another one.
            SystemExit: 0 after `--help`.
        """
        self._cls, self._name = cls, method_name(cls)
        self._argv = argv
        self._make_engine = make_engine
        self.options, method_options = self._read({})
        if self.options.resume or self.options.replay is not None:
            assert self.options.run_dir is not None
            folder = RunFolder.open(self.options.run_dir)
            started = self._started(folder)
            self.options, method_options = self._read(started, origin=folder.config)
            _check_schedule(self.options, started.get("num_rollout"))
        if self.options.backend == "slime":
            raise ConfigError("backend slime is chosen on the command line, --backend slime")
        self.method = new_method(cls, method_options)

    def run(self) -> int:
        """Trains, prints the verdict; returns the exit code. With `replay` plays an episode."""
        if self.options.dry_run:
            print(json.dumps(self._config(), indent=2))
            return 0
        if self.options.replay is not None:
            from turnwise.local.again import replay_episode

            return replay_episode(self.options, self.method)
        require_packages(self.options.track)
        started = time.perf_counter()
        policy = self._load_policy()
        return asyncio.run(self._train(policy, started))

    def _read(
        self,
        defaults: Mapping[str, Any],
        argv: Sequence[str] | None = None,
        origin: Path | None = None,
    ) -> tuple[TrainOptions, Any]:
        preset = None if defaults else self._cls.preset
        argv = self._argv if argv is None else argv
        _check_backend(argv)
        parsed = parse_sections(
            TrainOptions,
            {self._name: self._cls.Options},
            argv,
            prog=f"{self._name}:train",
            description=f"{_first_sentence(self._cls)} {CODES}",
            defaults=defaults,
            aliases={"method": self._name},
            default_file=preset,
            origin=origin,
        )
        return parsed.options, parsed.sections[self._name]

    def _started(self, folder: RunFolder) -> dict[str, Any]:
        """The options that the run in the folder was started with."""
        started = folder.read_config()
        known = {name: started[name] for name in TrainOptions.model_fields if name in started}
        for name in ("config", "resume", "run_dir", "dry_run", "replay", SCHEDULER):
            known.pop(name, None)
        if started.get("method") != self._name:
            raise ConfigError(
                f"--run-dir {folder.path}: is a run of {started.get('method')}, not of {self._name}"
            )
        return {**known, self._name: started.get(self._name, {})}

    def _config(self) -> dict[str, Any]:
        """What config.json holds."""
        return _config_of(self._name, self.options, self.method.options)

    def _load_policy(self) -> LoadedPolicy:
        import torch

        from turnwise.local.policy import load_policy

        options = self.options
        if options.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("--device cuda: this torch finds no GPU")
        name = options.hf_checkpoint
        if name == SHIPPED:
            if self._cls.shipped is None:
                raise ConfigError(f"--hf-checkpoint: {self._name} ships no policy; name a folder")
            name = str(self._cls.shipped)
        policy = load_policy(
            name,
            device=options.device,
            dtype=getattr(torch, options.weight_dtype()),
            require_tools=bool(self.method.tools()),
        )
        self.options = self._threaded(policy)
        # Nothing is drawn from torch's own state, but a checkpoint holds it.
        torch.manual_seed(options.seed)
        return policy

    async def _train(self, policy: LoadedPolicy, started: float) -> int:
        from turnwise.local.experiment import make_engine, open_experiment
        from turnwise.local.loop import Interrupted, train

        experiment = await open_experiment(
            self.options, self.method, policy, self._make_engine or make_engine
        )
        try:
            folder = self._folder()
            with locked(folder.path):
                announce(self.options, experiment, folder)
                try:
                    await experiment.engine.open(folder.logs)
                    summary = await train(self.options, experiment, policy, folder)
                except Interrupted as interrupted:
                    print(f"interrupted {interrupted}; go on with --resume --run-dir {folder.path}")
                    return 130
                finally:
                    _report(folder)
        finally:
            await experiment.engine.close()
            await self.method.close()
        tell(f"\n{summary.text()}")
        print(
            f"{time.perf_counter() - started:.0f} s. Run folder {folder.path},"
            f" report {folder.report}"
        )
        return 0

    def _threaded(self, policy: LoadedPolicy) -> TrainOptions:
        """The options with the thread count that the run keeps, which is set."""
        options = self.options
        if options.resume:
            assert options.run_dir is not None
            folder = RunFolder.open(options.run_dir)
            own = {f"{self._name}.{name}" for name in self._cls.may_change}
            folder.refuse_changes(
                self._config(),
                may_change=MAY_CHANGE | own,
                because="a resumed run keeps its options",
            )
            threads = _threads_before(folder)
        else:
            threads = options.threads or choose_threads(policy.model).threads
        set_threads(threads)
        return options.model_copy(update={"threads": threads})

    def _folder(self) -> RunFolder:
        if self.options.resume:
            assert self.options.run_dir is not None
            return RunFolder.open(self.options.run_dir)
        folder = RunFolder.create(self.options.run_dir, self._name, self._config())
        write_start(folder.path, self._start())
        return folder

    def _start(self) -> Start:
        """What the options would be without the command line."""
        named = named_option(self._argv, "--config")
        path = Path(named) if named is not None else self._cls.preset
        words = [] if named is None else ["--config", named]
        without = None
        with suppress(ConfigError):
            options, section = self._read({}, words)
            # Measured, and not asked for.
            options = options.model_copy(update={"threads": self.options.threads})
            without = _config_of(self._name, options, section)
        return how_started(
            import_name(self._cls), self._config(), without, file=path, preset=named is None
        )


def _check_backend(argv: Sequence[str]) -> None:
    """Refuses a file of a run on slime, whose sections hold slime's flags."""
    from turnwise.launch.preset import SECTIONS

    path = Path(named_option(argv, "--config") or "")
    for key, value in load_toml(path).items() if path.is_file() else ():
        if key in SECTIONS and isinstance(value, Mapping):
            raise ConfigError(
                f"{path}: [{key}]: a section of a run on slime, which --backend slime starts; a run"
                " on one machine has no such section"
            )


def _check_schedule(options: TrainOptions, steps: object) -> None:
    """Refuses another length of a run whose learning rate falls over it, as Megatron does."""
    falls = options.lr_decay_style != "constant" and options.num_rollout != steps
    if falls and not options.override_opt_param_scheduler:
        raise ConfigError(
            f"--num-rollout {options.num_rollout}: the run began with {steps}, over which its"
            f" learning rate falls (--lr-decay-style {options.lr_decay_style}); with"
            " --override-opt-param-scheduler it falls over the new number from here on"
        )


def _config_of(name: str, options: TrainOptions, section: MethodOptions) -> dict[str, Any]:
    return {
        "method": name,
        **options.model_dump(mode="json"),
        name: section.model_dump(mode="json"),
    }


def _threads_before(folder: RunFolder) -> int:
    found = folder.read_config().get("threads")
    if type(found) is not int or not 1 <= found <= MAX_THREADS:
        raise ConfigError(
            f"{folder.config}: threads: expected a number from 1 to {MAX_THREADS}, found"
            f" {found!r:.80}"
        )
    return found


def _first_sentence(cls: type[Method[Any, Any]]) -> str:
    lines = (cls.__doc__ or f"Trains {method_name(cls)}.").strip().split("\n\n")
    return " ".join(lines[0].split())


def announce(options: TrainOptions, experiment: Experiment[Any], folder: RunFolder) -> None:
    """Says what is about to be done, with what and where."""
    episodes = options.rollout_batch_size * options.n_samples_per_prompt
    evaluation = len(experiment.eval_tasks) * options.n_samples_per_eval_prompt
    print(
        f"Training the {Path(options.hf_checkpoint).name} policy on {len(experiment.train_tasks)}"
        f" {experiment.method.about()}: {options.num_rollout} steps of"
        f" {options.rollout_batch_size} prompts x {options.n_samples_per_prompt} rollouts ="
        f" {episodes} episodes; evaluated before and after on {len(experiment.eval_tasks)}"
        f" {experiment.split} tasks x {options.n_samples_per_eval_prompt} trials ="
        f" {evaluation} episodes."
    )
    players = experiment.method.players()
    services = "".join(f"{name} {value}, " for name, value in players.items())
    engine = "" if options.engine == "torch" else f", engine {options.engine}"
    print(
        capitalised(
            f"{services}seed {options.seed}, {options.threads} torch thread(s), device"
            f" {options.device}{engine}. Run folder {folder.path}"
        )
    )


def _report(folder: RunFolder) -> None:
    """Writes the report, also of a run that broke off; a report that fails hides no other error."""
    from turnwise.report import write_report

    try:
        write_report(folder.path)
    except (ConfigError, RunError) as error:
        print(f"no report: {error}", file=sys.stderr)
