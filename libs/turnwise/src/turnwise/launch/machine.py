"""Checks of the machine: disk, GPUs, ports, Ray, versions."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from turnwise.command import PreflightError
from turnwise.launch import ray_job
from turnwise.launch.flags import versions
from turnwise.launch.head import answers, node_environment, port_is_free
from turnwise.launch.plan import Plan
from turnwise.launch.preset import RayConfig
from turnwise.launch.rules import number, whole
from turnwise.launch.start import living
from turnwise.preflight import Line, fail, note, ok, skip

# Bytes a parameter takes in a Megatron checkpoint: bf16 weights, fp32 weights and two Adam moments.
CHECKPOINT_BYTES = 14
# The same on the GPUs while training: bf16 weights and fp32 gradients on every model-parallel
# shard; fp32 weights and moments spread over the data-parallel ranks as well.
SHARD_BYTES = 6
OPTIMIZER_BYTES = 12
# What the node must have, by distribution, and where the version is held against the table's.
NODE_PACKAGES = ("torch", "transformers", "ray", "sglang", "slime", "megatron-core", "flash-attn")
_ASK_VERSIONS = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
found = {name: version(name) for name in sys.argv[1:]}
found["python"] = sys.version.split()[0]
print(json.dumps(found))
"""


def check_disk(plan: Plan, params: int) -> Line:
    """Room for the checkpoints that the run will write."""
    save = plan.value("--save")
    if save is None:
        return note(
            "disk", "there is no save, so nothing of the run will be kept", "set [ckpt] save"
        )
    folder = Path(save)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    one = params * CHECKPOINT_BYTES
    rollouts, interval = whole(plan.options, "--num-rollout", 0), plan.value("--save-interval")
    count = max(1, rollouts // int(interval)) if interval else 1
    room = f"{free / 1e9:.0f} GB free for {save}"
    if not one:
        return note("disk", f"{room}; the size of a checkpoint is not known")
    need = f"{count} checkpoints of {one / 1e9:.0f} GB"
    if free < 2 * one:
        return fail("disk", f"{room}, {need}", "free some, or point [ckpt] save elsewhere")
    if free < count * one:
        return note(
            "disk", f"{room}, {need}", "remove old ones while it runs, or raise save-interval"
        )
    return ok("disk", f"{room}, {need}")


def training_bytes(plan: Plan, params: int) -> float:
    """Bytes that weights, gradients and optimizer take on each GPU; activations come on top."""
    tensor = whole(plan.options, "--tensor-model-parallel-size", 1)
    pipeline = whole(plan.options, "--pipeline-model-parallel-size", 1)
    gpus = whole(plan.options, "--actor-num-nodes", 1) * whole(
        plan.options, "--actor-num-gpus-per-node", 8
    )
    shard = params / (tensor * pipeline)
    copies = max(1, gpus // (tensor * pipeline))
    return shard * (SHARD_BYTES + OPTIMIZER_BYTES / copies)


def gpus_here() -> list[tuple[str, int, int]] | None:
    """Name, bytes and used bytes of each GPU; None without a driver."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,memory.used"]
    command.append("--format=csv,noheader,nounits")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 2]
    return [(name, int(total) << 20, int(used) << 20) for name, total, used in rows]


def check_gpus(plan: Plan, params: int) -> Iterator[Line]:
    """Number of GPUs, what others hold of them, and the trainer's need against their memory."""
    found = gpus_here()
    need = plan.gpus_per_node
    if not found:
        yield fail("GPUs", "no NVIDIA driver answers here", f"run on a node with {need} GPUs")
        return
    if len(found) < need:
        yield fail(
            "GPUs",
            f"{len(found)} here, {need} wanted on each node",
            "lower actor-num-gpus-per-node and rollout-num-gpus, or take a larger node",
        )
    names = ", ".join(sorted({name for name, _, _ in found}))
    busy = [used for _, _, used in found[:need] if used > 2 << 30]
    if busy:
        yield fail(
            "GPUs",
            f"{len(busy)} of {need} are in use, up to {max(busy) / 1e9:.0f} GB",
            "end what uses them (nvidia-smi names the processes)",
        )
    smallest = min(total for _, total, _ in found)
    if params:
        state = training_bytes(plan, params)
        room = f"{state / 1e9:.0f} GB for weights, gradients and optimizer of {smallest / 1e9:.0f}"
        if state > 0.9 * smallest:
            mend = "raise tensor-model-parallel-size, take more GPUs, or set optimizer-cpu-offload"
            yield fail("GPU memory", room, mend)
        else:
            share = number(plan.options, "--sglang-mem-fraction-static", 0.88)
            yield ok("GPU memory", f"{room}; SGLang takes {share * smallest / 1e9:.0f} GB of it")
    if len(found) >= need and not busy:
        yield ok("GPUs", f"{len(found)} x {names}, {need} wanted")


def check_ports(ray: RayConfig) -> Line:
    """The ports that a head of our own is told to use."""
    if ray.address is not None:
        return skip("ports", f"attaches to {ray.address}")
    wanted = {"port": ray.port, "dashboard-port": ray.dashboard_port}
    taken = [f"{name} {port}" for name, port in wanted.items() if port and not port_is_free(port)]
    if taken:
        return fail("ports", f"taken: {', '.join(taken)}", "choose others in [ray], or 0 for any")
    return ok("ports", ", ".join(f"{name} {port or 'any'}" for name, port in wanted.items()))


def check_ray(ray: RayConfig, run_dir: Path) -> Iterator[Line]:
    """The client here, the cluster there, and whether a run of ours is in the way."""
    try:
        import ray as installed  # pants: no-infer-dep
    except ImportError as error:
        yield fail("Ray", f"not importable here: {error}", "run with the Python of a node")
        return
    if ray.address is None:
        yield ok("Ray", f"{installed.__version__} here; the run starts a head of its own")
    elif answers(ray.address):
        ray_job.connect(ray.address)
        yield ok("Ray", f"{installed.__version__} here; {ray.address} answers")
    else:
        mend = "start the cluster (ray start --head), or leave [ray] address out"
        yield fail("Ray", f"nobody answers at {ray.address}", mend)
    for folder, _, what in living(run_dir):
        yield note("Ray", f"a run of ours lives: {folder}: {what}", "stop it, or --takeover")


def node_versions(ray: RayConfig) -> dict[str, str | None]:
    """Versions of what the node must have, by its own Python; empty if that does not run.

    Raises:
        PreflightError: the interpreter is not there.
    """
    command = [ray.python, "-c", _ASK_VERSIONS, *NODE_PACKAGES]
    environment = node_environment({"PYTHONPATH": str(ray.megatron_dir)})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PreflightError(f"[ray] python {ray.python}: {error}") from None
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def check_versions(ray: RayConfig) -> Iterator[Line]:
    """What the node has against what this product was made for."""
    found = node_versions(ray)
    missing = [name for name in NODE_PACKAGES[:5] if not found.get(name)]
    if missing:
        yield fail(
            "versions",
            f"{ray.python} (Python {found.get('python')}) lacks {', '.join(missing)}",
            "run in the image slimerl/slime, or set [ray] python",
        )
    there = ", ".join(f"{name} {found[name]}" for name in NODE_PACKAGES if found.get(name))
    if there:
        yield ok("versions", there)
    wanted = versions()
    sglang = found.get("sglang")
    if sglang and not sglang.startswith(wanted["sglang"]):
        yield note("versions", f"sglang {sglang}, made for {wanted['sglang']}", "see the log")
    for name, folder in (("slime", ray.slime_dir), ("megatron", ray.megatron_dir)):
        yield _check_commit(name, folder, wanted[name])


def _check_commit(name: str, folder: Path, wanted: str) -> Line:
    if not folder.is_dir():
        return fail("versions", f"{name} is not in {folder}", f"set [ray] {name}-dir")
    done = _git(folder)
    if done is None:
        return note("versions", f"{name} in {folder} has no commit to compare with {wanted[:12]}")
    if done != wanted:
        return note(
            "versions",
            f"{name} is at {done[:12]}, made for {wanted[:12]}",
            "flags and hooks may differ; slime's own parser was asked",
        )
    return ok("versions", f"{name} is at {wanted[:12]}, as it should")


def _git(folder: Path) -> str | None:
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def slime_environment(ray: RayConfig, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment in which the node's Python imports slime and Megatron."""
    path = f"{ray.slime_dir}:{ray.megatron_dir}"
    return node_environment({"PYTHONPATH": path, **(extra or {})})
