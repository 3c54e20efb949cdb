"""An SGLang server of this machine, ended with everything that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnwise.command import PreflightError

START_S = 400.0
"""A first start compiles kernels, which took minutes."""
STOP_S = 20.0
BACKENDS = (
    *("--attention-backend", "triton"),
    *("--sampling-backend", "pytorch"),
)
"""Those that need nothing beside SGLang's own wheel and torch."""


@contextmanager
def sglang_server(
    model: Path,
    *,
    dtype: str,
    context: int,
    log: Path,
    grammar: str = "none",
    running: int = 512,
    share: float = 0.3,
    cache_tokens: int = 1_000_000,
) -> Iterator[str]:
    """Serves `model` within the block; gives its URL.

    Args:
        model: Folder of weights and tokenizer.
        dtype: SGLang's `--dtype`.
        context: Tokens of a sequence.
        log: Takes what the server prints.
        grammar: SGLang's `--grammar-backend`, a package of its own.
        running: Requests at the same time; a server of fewer starts sooner.
        share: Of the GPU's memory that may be taken once it runs, by others too.
        cache_tokens: Room of its cache; a small policy would get one of many millions.

    Raises:
        PreflightError: it ended or did not answer in `START_S`, with the end of its log.
    """
    port = _free_port()
    words = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype]
    words += ["--context-length", str(context), "--random-seed", "1", "--log-level", "warning"]
    words += ["--mem-fraction-static", f"{share:g}", "--max-total-tokens", str(cache_tokens)]
    words += ["--max-running-requests", str(running), "--grammar-backend", grammar, *BACKENDS]
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        _await_health(process, url, log)
        yield url
    finally:
        _end(process)


def _await_health(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PreflightError(f"the server ended with {process.returncode}: {_tail(log)}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.5)
    raise PreflightError(f"no answer from the server in {START_S:.0f} s: {_tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the server's process group, which is its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_S)


def _tail(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-3000:]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
