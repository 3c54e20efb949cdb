"""A Ray head of our own: its own temporary folder, ports, token and process group.

Ray opens its folder to every user of the machine and listens on every address, whatever it is told.
So its folder lies in one that nobody else can enter, and whoever speaks to the head needs a token
that was made for it alone and lies in that folder, whether the user has one of his own or not. What
answers without it: the ports on which Ray shows its metrics, which can only be read.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import psutil

from turnwise.command import RunError
from turnwise.config import ConfigError
from turnwise.launch.preset import RayConfig
from turnwise.launch.processes import Process, command_line, end_family, identify
from turnwise.launch.record import Head

START_TIMEOUT_S = 90.0
STOP_GRACE_S = 20.0
# A head of ours ends when its job is over, so nothing is left to drain; Ray would wait for 30 s.
_HEAD_ENVIRONMENT = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0", "RAY_AUTH_MODE": "token"}
# Within our folder: Ray's own, and the token.
SESSIONS, TOKEN = "r", "token"
# Ray's Unix sockets lie below the folder; their path may have 107 bytes and takes some 72.
LONGEST_TEMP_DIR = 34
# Linux gives 32768 and above to outgoing connections unless told otherwise; Ray's workers and most
# services live elsewhere.
PORTS = range(20_000, 32_000)
# What would make the node's Python see the launcher's packages.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "RAY_ADDRESS")
# Ray takes it before the file that we name.
_NOT_THE_HEADS = "RAY_AUTH_TOKEN"


def node_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for the node's own Python: ours without what leads to our packages."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(("PEX", "PANTS"))
    }
    return {**kept, **(extra or {})}


def free_ports(number: int) -> list[int]:
    """Ports that nobody answers on now.

    They lie below those that the kernel gives to outgoing connections, or one of Ray's own
    processes could take a port of another before that one is up.

    Raises:
        RunError: there are not so many.
    """
    candidates = random.SystemRandom().sample(PORTS, len(PORTS))
    found = [port for port in candidates[: 50 * number] if port_is_free(port)]
    if len(found) < number:
        raise RunError(f"fewer than {number} free ports between {PORTS[0]} and {PORTS[-1]}")
    return found[:number]


def port_is_free(port: int) -> bool:
    """Whether something could listen on a port of this machine."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True


def start_head(config: RayConfig, *, num_gpus: int, log: Path) -> Head:
    """Starts a head and waits until its Jobs API answers.

    Args:
        config: Interpreter, addresses and ports.
        num_gpus: GPUs of this machine that the run may use.
        log: Where the head's output goes.

    Raises:
        ConfigError: the folder's path is too long, or a port is taken.
        RunError: it ended or did not answer in `START_TIMEOUT_S`; it is then gone.
    """
    for port in (config.port, config.dashboard_port):
        if port and not port_is_free(port):
            raise ConfigError(f"[ray] port {port} is taken; choose another one, or 0 for any")
    temp_dir = _temp_dir(config)
    token = temp_dir / TOKEN
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    join, dashboard, *others = free_ports(6)
    join, dashboard = config.port or join, config.dashboard_port or dashboard
    command = [
        *(config.python, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address", config.node_ip, "--port", str(join)),
        *("--dashboard-host", config.node_ip, "--dashboard-port", str(dashboard)),
        *("--include-dashboard", "true", "--disable-usage-stats"),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--ray-client-server-port", str(others[0])),
        *("--dashboard-agent-listen-port", str(others[1])),
        *("--dashboard-agent-grpc-port", str(others[2])),
        *("--metrics-export-port", str(others[3])),
        *("--temp-dir", str(temp_dir / SESSIONS), "--num-gpus", str(num_gpus)),
    ]
    environment = node_environment({**_HEAD_ENVIRONMENT, "RAY_AUTH_TOKEN_PATH": str(token)})
    environment.pop(_NOT_THE_HEADS, None)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(temp_dir)
            raise ConfigError(f"[ray] python {config.python}: {error.strerror}") from None
    process = identify(child.pid)
    address = f"http://{config.node_ip}:{dashboard}"
    try:
        _wait(child, address, token.read_text(), log)
    except BaseException:
        if process is not None:
            end_family(process, STOP_GRACE_S)
        child.wait()
        _keep_logs(temp_dir, log.parent / "ray")
        shutil.rmtree(temp_dir, ignore_errors=True)
        raise
    assert process is not None
    return Head(
        process=process,
        address=address,
        join=f"{config.node_ip}:{join}",
        temp_dir=str(temp_dir),
    )


def stop_head(head: Head, keep_logs: Path | None = None) -> list[Process]:
    """Ends the head with everything that it started; its logs move to `keep_logs`.

    Args:
        head: What `start_head` gave, or a record of which `is_ours` is true.

    Returns:
        Who did not end when asked and was killed.
    """
    killed = end_family(head.process, STOP_GRACE_S)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(head.process.pid, os.WNOHANG)
    temp_dir = Path(head.temp_dir)
    if keep_logs is not None:
        _keep_logs(temp_dir, keep_logs)
    shutil.rmtree(temp_dir, ignore_errors=True)
    return killed


def is_ours(head: Head) -> bool:
    """Whether the process that a record names lives and was started as this very head.

    A record may come from anybody; what a process was started with can't be changed by one.
    """
    words = list(command_line(head.process))
    told = dict(zip(words, words[1:], strict=False))
    address = f"http://{told.get('--dashboard-host')}:{told.get('--dashboard-port')}"
    sessions = str(Path(head.temp_dir) / SESSIONS)
    return told.get("--temp-dir") == sessions and address == head.address


def token_of(head: Head | None) -> str | None:
    """What the Jobs API of a head of ours asks for; None for a cluster of others.

    Raises:
        ConfigError: the head's folder can't be read.
    """
    if head is None or not is_ours(head):
        return None
    path = Path(head.temp_dir) / TOKEN
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def answers(address: str, token: str | None = None, timeout_s: float = 3.0) -> bool:
    """Whether a Jobs API is there; without a token also one that wants another."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        asked = urllib.request.Request(f"{address}/api/version", headers=bearer(token))
        with opener.open(asked, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        return token is None and error.code in (401, 403)
    except (OSError, ValueError, http.client.HTTPException):
        return False


def is_here(address: str | None) -> bool:
    """Whether a Jobs API is on this machine: its files and devices are then those of a node."""
    host = urllib.parse.urlsplit(address or "").hostname
    if host is None:
        return True
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    return bool(found & own) or any(str(one).startswith("127.") for one in found)


def bearer(token: str | None) -> dict[str, str]:
    """The header that carries a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _keep_logs(temp_dir: Path, keep_logs: Path) -> None:
    for session in (temp_dir / SESSIONS).glob("session_2*/logs"):
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(session, keep_logs / session.parent.name, symlinks=True)


def _temp_dir(config: RayConfig) -> Path:
    """A new folder, so that no other cluster's session lies beside ours."""
    base = config.temp_dir or Path(tempfile.gettempdir())
    try:
        base.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="tw-", dir=base)).resolve()
    except OSError as error:
        raise ConfigError(f"[ray] temp-dir {base}: {error.strerror}") from None
    if len(str(made)) > LONGEST_TEMP_DIR:
        made.rmdir()
        raise ConfigError(
            f"[ray] temp-dir {base}: too long for Ray's sockets, "
            f"{len(str(base))} characters where {LONGEST_TEMP_DIR - 12} fit; name a shorter one"
        )
    return made


def _wait(child: subprocess.Popen[bytes], address: str, token: str, log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while not answers(address, token):
        if child.poll() is not None:
            raise RunError(f"the Ray head ended with status {child.returncode}: {_last(log)}")
        if time.monotonic() > until:
            raise RunError(
                f"the Ray head did not answer in {START_TIMEOUT_S:.0f} s; see {log} and"
                f" {log.parent / 'ray'}"
            )
        time.sleep(0.2)


def _last(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
