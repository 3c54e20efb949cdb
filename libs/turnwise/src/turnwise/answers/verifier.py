"""Whether two formulas say the same, decided by math-verify in processes of their own.

    verifier = MathVerifier()
    await verifier.equal("\\\\frac{1}{2}", "0.5")       # True
    await verifier.close()

1. Equal texts and integers, letters of a choice, times of day and residues are compared here
   (`notation`, `forms`), and words of the same letters are told from formulas (`words`); no formula
   is parsed in this process.
2. A worker compares the rest, one question at a time. It is started with the first question, and
   again after it was ended or has served a while. Threads wait for workers, never the event loop.
3. A question has a bound of processor time, kept by the kernel, and of memory: what exceeds one is
   the formula's own doing (`costly`), and comes out the same on a busy machine and, since a fresh
   worker has the last word, after any other formulas. The deadline on the clock is there for a
   machine that stalls (`late`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from turnwise.answers import worker
from turnwise.answers.boxed import boxed
from turnwise.answers.forms import Pair, pairs
from turnwise.answers.notation import plain
from turnwise.answers.words import reordered
from turnwise.episode import Boundary, BoundaryError

Why = Literal["", "words", "costly", "late", "broken"]

MAX_CHARACTERS = 2000
"""A longer formula is `costly` unread."""
_START_S = 120.0
_CHECKS_PER_WORKER = 2000
_CHILD_CODE = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "runpy.run_path(sys.argv[2])['main'](int(sys.argv[3]))"
)
# Run as a file, since importing the package around it would load what the child has no use for.
_CHILD_FILE = os.path.abspath(worker.__file__)
APART = "turnwise_apart"
"""A folder beside our package with what the child alone may see, where the node has it not."""
_BESIDE = os.path.dirname(os.path.dirname(os.path.dirname(_CHILD_FILE)))
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
_FORMULAS_OWN_DOING = (signal.SIGPROF, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
_NO_TEXT = re.compile(r"[\x00-\x1f\ud800-\udfff]")
_INTEGER = re.compile(r"[+-]?\d{1,50}")


@dataclass(frozen=True, slots=True)
class Check:
    """What a comparison found.

    Attributes:
        equal: None where it was not decided.
        why: "" where it was; else `words` (a side is no formula, and the texts differ), `costly`
            (beyond the bounds of time, memory or length), `late` (the deadline) or `broken` (the
            worker ended for another reason).
    """

    equal: bool | None
    why: Why = ""


class MathVerifier:
    """See the module. Serves any number of tasks and event loops.

    Attributes:
        checks: Comparisons by outcome: `equal`, `different`, `words`, `costly`, `late`, `broken`.
        started: Workers started so far.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        cpu_s: float = 5.0,
        deadline_s: float = 60.0,
        memory_mb: int = 1024,
    ) -> None:
        """
        Args:
            workers: Processes at most.
            cpu_s: Processor seconds for one comparison.
            deadline_s: Seconds on the clock for one comparison, once a worker has it.
            memory_mb: Address space of a worker, in MiB.

        Raises:
            ValueError: a bound is not positive.
        """
        for name, value in (
            ("workers", workers),
            ("cpu_s", cpu_s),
            ("deadline_s", deadline_s),
            ("memory_mb", memory_mb),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be greater than 0, found {value}")
        self._workers = workers
        self._cpu_s = cpu_s
        self._deadline_s = deadline_s
        self._memory_mb = memory_mb
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._alive: set[_Worker] = set()
        self._pool: ThreadPoolExecutor | None = None
        self.checks = dict.fromkeys(("equal", "different", "words", "costly", "late", "broken"), 0)
        self.started = 0

    async def equal(self, prediction: str, truth: str) -> bool | None:
        """Whether the prediction equals the truth; None where `check` decides nothing."""
        return (await self.check(prediction, truth)).equal

    async def check(self, prediction: str, truth: str) -> Check:
        """Compares two formulas, LaTeX or plain, without a box around them.

        Not symmetric: `x = 3` is right where the truth is `3`.

        Raises:
            BoundaryError: at `Boundary.JUDGE`, no worker can be started.
        """
        found = _at_a_glance(prediction, truth)
        if not isinstance(found, Check):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="math-verify")
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._pool, self._compare, found)
        self.checks[found.why or ("equal" if found.equal else "different")] += 1
        return found

    async def close(self) -> None:
        """Ends the workers; a later check starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            with self._lock:
                for one in self._alive:
                    one.kill()
            await asyncio.to_thread(pool.shutdown)
        while self._idle:
            self._end(self._idle.pop())

    def _compare(self, asked: tuple[Pair, ...]) -> Check:
        """Runs in a thread of the pool."""
        with self._lock:
            one = self._idle.pop() if self._idle else None
        if one is None:
            one = self._start()
        found, out_of_time = self._ask(one, asked)
        if found.why == "costly" and one.asked > 1 and not out_of_time:
            # Perhaps for what the worker kept in memory of earlier formulas.
            found, _ = self._ask(self._start(), asked)
        return found

    def _ask(self, one: _Worker, asked: tuple[Pair, ...]) -> tuple[Check, bool]:
        """What the worker finds, and whether its time ran out; then it is idle or ended."""
        question = {
            "pairs": [{"prediction": pair.prediction, "truth": pair.truth} for pair in asked],
            "cpu_s": self._cpu_s,
            "alarm_s": 2 * self._deadline_s,
        }
        try:
            answer = one.ask(question, self._deadline_s)
        except TimeoutError:
            self._end(one)
            return Check(None, "late"), True
        except EOFError:
            signal_number = -self._end(one)
            why: Why = "costly" if signal_number in _FORMULAS_OWN_DOING else "broken"
            return Check(None, why), signal_number == signal.SIGPROF
        if one.asked < _CHECKS_PER_WORKER and answer.get("why") != "costly":
            with self._lock:
                self._idle.append(one)
        else:
            self._end(one)
        return Check(answer["equal"], answer.get("why", "")), False

    def _start(self) -> _Worker:
        try:
            one = _Worker(self._memory_mb)
        except OSError as error:
            raise BoundaryError(Boundary.JUDGE, f"math-verify does not start: {error}") from error
        with self._lock:
            self._alive.add(one)
            self.started += 1
        try:
            hello = one.receive(_START_S)
        except (EOFError, TimeoutError) as error:
            status = self._end(one)
            raise BoundaryError(
                Boundary.JUDGE,
                f"math-verify does not start: {str(error) or f'exit status {status}'}",
            ) from error
        if "failed" in hello:
            self._end(one)
            raise BoundaryError(Boundary.JUDGE, f"math-verify does not start: {hello['failed']}")
        return one

    def _end(self, one: _Worker) -> int:
        with self._lock:
            self._alive.discard(one)
        return one.end()


class _Worker:
    """One process; used by one thread at a time, but for `kill`."""

    def __init__(self, memory_mb: int) -> None:
        seen = [entry for entry in sys.path if isinstance(entry, str)]
        path = json.dumps([*seen, os.path.join(_BESIDE, APART)])
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD_CODE, path, _CHILD_FILE, str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            start_new_session=True,
        )
        self._received = b""
        self.asked = 0

    def ask(self, question: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """The answer. Raises TimeoutError, and EOFError if the process ends."""
        self.asked += 1
        stream = self._process.stdin
        assert stream is not None
        try:
            stream.write(json.dumps(question).encode() + b"\n")
        except OSError as error:
            raise EOFError(str(error)) from None
        return self.receive(deadline_s)

    def receive(self, deadline_s: float) -> dict[str, Any]:
        """The next line. Raises as `ask`."""
        stream = self._process.stdout
        assert stream is not None
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        end = time.monotonic() + deadline_s
        while b"\n" not in self._received:
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError(f"no answer within {deadline_s:g} s")
            part = stream.read(65536)
            if not part:
                raise EOFError
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """Ends the process; who waits for its answer gets an EOFError."""
        self._process.kill()

    def end(self) -> int:
        """Kills the process if it runs, and frees what it held. Returns its exit status."""
        self.kill()
        status = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return status


def _at_a_glance(prediction: str, truth: str) -> Check | tuple[Pair, ...]:
    """What needs no parser, or the pairs of formulas of which one has to be equal."""
    if max(len(prediction), len(truth)) > MAX_CHARACTERS:
        return Check(True) if prediction == truth else Check(None, "costly")
    left, right = plain(prediction), plain(truth)
    if left == right:
        return Check(True) if left else Check(None, "words")
    if _INTEGER.fullmatch(left) and _INTEGER.fullmatch(right):
        return Check(int(left) == int(right))
    if not left or not right or _NO_TEXT.search(left):
        return Check(None, "words")
    found = pairs(left, right)
    if isinstance(found, bool):
        return Check(found)
    if any(reordered(" ".join(one.prediction), " ".join(one.truth)) for one in found):
        return Check(None, "words")
    # Braces that open nothing, or a box, would change what the worker's box holds.
    texts = [text for pair in found for text in (*pair.prediction, *pair.truth)]
    if any(not text or boxed(f"\\boxed{{{text}}}") != text for text in texts):
        return Check(None, "words")
    return found
