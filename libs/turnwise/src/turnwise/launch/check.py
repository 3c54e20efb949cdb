"""Looks at everything that a run on a cluster needs, before it costs GPU hours.

    ./pants run apps/trainers/tau:check -- --config FILE [slime's flags that go before the file]
    ./pants run apps/trainers/tau:check -- --backend local [options of a run on this machine]

Prints a table in under a minute: a verdict for each line and what to do about it. Exit code 3 if
any line fails, 2 if the file can't be read as a run's. Nothing is started or written. The lines on
flags, policy, machine and versions are the same for every method; the others are the method's own
(`Method.checks`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from turnwise.arguments import named_option
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.launch.engines import check_engines
from turnwise.launch.flags import NoAnswer, ask_slime, versions
from turnwise.launch.head import is_here
from turnwise.launch.machine import (
    check_disk,
    check_gpus,
    check_ports,
    check_ray,
    check_versions,
    slime_environment,
)
from turnwise.launch.model_files import (
    check_figures,
    check_hf_folder,
    check_reference,
    parameters,
    read_json,
)
from turnwise.launch.plan import CUSTOM_CONFIG, Plan, make_plan
from turnwise.launch.preset import RunConfig, read_run
from turnwise.launch.start import living, start_of
from turnwise.method import find_method
from turnwise.models.checks import models_of
from turnwise.preflight import Check, Line, fail, note, ok, print_table, run_checks, skip

ASK_TIMEOUT_S = 50.0


def make_checks(config: RunConfig, plan: Plan, run_dir: Path) -> dict[str, Check]:
    """Every check by its name, in the order of the table.

    Args:
        config: The resolved file.
        plan: What it becomes.
        run_dir: Where the run's folder would be; runs beside it are looked at.
    """
    folder = Path(plan.value("--hf-checkpoint") or "")
    params = parameters(folder, plan.options)
    method = find_method(config.method)(config.method_options)
    of_a_node: dict[str, Check] = {
        "flags": lambda: flags(config, plan),
        "start": lambda: ok("start", start_of(plan)),
        "engines": lambda: engines(plan),
        "policy": lambda: policy(config, plan, folder),
        **method.checks(plan),
        "disk": lambda: check_disk(plan, params),
        "GPUs": lambda: check_gpus(plan, params, ours=bool(living(run_dir))),
        "versions": lambda: check_versions(config.ray, plan.options),
    }
    if not is_here(config.ray.address):
        of_a_node = {name: _from_afar(check) for name, check in of_a_node.items()}
    return {
        **of_a_node,
        "ports": lambda: check_ports(config.ray),
        "Ray": lambda: check_ray(config.ray, run_dir),
    }


def _from_afar(check: Check) -> Check:
    """The check where its files and devices may be on the nodes alone: it proves no failure."""

    def looked() -> Iterator[Line]:
        try:
            lines = check()
        except (ConfigError, PreflightError) as error:
            lines = fail("node", str(error), "")
        for line in [lines] if isinstance(lines, Line) else lines:
            if line.verdict == "FAIL":
                remedy = "this machine is no node of the cluster: run check on one"
                yield note(line.name, line.found, remedy)
            else:
                yield line

    return looked


def flags(config: RunConfig, plan: Plan) -> Iterator[Line]:
    """Our table has been asked by `make_plan`; here the installed slime is."""
    made = versions()["slime"][:12]
    yield ok("flags", f"{len(plan.options)} flags fit slime at {made} and each other")
    if not config.ray.slime_dir.is_dir():
        yield skip("flags", f"slime is not in {config.ray.slime_dir}, so its parser is not asked")
        return
    # The method's file is written at the start; slime's parser would want to read it now.
    words = list(plan.arguments)
    at = words.index("--custom-config-path")
    assert words[at + 1] == CUSTOM_CONFIG
    del words[at : at + 2]
    try:
        said = ask_slime(words, config.ray.python, slime_environment(config.ray), ASK_TIMEOUT_S)
    except NoAnswer as error:
        yield skip("flags", f"slime's own parser: {error}", "the job asks it when it starts")
        return
    if said:
        yield fail("flags", f"slime's own parser: {said}", "change the flag or file that it names")
    else:
        yield ok("flags", "slime's own parser accepts them")


def engines(plan: Plan) -> Iterator[Line]:
    """Where slime serves several models, that their ports differ."""
    check_engines(plan)
    if (path := plan.value("--sglang-config")) is not None and (there := models_of(Path(path))):
        yield ok("engines", f"{path}: {', '.join(there)}")


def policy(config: RunConfig, plan: Plan, folder: Path) -> Iterator[Line]:
    """The policy's files in both formats, and its arguments against its config.json."""
    yield from check_hf_folder("policy", folder)
    shape = read_json(folder / "config.json")
    if isinstance(shape, dict):
        yield from check_figures("model", shape, plan.options)
    reference = plan.value("--ref-load")
    if reference is not None:
        yield check_reference(
            "reference",
            Path(reference),
            f"make it with convert: --method {config.method} --config FILE",
        )


def check(method: str, argv: Sequence[str]) -> int:
    """The command of a method: 0 if every line holds, 3 if one fails, 2 if the file is none.

    Of a run on this machine with `--backend local`, see `turnwise.local.check`.
    """
    if named_option(argv, "--backend") == "local":
        from turnwise.local.check import check_local

        return check_local(method, argv)
    parser = argparse.ArgumentParser(
        prog="check",
        allow_abbrev=False,
        description="Looks at everything that a run on a cluster needs.",
        epilog=(
            "Any flag of slime, --ray.KEY, --model.KEY and --METHOD.KEY go before the file. With"
            " --backend local it looks at a run on this machine and takes train's options:"
            " --hf-checkpoint, --device, --engine and the others."
        ),
    )
    parser.add_argument(
        "--backend", choices=["slime", "local"], help="slime if not given, or this machine"
    )
    parser.add_argument("--config", type=Path, required=True, help="the run's TOML file")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders are")
    given, overrides = parser.parse_known_args(list(argv))
    run_dir = (given.runs / "checked").absolute()
    try:
        config = read_run(given.config, overrides, method=method)
        plan = make_plan(config, run_dir=run_dir)
        checks = make_checks(config, plan, run_dir)
    except ConfigError as error:
        print_table(
            [fail("configuration", str(error), "change what the message names")], sys.stdout
        )
        return 2
    sections = ", ".join(config.options)
    hooks = sum(word.startswith("turnwise.slime.") for word in plan.arguments)
    lines = [ok("configuration", f"{given.config}: {sections}; {hooks} hooks of ours")]
    lines += run_checks(checks)
    print_table(lines, sys.stdout)
    return 3 if any(line.verdict == "FAIL" for line in lines) else 0
