"""Looks at everything that a run on this machine needs, before it is started.

    ./pants run apps/trainers/tau:check -- --backend local [options of tau:train]

Prints a table as `turnwise.launch.check` does for a cluster: what was found, with numbers, and what
to do about it. Exit code 3 if any line fails. Nothing is started or written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError
from turnwise.engine.server import is_free
from turnwise.engine.sglang import TRIED
from turnwise.launch.machine import visible_gpus
from turnwise.local.command import LocalRun
from turnwise.local.memory import ModelShape, memory_line, predict_memory
from turnwise.local.options import SHIPPED, SMOLLM2, TrainOptions
from turnwise.local.policy_files import ModelConfig, check_model_folder, read_typed
from turnwise.method import Method, find_method
from turnwise.preflight import Check, Line, fail, note, ok, print_table, run_checks, skip

ASK_S = 45.0
SERVED_BYTES = 2
"""Of a weight in the server: bfloat16."""
CONTEXT_BYTES = 500_000_000
"""What CUDA takes for a process, about."""
# Imports nothing of theirs: SGLang alone takes half a minute.
_ASK = """
import importlib.metadata, importlib.util, json, sys
found = {"python": sys.version.split()[0], "there": importlib.util.find_spec("sglang") is not None}
for name in ("sglang", "torch"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


def check_local(method: str, argv: Sequence[str]) -> int:
    """The command of a method: 0 if every line holds, 3 if one fails."""
    cls = find_method(method)
    try:
        options = LocalRun(cls, argv).options
        policy = _policy_name(cls, options)
    except ConfigError as error:
        lines = [fail("configuration", str(error), "change what the message names")]
    else:
        where = f"{policy} on {options.device}, engine {options.engine}"
        lines = [ok("configuration", where), *run_checks(make_checks(options, policy))]
    print_table(lines, sys.stdout)
    return 3 if any(line.verdict == "FAIL" for line in lines) else 0


def make_checks(options: TrainOptions, policy: str) -> dict[str, Check]:
    """Every check by its name, in the order of the table.

    Args:
        policy: A folder, or `smollm2`.
    """
    checks: dict[str, Check] = {"policy": lambda: _policy(policy)}
    if options.engine == "sglang" and options.engine_url is None:
        checks["SGLang"] = lambda: sglang_line(options.engine_python or sys.executable)
        checks["port"] = lambda: _port(options.engine_port)
    if options.device == "cuda":
        checks["GPU"] = lambda: gpu_lines(options, shape_of(policy), visible_gpus() or [])
    return checks


def sglang_line(python: str) -> Line:
    """Whether an interpreter has SGLang, and which."""
    where = "install it there (pip install sglang), or name another one with --engine-python"
    try:
        done = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=ASK_S, check=False
        )
        found: Mapping[str, Any] = json.loads(done.stdout)
    except OSError as error:
        return fail("SGLang", f"--engine-python {python}: {error.strerror or error}", where)
    except (ValueError, subprocess.TimeoutExpired):
        return skip("SGLang", f"{python} did not say what it has")
    if not found.get("there"):
        return fail("SGLang", f"{python} (Python {found.get('python')}) has no sglang", where)
    said = f"{found['sglang']} with torch {found['torch']}, Python {found['python']}"
    if found["sglang"] != TRIED:
        return note("SGLang", said, f"this was tried with {TRIED}")
    return ok("SGLang", said)


def gpu_lines(
    options: TrainOptions, shape: ModelShape, found: Sequence[tuple[str, int, int]]
) -> Iterator[Line]:
    """Memory of the GPUs against what server and trainer take.

    Args:
        shape: Of the policy.
        found: Name, bytes and used bytes of each GPU.
    """
    served = (
        options.engine_gpu() if options.engine == "sglang" and options.engine_url is None else None
    )
    need = max(served or 0, 0) + 1
    if len(found) < need:
        remedy = "run where there is one, or name another --engine-device"
        yield fail("GPU", f"{len(found)} here, {need} wanted", remedy)
        return
    for index in sorted({0, served or 0}):
        name, total, used = found[index]
        free = total - used
        share = 0
        if served == index:
            share = round(options.engine_share() * total)
            yield _server_line(options, shape, share, free, f"GPU {index}")
        yield ok(f"GPU {index}", f"{name}: {_gb(total)} GB, {_gb(used)} in use")
        if index == 0:
            held = 0 if options.offload_rollout else share
            embedded = options.engine == "torch"
            estimate = predict_memory(shape, options, embedded_engine=embedded)
            yield memory_line(estimate, free - held - CONTEXT_BYTES)


def _server_line(
    options: TrainOptions, shape: ModelShape, share: int, free: int, name: str
) -> Line:
    weights = SERVED_BYTES * shape.parameters
    said = f"the server's share {_gb(share)} GB, {_gb(weights)} of it weights"
    if share > free:
        remedy = (
            "end what uses the GPU (nvidia-smi names it), or lower --sglang-mem-fraction-static"
        )
        return fail(name, f"{said}; {_gb(free)} GB are free", remedy)
    if weights >= share:
        remedy = "raise --sglang-mem-fraction-static, or take a GPU of its own (--engine-device)"
        return fail(name, said, remedy)
    return ok(name, said)


def shape_of(policy: str) -> ModelShape:
    """The shape of a policy, a folder or `smollm2`. Raises ConfigError if it is none."""
    if policy == SMOLLM2:
        # Its file is read by transformers.
        from turnwise.local.smollm2 import smollm2_config

        return ModelShape.of(smollm2_config())
    return ModelShape.of(read_typed(Path(policy) / "config.json", ModelConfig))


def _policy(policy: str) -> Line:
    if policy != SMOLLM2:
        check_model_folder(Path(policy), f"--hf-checkpoint {policy}")
    count = shape_of(policy).parameters
    return ok("policy", f"{policy}: {count / 1e6:.1f} million parameters")


def _port(port: int | None) -> Line:
    if port is None:
        return ok("port", "any that is free")
    if not is_free(port):
        return fail("port", f"--engine-port {port} is taken", "name another one, or leave it out")
    return ok("port", f"{port} is free")


def _policy_name(cls: type[Method[Any, Any]], options: TrainOptions) -> str:
    if options.hf_checkpoint != SHIPPED:
        return options.hf_checkpoint
    if cls.shipped is None:
        raise ConfigError("--hf-checkpoint: the method ships no policy; name a folder")
    return str(cls.shipped)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f}"
