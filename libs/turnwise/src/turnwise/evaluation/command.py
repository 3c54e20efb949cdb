"""The command of every evaluator: options, method, and which of three things is to be done.

    exit_code = evaluate_method("tau", argv)                  # a method by its own reward
    exit_code = evaluate_method("my_agent:MyAgent", argv)     # one of your own
    exit_code = evaluate_benchmark(MyBenchmark(), argv)       # what apps/evaluators are

A method is evaluated; or two evaluations are compared (`--compare A B`); or saved outputs are
graded again (`--rescore`), where the benchmark grades outputs. Nothing here imports torch before
the line is read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.arguments import (
    HELP,
    NAMING,
    named_option,
    parse_args,
    parse_sections,
    without_option,
)
from turnwise.command import run_command
from turnwise.config import ConfigError, field_names, load_toml
from turnwise.evaluation.benchmark import Benchmark
from turnwise.evaluation.tasks import check_folder
from turnwise.local.threads import wait_passively
from turnwise.method import Method, find_method, method_name
from turnwise.own_code import new_method
from turnwise.run.folder import RunFolder

AnyMethod = Method[Any, Any]
ANEW = frozenset({"config", "resume", "run_dir", "dry_run", "compare_with"})
"""Options that an evaluation which goes on does not take over from its beginning."""
CODES = (
    "Exit codes: 0 ok, 2 usage or configuration, 3 a service does not answer, 4 run failed,"
    " 130 interrupted."
)


def evaluate_method(method: str | type[AnyMethod], argv: Sequence[str]) -> int:
    """Evaluates a method by its own reward; returns the exit code.

    Args:
        method: A name of `apps.trainers`, an import path `package.module:Class`, or the class.
        argv: Options of the evaluation (`EvalOptions`) and, under its own name or `method`, of the
            method.

    Raises:
        ConfigError, PreflightError, RunError: see `turnwise.command`.
    """
    return evaluate_benchmark(Benchmark(), argv, method=method)


def evaluate_benchmark(
    benchmark: Benchmark, argv: Sequence[str], *, method: str | type[AnyMethod] | None = None
) -> int:
    """The command of a benchmark; returns the exit code.

    Args:
        method: Who plays, in place of --method.

    Raises:
        ConfigError, PreflightError, RunError: see `turnwise.command`.
    """
    # Read once, when torch is imported.
    wait_passively()
    if _given(argv, "--compare") or _given(argv, "--rescore"):
        return _read_again(benchmark, argv)
    line = _Line(benchmark, argv, method)
    if line.options.dry_run:
        print(json.dumps(line.config(), indent=2))
        return 0
    if line.preset is not None:
        print(f"As training evaluates, by {line.preset}; --config or --method-config replaces that")
    # Imported here, since it imports NumPy and more, which --help does not need.
    from turnwise.evaluation.run import Evaluation

    return Evaluation(
        benchmark, line.options, new_method(line.cls, line.section), line.config()
    ).run()


class _Line:
    """A command line that plays, read.

    Attributes:
        cls: The method.
        options: Of the benchmark.
        section: The method's options.
        preset: The method's file of options that was read, as training reads it.
    """

    def __init__(
        self, benchmark: Benchmark, argv: Sequence[str], method: str | type[AnyMethod] | None
    ) -> None:
        self.preset: Path | None = None
        started = _started(argv)
        goes_on = Path(named_option(argv, "--run-dir") or "")
        self._origin = RunFolder(goes_on).config if started else None
        name = method or named_option(argv, "--method") or started.get("method")
        name = name or benchmark.method
        if not isinstance(name, str | type) or not name:
            if any(_given(argv, flag) for flag in HELP):
                parse_args(benchmark.Options, HELP, prog="evaluate", description=NAMING)
            raise ConfigError(NAMING)
        own = benchmark.methods.get(name) if isinstance(name, str) else None
        self.cls = own or find_method(name)
        self._benchmark, self._section = benchmark, method_name(self.cls)
        self._argv = without_option(argv, "--method")
        known = benchmark.Options.model_fields
        before = {key: value for key, value in started.items() if key in known} | {
            "method": name if isinstance(name, str) else self._section
        }
        as_training, section = self._preset() if not started else ({}, {})
        before = {**as_training, **before}
        fixed = {**section, **_table(started, self._section), **self._method_file()}
        # Read twice, since what the method has for defaults depends on the benchmark's options.
        self.options, _ = self._read({**before, self._section: fixed})
        defaults = {**benchmark.method_defaults(self.options), **fixed}
        self.options, self.section = self._read({**before, self._section: defaults})
        if self.options.method != before["method"]:
            raise ConfigError("method is chosen on the command line, --method")
        if not self.options.plays:
            raise ConfigError("compare and rescore are chosen on the command line")

    def config(self) -> dict[str, Any]:
        """What config.json holds."""
        return {
            **self.options.model_dump(mode="json"),
            self._section: self.section.model_dump(mode="json"),
        }

    def _read(self, defaults: Mapping[str, Any]) -> tuple[Any, Any]:
        parsed = parse_sections(
            self._benchmark.Options,
            {self._section: self.cls.Options},
            self._argv,
            prog=_prog(self._benchmark, self._section),
            description=f"{self._benchmark.description} {CODES}",
            defaults=defaults,
            aliases={"method": self._section},
            origin=self._origin,
        )
        return parsed.options, parsed.sections[self._section]

    def _preset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What training evaluates a checkpoint of this method with, where no file says otherwise:
        options of the evaluation and of the method. A benchmark of its own, a data file and an
        endpoint have nothing to do with the preset."""
        words = ("--config", "--method-config", "--prompt-data", "--base-url", *HELP)
        preset = self.cls.preset
        if preset is None or self._benchmark.name or any(_given(self._argv, one) for one in words):
            return {}, {}
        from turnwise.local.options import TrainOptions

        parsed = parse_sections(
            TrainOptions,
            {self._section: self.cls.Options},
            [],
            prog=f"{self._section}:train",
            description="",
            default_file=preset,
        )
        training, section = parsed.options, parsed.sections[self._section]
        self.preset = preset
        return {
            "temperature": training.eval_temperature,
            "max_response_len": training.rollout_max_response_len,
            "max_context_len": training.rollout_max_context_len,
            "trials": training.n_samples_per_eval_prompt,
            "task_split": training.eval_split,
        }, section.model_dump(exclude_unset=True)

    def _method_file(self) -> dict[str, Any]:
        given = named_option(self._argv, "--method-config")
        if given is None:
            return {}
        found = load_toml(Path(given), "--method-config")
        return field_names(self.cls.Options, found, f"{given}: ")


def _read_again(benchmark: Benchmark, argv: Sequence[str]) -> int:
    """Compares or grades what other runs have left; nobody plays."""
    options: Any = parse_args(
        benchmark.Options,
        argv,
        prog=_prog(benchmark, "evaluate"),
        description=f"{benchmark.description} {CODES}",
    )
    if options.dry_run:
        print(options.model_dump_json(indent=2))
        return 0
    if options.compare is not None:
        from turnwise.evaluation.rescore import compare_runs

        return compare_runs(benchmark, options)
    from turnwise.evaluation.rescore import rescore

    return rescore(benchmark, options)


def _started(argv: Sequence[str]) -> dict[str, Any]:
    """The options that the evaluation to go on with was started with; none where none goes on."""
    given = named_option(argv, "--run-dir")
    if given is None or not _given(argv, "--resume"):
        return {}
    folder = RunFolder.open(Path(given))
    check_folder(folder.path)
    found = folder.read_config()
    return {name: value for name, value in found.items() if name not in ANEW}


def _table(started: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = started.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"config.json: {name}: expected an object, found {found!r:.60}")
    return found


def _given(argv: Sequence[str], flag: str) -> bool:
    return any(word == flag or word.startswith(f"{flag}=") for word in argv)


def _prog(benchmark: Benchmark, name: str) -> str:
    return f"{benchmark.name or name}:eval"


def main() -> None:
    """`./pants run libs/turnwise:evaluate -- --method NAME ...`, for any method."""
    sys.exit(run_command(partial(evaluate_benchmark, Benchmark()), sys.argv[1:]))


if __name__ == "__main__":
    main()
