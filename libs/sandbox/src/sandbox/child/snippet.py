"""Runs one snippet as `__main__` in a process that is confined and ends with it.

On the status pipe it writes `STARTED`, then what ended the snippet if that was the sandbox's
doing. After `STARTED` nothing that is written there is trusted to be more than a remark on the
snippet's own result.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import gc
import linecache
import os
import random
import socket
import sys
import tempfile
import threading
import traceback
from types import ModuleType
from typing import Any, NoReturn

STARTED, BROKEN, MEMORY, DENIED = b"S", b"X", b"M", b"D"
FILE_NAME = "<snippet>"
# As it is now: a snippet may put another one in its place.
_exit = os._exit
_resolve = os.path.realpath
FAILED = 1
_REFUSALS = {
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.EROFS,
    errno.EFBIG,
    errno.ENOSPC,
    errno.EMFILE,
}


def run(code: str, status: int) -> NoReturn:
    """Runs `code` as a program, then ends the process with its exit code.

    Args:
        code: Python source.
        status: Descriptor of the status pipe.
    """
    exit_code = FAILED
    try:
        exit_code = _execute(code, status)
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as a program does
        atexit._run_exitfuncs()
    except BaseException as error:
        exit_code = _report(error, status)
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException as error:
            exit_code = _report(error, status)
        finally:
            _exit(exit_code)


@functools.cache
def own_modules() -> tuple[str, ...]:
    """Names of our modules. Called before the forks: a look at every name copies their pages."""
    return tuple(name for name in sys.modules if name.partition(".")[0] == "sandbox")


@functools.cache
def generators() -> tuple[Any, ...]:
    """Generators of random numbers that the imported packages keep; called before the forks too.

    NumPy's `Generator` has no state beside its bit generator's, `RandomState` a number to spare.
    """
    classes: tuple[type, ...] = (random.Random,)
    if "numpy.random" in sys.modules:
        numpy_random = sys.modules["numpy.random"]
        classes += (numpy_random.BitGenerator, numpy_random.RandomState)
    return tuple(
        thing
        for thing in gc.get_objects()
        if isinstance(thing, classes) and not isinstance(thing, random.SystemRandom)
    )


def _reseed() -> None:
    """Gives every generator a state of its own: all snippets are forks of one interpreter."""
    for generator in generators():
        if not hasattr(generator, "seed"):
            generator.state = type(generator)().state
            continue
        with contextlib.suppress(TypeError):  # one over another bit generator than its own
            generator.seed()


def prepare(work: str, *, links: bool) -> None:
    """Sets up streams, environment and modules as a fresh interpreter would have them.

    Args:
        work: The working folder.
        links: Whether symbolic links can be read.
    """
    os.environ.clear()
    os.environ.update(
        PATH="/usr/bin:/bin",
        HOME=work,
        TMPDIR=work,
        LANG="C.UTF-8",
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
    )
    tempfile.tempdir = None
    sys.argv = [FILE_NAME]
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    # By lines, so that what was printed before a kill is not lost.
    sys.stdout = open(1, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    for name in own_modules():
        del sys.modules[name]
    _reseed()
    if not links:
        os.path.realpath = _realpath  # type: ignore[assignment]


def _realpath(filename: Any, *, strict: bool = False) -> Any:
    """`os.path.realpath` as from Python 3.13 on: a link that can't be read stays in the path."""
    try:
        return _resolve(filename, strict=strict)
    except PermissionError:
        if strict:
            raise
        return os.path.abspath(filename)


def _execute(code: str, status: int) -> int:
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        linecache.cache[FILE_NAME] = (len(code), None, code.splitlines(keepends=True), FILE_NAME)
        exec(compile(code, FILE_NAME, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException as error:
        return _report(error, status)
    return 0


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return FAILED


def _report(error: BaseException, status: int) -> int:
    """Prints the traceback without our own frames; tells the supervisor if a limit was met."""
    if isinstance(error, MemoryError):
        os.write(status, MEMORY)
    elif (refused := _refusal(error)) is not None:
        what = f"{type(refused).__name__}: {refused}"
        os.write(status, DENIED + what.encode("utf-8", "replace")[:200])
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __name__:
        frames = frames.tb_next
    try:
        traceback.print_exception(type(error), error, frames)
    except MemoryError:
        os.write(status, MEMORY)
    return FAILED


def _refusal(error: BaseException | object) -> OSError | None:
    """The refusal that `error` is, or was raised from."""
    for _ in range(8):
        if isinstance(error, socket.gaierror):
            return error
        if isinstance(error, OSError) and error.errno in _REFUSALS:
            return error
        error = getattr(error, "reason", None) or getattr(error, "__cause__", None)
    return None
