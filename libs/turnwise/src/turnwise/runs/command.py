"""The command: lists runs, says what one does, and asks something of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from turnwise.config import ConfigError
from turnwise.console import OutputConsole
from turnwise.printable import printable, tell
from turnwise.run.control import Outcome, in_words, make_request, read_history
from turnwise.run.folder import RunFolder
from turnwise.run.status import STACKS, is_alive, read_status
from turnwise.runs import told
from turnwise.runs.asking import (
    backend_of,
    send,
    stop_job,
    wait_for_answer,
)

DESCRIPTION = (
    "Lists runs, says what one does and waits for, and asks something of it: of runs on this"
    " machine and of jobs on a cluster, through files of the run folder. Exit codes: 0 ok, 2 usage,"
    " or refused, 3 no answer yet, 4 the run has ended before its end."
)
COMMANDS: Mapping[str, str] = {
    "pause": "stand still after the step under way",
    "resume": "go on after a pause",
    "stop": "save and end after the step under way; on a cluster, end the job now",
    "eval": "evaluate after the step under way",
    "save": "write a checkpoint after the step under way",
}
MAX_EPISODES = 20


def runs(argv: Sequence[str]) -> int:
    """Runs a subcommand; returns the exit code."""
    parser = argparse.ArgumentParser(prog="runs", description=DESCRIPTION, allow_abbrev=False)
    parts = parser.add_subparsers(dest="command", required=True)
    listing = parts.add_parser("list", help="the runs in a folder")
    listing.add_argument("runs_dir", type=Path, nargs="?", default=Path("runs"))
    status = parts.add_parser(
        "status",
        help="what a run does, waits for and was asked; with --stacks where each task stands",
    )
    status.add_argument("run_dir", type=Path)
    status.add_argument(
        "--stacks", action="store_true", help="have it write the stacks of its tasks and threads"
    )
    for name, text in COMMANDS.items():
        parts.add_parser(name, help=text).add_argument("run_dir", type=Path)
    setting = parts.add_parser("set", help="change options of a run under way")
    setting.add_argument("run_dir", type=Path)
    setting.add_argument("changes", metavar="KEY=VALUE", nargs="+")
    dropping = parts.add_parser("drop", help="play a training task no more, and cancel its group")
    dropping.add_argument("run_dir", type=Path)
    dropping.add_argument("task", help="its id, as episodes have it")
    given = parser.parse_args(list(argv))
    if given.command == "list":
        return list_runs(given.runs_dir)
    if given.command == "status":
        return show_status(given.run_dir, stacks=given.stacks)
    arguments: dict[str, str] = {}
    if given.command == "set":
        arguments = _changes(given.changes)
    elif given.command == "drop":
        arguments = {given.task: ""}
    return ask_for(given.run_dir, given.command, arguments)


def list_runs(root: Path) -> int:
    """Prints the runs below a folder."""
    from turnwise.view.run import ViewedRun, find_runs

    if not root.is_dir():
        what = "is a file" if root.exists() else "no such folder"
        raise ConfigError(f"{root}: {what}; name a folder with runs")
    rows = []
    for name, path in find_runs(root):
        row = ViewedRun(name, path).listed()
        score = "-" if row["score"] is None else f"{row['score']:.3f}"
        steps = str(row["steps"]) + (f"/{row['planned']}" if row["planned"] else "")
        state, doing = row["state"], ""
        status = read_status(path)
        if status is not None and is_alive(status):
            state = status.state
            doing = "STALL" if status.stalled else f"{status.stage}, {status.in_flight} under way"
        rows.append((name, state, row["method"], steps, score, doing or row["verdict"]))
    _print("", ("run", "state", "method", "steps", "score", ""), rows)
    return 0


def show_status(run_dir: Path, *, stacks: bool = False) -> int:
    """Prints what a run does; 4 where it has ended before its end."""
    folder = RunFolder.open(run_dir)
    status = read_status(run_dir)
    if stacks:
        outcome = _asked(run_dir, "stacks", {})
        tell(outcome.said if outcome.answer == "done" else f"{STACKS}: {outcome.said}")
        tell((run_dir / STACKS).read_text(encoding="utf-8"))
        status = read_status(run_dir)
    alive = status is not None and is_alive(status)
    if status is not None:
        tell(told.headline(status))
        for line in told.warnings(status):
            tell(line)
        for title, head, rows in told.tables(status) if alive else ():
            _print(title, head, rows[:MAX_EPISODES])
    else:
        tell(f"{run_dir}: it has written no status.json")
    if backend_of(run_dir) == "slime":
        from turnwise.launch.start import status as job_status

        job_status(run_dir.absolute())
    if past := read_history(run_dir):
        _print(*told.history(past[-told.MAX_HISTORY :]))
    return 0 if alive or folder.summary.exists() else 4


def ask_for(run_dir: Path, command: str, arguments: Mapping[str, str]) -> int:
    """Asks a run for something and says its answer."""
    outcome = _asked(run_dir, command, arguments)
    reason = outcome.said.removeprefix(f"{command}: ")
    said = f": {reason}" if reason else ""
    if outcome.answer == "refused":
        raise ConfigError(f"{run_dir}: {command} is refused{said}")
    tell(f"{in_words(outcome)}: {outcome.answer}{said}")
    return 0


def _asked(run_dir: Path, command: str, arguments: Mapping[str, str]) -> Outcome:
    request = make_request(command, arguments)  # type: ignore[arg-type]
    if command == "stop" and backend_of(run_dir) == "slime":
        stop_job(run_dir, request)
    else:
        send(run_dir, request)
    return wait_for_answer(run_dir, request)


def _changes(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key and value):
            raise ConfigError(f"set: expected KEY=VALUE, found {word!r}")
        found[key.removeprefix("--")] = value
    return found


def _print(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*head, title=title or None, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    OutputConsole(highlight=False, width=None if _is_terminal() else 200).print(table)


def _is_terminal() -> bool:
    return bool(OutputConsole().is_terminal)
