"""Starting a run on a GPU cluster: a file to slime's arguments to a Ray job.

    from turnwise.launch import run, status, stop
    code = run(Path("qwen3-4b-instruct-2507.toml"), ["--lr", "2e-6"], run_dir=Path("runs/tau-1"))

`flags` holds slime's flags, `preset` reads the file, `plan` makes the arguments, `rules` finds what
cannot work, `bundle` packs our code for the nodes, `head` is a Ray head of our own, `ray_job` the
job on it, `start` all of that in order; `command` and `convert` are commands of every method.
"""

from turnwise.launch.start import run, status, stop

__all__ = ["run", "status", "stop"]
