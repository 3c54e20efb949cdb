"""Two snippets at once share nothing that one could speak through and the other hear."""

from __future__ import annotations

import asyncio
import time

import pytest
from sandbox import Ran, Sandbox, SandboxConfig, SandboxUnavailable, Tier

SAID = "OK"
BITS = [bit == "1" for letter in SAID for bit in f"{ord(letter):08b}"]
STEP_S = 0.06
FRAME = """
import ctypes, fcntl, json, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
file = os.open(json.__file__, os.O_RDONLY)
libc.mmap.restype = ctypes.c_void_p
place = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file, ctypes.c_long(0))
value = int.from_bytes(os.pread(file, 4, 0), "little")
def futex(command, number, seconds=0.0):
    limit = struct.pack("2q", 0, int(seconds * 1e9))
    arguments = (ctypes.c_void_p(place), command, number, limit if seconds else None, None, 0)
    return libc.syscall(202 if os.uname().machine == "x86_64" else 98, *arguments)
def until(step):
    while time.time() < START + step * STEP:
        pass
"""
CHANNELS = {
    "flock": (
        "fcntl.flock(file, fcntl.LOCK_EX if bit else fcntl.LOCK_UN)",
        """
try:
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(file, fcntl.LOCK_UN)
    heard.append("0")
except BlockingIOError:
    heard.append("1")
""",
    ),
    "record lock": (
        "fcntl.lockf(file, fcntl.LOCK_SH if bit else fcntl.LOCK_UN)",
        """
wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
found = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, wanted))[0]
heard.append("1" if found == fcntl.F_RDLCK else "0")
""",
    ),
    "futex": (
        "bit and futex(0, value, STEP * 0.8)",
        "heard.append(str(int(futex(1, 1) == 1)))",
    ),
}


def programs(channel: str) -> tuple[str, str]:
    """The speaker and the listener, who begin a second from now."""
    says, hears = CHANNELS[channel]
    frame = FRAME + f"START = {time.time() + 1.0}\nSTEP = {STEP_S}\nheard = []\n"
    speaker = f"{frame}for step, bit in enumerate({BITS}):\n    until(step)\n    {says}\nuntil(17)"
    body = "\n".join(f"    {line}" for line in hears.splitlines())
    listener = f"{frame}for step in range({len(BITS)}):\n    until(step + 0.4)\n{body}\n"
    return speaker, listener + "print(''.join(heard))"


async def heard(tier: Tier, channel: str) -> str:
    sandbox = Sandbox(SandboxConfig(isolation=tier, packages=(), wall_s=20, concurrency=2))
    try:
        await sandbox.start()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    try:
        _, listener = await asyncio.gather(*map(sandbox.run, programs(channel)))
    finally:
        await sandbox.close()
    assert isinstance(listener, Ran) and len(listener.out.strip()) == len(BITS), listener
    return listener.out.strip()


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
async def test_nothing_is_heard_through_a_librarys_file(tier: Tier, channel: str) -> None:
    assert len(set(await heard(tier, channel))) == 1


@pytest.mark.parametrize("channel", CHANNELS)
async def test_without_walls_something_is_heard(channel: str) -> None:
    assert len(set(await heard("none", channel))) == 2
