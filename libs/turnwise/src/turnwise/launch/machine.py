"""Checks of the machine: disk, GPUs, ports, Ray, versions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
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
WEIGHT_BYTES = 2
# fp32 weights and moments, spread over all GPUs of the trainer.
OPTIMIZER_BYTES = 12
# What the node must have, and what is shown of the rest; by module, with its distribution.
NODE_PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "ray": "ray",
    "sglang": "sglang",
    "slime": "slime",
    "megatron.core": "megatron-core",
}
OTHER_PACKAGES = {
    "transformer_engine": "transformer_engine",
    "flash_attn": "flash-attn",
    "flash_attn_3": "flash-attn-3",
    "flash_attn_interface": "flash-attn-3",
    "fused_weight_gradient_mlp_cuda": "apex",
}
FLASH = ("flash_attn", "flash_attn_3", "flash_attn_interface")
FUSED_GRADIENTS = "fused_weight_gradient_mlp_cuda"
# A distribution may be absent of what only lies on the path, as slime does.
_ASK_VERSIONS = """
import importlib.metadata, importlib.util, json, sys
def version(module, distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        return "here" if importlib.util.find_spec(module) else None
    except (ImportError, ValueError):
        return None
found = {module: version(module, name) for module, name in json.loads(sys.argv[1]).items()}
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
    optimizer = "--no-save-optim" not in plan.options
    one = params * (WEIGHT_BYTES + OPTIMIZER_BYTES * optimizer)
    rollouts, interval = whole(plan.options, "--num-rollout", 0), plan.value("--save-interval")
    count = max(1, rollouts // int(interval)) if interval else 1
    room = f"{free / 1e9:.0f} GB free for {save}"
    if not one:
        return note("disk", f"{room}; the size of a checkpoint is not known")
    need = f"{count} checkpoints of {one / 1e9:.0f} GB"
    if free < min(2, count) * one:
        return fail("disk", f"{room}, {need}", "free some, or point [ckpt] save elsewhere")
    if free < count * one:
        return note(
            "disk", f"{room}, {need}", "remove old ones while it runs, or raise save-interval"
        )
    return ok("disk", f"{room}, {need}")


def training_bytes(plan: Plan, params: int) -> float:
    """Bytes that weights, gradients and optimizer take at least on each GPU.

    bf16 weights and gradients (fp32 where so accumulated) on every model-parallel shard, of which a
    mixture of experts has as many as its experts are spread over; fp32 weights and moments spread
    over all GPUs, or in host memory. Activations come on top.
    """
    options = plan.options
    tensor = whole(options, "--tensor-model-parallel-size", 1)
    experts = whole(options, "--expert-model-parallel-size", 1)
    experts *= whole(options, "--expert-tensor-parallel-size", tensor)
    pipeline = whole(options, "--pipeline-model-parallel-size", 1)
    gpus = whole(options, "--actor-num-nodes", 1) * whole(options, "--actor-num-gpus-per-node", 8)
    shards = pipeline * max(tensor, experts if "--num-experts" in options else 1)
    gradient = 4 if "--accumulate-allreduce-grads-in-fp32" in options else 2
    there = 1.0
    if "--optimizer-cpu-offload" in options:
        there = 1.0 - number(options, "--optimizer-offload-fraction", 1.0)
    if "--use-precision-aware-optimizer" in options:
        # Weights and moments may be kept in fewer bytes, which other flags say.
        there /= 2
    state = (WEIGHT_BYTES + gradient) / shards + there * OPTIMIZER_BYTES / max(gpus, shards)
    return params * state


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
    # A GPU that is split tells no sizes.
    sizes = [row for row in rows if row[1].isdigit() and row[2].isdigit()]
    return [(name, int(total) << 20, int(used) << 20) for name, total, used in sizes]


def visible_gpus() -> list[tuple[str, int, int]] | None:
    """Those of `gpus_here` that CUDA_VISIBLE_DEVICES leaves; all where it names none by number."""
    found = gpus_here()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not found or not all(one.strip().isdigit() for one in named):
        return found
    return [found[place] for one in named if (place := int(one)) < len(found)]


def check_gpus(plan: Plan, params: int, *, ours: bool = False) -> Iterator[Line]:
    """Number of GPUs, what others hold of them, and the trainer's need against their memory.

    Args:
        ours: A run of ours lives here, which --takeover would end.
    """
    found = visible_gpus()
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
    share = number(plan.options, "--sglang-mem-fraction-static", 0.88)
    state = training_bytes(plan, params)
    busy = [used for _, _, used in found[:need] if used > 2 << 30]
    if busy:
        # What is missing must be missing whatever the run does with the rest.
        short = any(
            total - used < max(state, 0.5 * share * total) for _, total, used in found[:need]
        )
        say = fail if short and not ours else note
        yield say(
            "GPUs",
            f"{len(busy)} of {need} are in use, up to {max(busy) / 1e9:.0f} GB",
            "end what uses them (nvidia-smi names the processes)",
        )
    smallest = min(total for _, total, _ in found)
    if params:
        room = f"{state / 1e9:.0f} GB for weights, gradients and optimizer of {smallest / 1e9:.0f}"
        if state > 0.9 * smallest:
            remedy = (
                "raise tensor-model-parallel-size, take more GPUs, or set optimizer-cpu-offload"
            )
            yield fail("GPU memory", room, remedy)
        else:
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
        remedy = "start the cluster (ray start --head), or leave [ray] address out"
        yield fail("Ray", f"nobody answers at {ray.address}", remedy)
    for folder, _, what in living(run_dir):
        yield note("Ray", f"a run of ours lives: {folder}: {what}", "stop it, or --takeover")


def node_versions(ray: RayConfig) -> dict[str, str | None]:
    """Versions of what the node has, by its own Python; empty if that does not run.

    Raises:
        PreflightError: the interpreter is not there.
    """
    asked = json.dumps({**NODE_PACKAGES, **OTHER_PACKAGES})
    command = [ray.python, "-c", _ASK_VERSIONS, asked]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=40, env=slime_environment(ray)
        )
    except OSError as error:
        raise PreflightError(f"[ray] python {ray.python}: {error}") from None
    except subprocess.TimeoutExpired:
        return {}
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def check_versions(ray: RayConfig, options: Mapping[str, Sequence[str]]) -> Iterator[Line]:
    """What the node has against what this product was made for and what the flags need."""
    found = node_versions(ray)
    if not found:
        yield skip("versions", f"{ray.python} did not say what it has")
        return
    missing = [name for name in NODE_PACKAGES if not found.get(name)]
    if missing:
        yield fail(
            "versions",
            f"{ray.python} (Python {found.get('python')}) lacks {', '.join(missing)}",
            "run in the image slimerl/slime, or set [ray] python",
        )
    names = [*NODE_PACKAGES, *OTHER_PACKAGES]
    there = ", ".join(f"{name} {found[name]}" for name in names if found.get(name))
    if there:
        yield ok("versions", there)
    backend = options.get("--attention-backend", ["auto"])[0]
    if backend == "flash" and not any(found.get(name) for name in FLASH):
        yield fail(
            "versions",
            "attention-backend flash, but flash-attn is not there",
            'set attention-backend = "auto", or install flash-attn',
        )
    fuses = "--no-gradient-accumulation-fusion" not in options
    if fuses and FUSED_GRADIENTS in found and not found[FUSED_GRADIENTS]:
        yield fail(
            "versions",
            "Megatron fuses the accumulation of gradients by Apex, which is not there",
            "set no-gradient-accumulation-fusion = true, or install Apex",
        )
    wanted = versions()
    sglang = found.get("sglang")
    if sglang and not sglang.startswith(wanted["sglang"]):
        yield note("versions", f"sglang {sglang}, made for {wanted['sglang']}", "see the log")
    train = ray.slime_dir / "train.py"
    if not train.is_file():
        yield fail("versions", f"slime's {train} is not there", "set [ray] slime-dir")
    for name, folder in (("slime", ray.slime_dir), ("megatron", ray.megatron_dir)):
        if folder.is_dir():
            yield _check_commit(name, folder, wanted[name])


def _check_commit(name: str, folder: Path, wanted: str) -> Line:
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
