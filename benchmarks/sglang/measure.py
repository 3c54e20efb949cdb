"""Our side of a rollout against a real SGLang server, which it starts and ends.

    python -m benchmarks.sglang.measure --out DIR
    python -m benchmarks.sglang.measure --out DIR --dtype float16 --parts agreement rollout

Needs a GPU, SGLang 0.5.15.post1 and torch; `docs/sglang.md` says what was seen. `results.json` in
the folder is written anew after each part, so that what was measured before a failure stays. A
part that fails is entered there with its traceback, and the others go on.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from turnwise.arguments import parse_args
from turnwise.command import RunError, run_command
from turnwise.config import CommandConfig

from benchmarks.sglang.agreement import measure_agreement
from benchmarks.sglang.bench import GROUP, SHIPPED, Bench, make_bench
from benchmarks.sglang.control import measure_control, measure_weights
from benchmarks.sglang.rollout import measure_abort, measure_rollout
from benchmarks.sglang.server import sglang_server
from benchmarks.sglang.speed import measure_speed

PARTS = {
    "agreement": measure_agreement,
    "rollout": measure_rollout,
    "abort": measure_abort,
    "control": measure_control,
    "speed": measure_speed,
    "weights": measure_weights,
}
PART_S = 120.0
SERVED_CONTEXT = 2048
PACKAGES = ("sglang", "sglang-kernel", "torch", "transformers", "triton", "numpy", "aiohttp")


class MeasureConfig(CommandConfig):
    """Measures our engine client and slime's hooks against an SGLang server."""

    out: Path
    """Folder for results.json and the server's log; made if it is missing."""
    parts: tuple[Literal["agreement", "rollout", "abort", "control", "speed", "weights"], ...] = (
        tuple(PARTS)
    )  # type: ignore[assignment]
    """What to measure, in this order."""
    episodes: int = Field(default=256, ge=GROUP, multiple_of=GROUP)
    """Episodes of a rollout, groups of 8 of as many training tasks."""
    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """What the server computes in; its kernels for CUDA have no float32."""
    device: str = "cuda"
    """Where transformers computes the reference."""
    url: str | None = None
    """A server of this policy that runs already; without it one is started."""


class Results:
    """`results.json`: always whole."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "results.json"
        self.content: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        self.content[name] = value
        draft = self._path.with_suffix(".part")
        draft.write_text(json.dumps(self.content, indent=1), "utf-8")
        os.replace(draft, self._path)


def main(argv: Sequence[str]) -> None:
    """The command.

    Raises:
        RunError: a part failed; the others are in the results.
    """
    config = parse_args(
        MeasureConfig, argv, prog="measure", description=MeasureConfig.__doc__ or ""
    )
    config.out.mkdir(parents=True, exist_ok=True)
    results = Results(config.out)
    results.add("machine", _machine(config))
    with ExitStack() as stack:
        url, begun = config.url, time.perf_counter()
        if url is None:
            server = sglang_server(
                SHIPPED,
                dtype=config.dtype,
                context=SERVED_CONTEXT,
                log=config.out / "server.log",
            )
            url = stack.enter_context(server)
        results.add("server_start_s", time.perf_counter() - begun)
        # The reference shall be float32 throughout.
        torch.backends.cuda.matmul.allow_tf32 = False
        bench = make_bench(
            url, config.out, episodes=config.episodes, dtype=config.dtype, device=config.device
        )
        failed = asyncio.run(_measure(config, bench, results))
    if failed:
        raise RunError(f"failed: {', '.join(failed)}; see {config.out / 'results.json'}")


async def _measure(config: MeasureConfig, bench: Bench, results: Results) -> list[str]:
    failed = []
    for name in config.parts:
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(PART_S):
                found = await PARTS[name](bench)
        except Exception as error:
            failed.append(name)
            found = {"failed": repr(error), "traceback": traceback.format_exc()}
        results.add(name, {**found, "part_s": time.perf_counter() - begun})
        print(f"{name}: {json.dumps(results.content[name])}", flush=True)
    await bench.pool.close()
    return failed


def _machine(config: MeasureConfig) -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "python": platform.python_version(),
        "packages": versions,
        "gpu": gpu,
        "cuda": torch.version.cuda,
        "cpus": os.cpu_count(),
        "server_dtype": config.dtype,
        "episodes": config.episodes,
    }


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
