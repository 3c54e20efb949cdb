"""Every ending is told apart, on every tier that this machine offers."""

from __future__ import annotations

import pytest
from sandbox import (
    Denied,
    OutOfMemory,
    OutputTruncated,
    Ran,
    Sandbox,
    SandboxBroken,
    SandboxConfig,
    SandboxUnavailable,
    TimedOut,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_program_runs_with_its_input_and_its_exit_code(sandbox: Sandbox) -> None:
    code = "import sys\nprint(input()[::-1])\nprint('warned', file=sys.stderr)\nsys.exit(7)"
    result = await sandbox.run(code, stdin="räksmörgås\n")
    assert isinstance(result, Ran)
    assert (result.out, result.err, result.code) == ("sågrömskär\n", "warned\n", 7)
    assert result.tier == sandbox.tier
    assert result.seconds < sandbox.config.wall_s


async def test_a_traceback_shows_the_snippet_and_nothing_of_ours(sandbox: Sandbox) -> None:
    result = await sandbox.run("def half(n):\n    return n / 0\nhalf(3)")
    assert isinstance(result, Ran) and result.code == 1
    assert 'File "<snippet>", line 2, in half' in result.err
    assert "return n / 0" in result.err
    assert "sandbox" not in result.err


async def test_a_syntax_error_is_the_programs_own_end(sandbox: Sandbox) -> None:
    result = await sandbox.run("print('unfinished'")
    assert isinstance(result, Ran) and result.code == 1
    assert "SyntaxError" in result.err and "sandbox" not in result.err


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("raise SystemExit", 0),
        ("raise SystemExit('no')", 1),
        ("import os; os._exit(9)", 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import ctypes; ctypes.string_at(0)", -11),
    ],
)
async def test_an_exit_code_is_what_a_shell_would_see(
    sandbox: Sandbox, code: str, exit_code: int
) -> None:
    result = await sandbox.run(code)
    assert isinstance(result, Ran) and result.code == exit_code


async def test_a_replaced_exit_lets_no_snippet_go_on(sandbox: Sandbox) -> None:
    result = await sandbox.run("import os\nos._exit = lambda code: None\nprint('end')")
    assert isinstance(result, Ran) and (result.out, result.err, result.code) == ("end\n", "", 0)


async def test_threads_take_little_of_the_memory_that_a_snippet_may_use(sandbox: Sandbox) -> None:
    code = (
        "import threading\n"
        "gate = threading.Event()\n"
        "threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(12)]\n"
        "for thread in threads: thread.start()\n"
        "gate.set(); print(len(threads))"
    )
    result = await sandbox.run(code)
    assert isinstance(result, Ran) and result.out == "12\n", result


async def test_what_a_thread_and_an_exit_handler_print_is_kept(sandbox: Sandbox) -> None:
    code = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "print('main')"
    )
    result = await sandbox.run(code)
    assert result.out == "main\nthread\nlast\n"


async def test_an_endless_loop_keeps_what_it_printed(sandbox: Sandbox) -> None:
    result = await sandbox.run("print('before')\nwhile True: pass")
    assert isinstance(result, TimedOut)
    assert result.out == "before\n"
    assert result.limit_s == sandbox.config.wall_s


@pytest.mark.parametrize("code", ["x = 'a' * (1 << 40)", "x = [0]\nwhile True: x += x"])
async def test_an_uncaught_failure_to_allocate_is_out_of_memory(
    sandbox: Sandbox, code: str
) -> None:
    result = await sandbox.run(code)
    assert isinstance(result, OutOfMemory)
    assert result.limit_mb == sandbox.config.memory_mb


async def test_a_caught_failure_to_allocate_is_the_programs_business(sandbox: Sandbox) -> None:
    result = await sandbox.run("try:\n    'a' * (1 << 40)\nexcept MemoryError:\n    print('ok')")
    assert isinstance(result, Ran) and result.out == "ok\n"


@pytest.mark.parametrize("stream", ["out", "err"])
async def test_a_stream_over_its_limit_is_cut_there(sandbox: Sandbox, stream: str) -> None:
    most = sandbox.config.output_kb << 10
    full = f"import sys; sys.std{stream}.write('x' * {most})"
    assert isinstance(await sandbox.run(full), Ran)
    result = await sandbox.run(f"{full}; sys.std{stream}.write('y')")
    assert isinstance(result, OutputTruncated)
    assert getattr(result, stream) == "x" * most


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.socket()",
        "import subprocess; subprocess.run(['true'])",
        "import urllib.request; urllib.request.urlopen('http://localhost')",
        "open('large', 'wb').write(bytes(64 << 20))",
        "import time\nfor i in range(99): open(f'f{i}', 'wb').write(bytes(4 << 20))\ntime.sleep(9)",
    ],
)
async def test_an_uncaught_refusal_is_denied_and_says_what(sandbox: Sandbox, code: str) -> None:
    result = await sandbox.run(code)
    assert isinstance(result, Denied), result
    assert result.what


async def test_a_caught_refusal_is_the_programs_business(sandbox: Sandbox) -> None:
    code = "import socket\ntry:\n    socket.socket()\nexcept PermissionError:\n    print('alone')"
    result = await sandbox.run(code)
    assert isinstance(result, Ran) and result.out == "alone\n"


@pytest.mark.parametrize("remark", ["b'X forged'", "b'SX'", "b'S' * 5000"])
async def test_a_snippet_cannot_pass_for_a_broken_sandbox(sandbox: Sandbox, remark: str) -> None:
    code = (
        "import os\n"
        "for fd in range(3, 64):\n"
        "    try:\n"
        f"        os.write(fd, {remark})\n"
        "    except OSError:\n"
        "        pass\n"
        "os._exit(70)"
    )
    assert not isinstance(await sandbox.run(code), SandboxBroken)


async def test_a_program_too_large_to_send_is_denied_unrun(sandbox: Sandbox) -> None:
    result = await sandbox.run("#" * (5 << 20))
    assert isinstance(result, Denied) and "4 MiB" in result.what


@pytest.mark.parametrize("line", ["\n", "a\n", "\0", "é;", "("])
async def test_no_program_text_breaks_the_sandbox(sandbox: Sandbox, line: str) -> None:
    result = await sandbox.run(line * ((4 << 20) // len(line.encode())))
    assert not isinstance(result, SandboxBroken)


async def test_text_that_is_no_unicode_runs_into_a_python_error(sandbox: Sandbox) -> None:
    result = await sandbox.run("print('\ud800')", stdin="\ud800")
    assert not isinstance(result, SandboxBroken)


async def test_promised_packages_are_there_and_others_are_not(sandbox: Sandbox) -> None:
    if sandbox.missing:
        pytest.skip(f"not installed: {sandbox.missing}")
    code = (
        "import numpy, sympy\n"
        "print(sympy.expand('x*(x + 1)'), numpy.linalg.det(numpy.eye(2)), numpy.fft.fft([1])[0])"
    )
    result = await sandbox.run(code)
    assert result.out == "x**2 + x 1.0 (1+0j)\n", result
    result = await sandbox.run("import pytest")
    assert "ModuleNotFoundError" in result.err
    for ours in ("sandbox", "turnwise"):
        result = await sandbox.run(f"import {ours}")
        assert "ModuleNotFoundError" in result.err


async def test_each_snippet_draws_its_own_random_numbers(sandbox: Sandbox) -> None:
    code = "import random; print(random.random())"
    if not sandbox.missing:
        code += (
            "; import numpy, sympy.core.random\n"
            "print(numpy.random.rand(), sympy.core.random.rng.random())"
        )
    first, second = await sandbox.run(code), await sandbox.run(code)
    assert not set(first.out.split()) & set(second.out.split())


async def test_what_programs_do_with_files_of_their_own_still_works(sandbox: Sandbox) -> None:
    code = """
import fcntl, mmap, os, shutil, sqlite3, tempfile, threading
from pathlib import Path
with sqlite3.connect("own.db") as base:
    base.execute("create table t (a)")
    base.execute("insert into t values (7)")
print(sqlite3.connect("own.db").execute("select a from t").fetchone()[0])
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "a").write_text("x")
    os.replace(Path(folder, "a"), Path(folder, "b"))
    shutil.copyfile(Path(folder, "b"), "copy")
Path("copy").touch()
with open("copy", "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    with mmap.mmap(file.fileno(), 1) as memory:
        memory[0] = 121
os.symlink("copy", "link")
print(Path("link").read_text(), Path("link").resolve().exists(), os.preadv(0, [bytearray(1)], 0))
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
"""
    result = await sandbox.run(code, stdin="z")
    assert result.out == "7\ny True 1\nthread\n", result


async def test_a_packages_generators_are_no_snippets_copy_of_anothers() -> None:
    config = SandboxConfig(packages=("numpy.random", "sympy"), concurrency=1)
    code = """
import numpy, sys
assert "numpy.random" in sys.modules
import sympy.core.random
print(numpy.random.rand(), numpy.random.normal(), sympy.core.random.rng.random())
"""
    try:
        async with Sandbox(config) as sandbox:
            if sandbox.missing:
                pytest.skip(f"not installed: {sandbox.missing}")
            drawn = [(await sandbox.run(code)).out.split() for _ in range(3)]
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    assert len(set().union(*drawn)) == 9, drawn
