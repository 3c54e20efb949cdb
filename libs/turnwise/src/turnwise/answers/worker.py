"""The process that compares formulas, and dies of those that take too long.

Reads one JSON line a question and answers with one. math-verify runs without timeouts of its own,
which need signals in the main thread and wait for Python code to get a turn. Here the kernel ends
the process when a question has used its processor time (SIGPROF) or, for a process whose parent is
gone or too busy to end it, its time on the clock (SIGALRM).
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
from typing import Any

_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[A-Za-z]*\*?\}|\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3}")


def main(memory_mb: int) -> None:
    """Serves until its input ends. Its first line is `ready`, or `failed` with the reason."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    try:
        import math_verify  # type: ignore[import-untyped]

        logging.disable(logging.CRITICAL)
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except Exception as error:
        answers.write(_line({"failed": f"{type(error).__name__}: {error}"}))
        return
    answers.write(_line({"ready": True}))
    for line in sys.stdin.buffer:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, question["cpu_s"])
        signal.setitimer(signal.ITIMER_REAL, question["alarm_s"])
        answer = _compare(math_verify, question["prediction"], question["truth"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(_line(answer))


def _compare(math_verify: Any, prediction: str, truth: str) -> dict[str, Any]:
    """`equal`, null with `why`: `words` where a side is no formula, `costly`."""
    try:
        gold = list(_parse(math_verify, truth))
        found = list(_parse(math_verify, prediction))
        if math_verify.verify(gold, found, timeout_seconds=None):
            return {"equal": True}
    except (MemoryError, RecursionError):
        return {"equal": None, "why": "costly"}
    for text, parsed in ((truth, gold), (prediction, found)):
        # Words are read as products of their letters: found equal they are, found different not.
        if all(isinstance(part, str) for part in parsed) or _has_words(text):
            return {"equal": None, "why": "words"}
    return {"equal": False}


def _parse(math_verify: Any, text: str) -> Any:
    """The whole text as one formula; numbers in the middle of prose are not looked for."""
    whole = [math_verify.LatexExtractionConfig(boxed_match_priority=0)]
    return math_verify.parse(f"\\boxed{{{text}}}", whole, parsing_timeout=None)


def _has_words(text: str) -> bool:
    return _WORD.search(_COMMAND.sub(" ", text)) is not None


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"
