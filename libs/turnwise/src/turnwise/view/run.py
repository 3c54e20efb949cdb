"""A run that is looked at: its files read as they grow, and what they say as rows and charts."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError
from turnwise.report import charts, sections, times
from turnwise.report.events import event_rows
from turnwise.report.load import RunData, numbers_by_name
from turnwise.report.plots import Chart
from turnwise.run.control import read_history
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import parse_line
from turnwise.run.metrics import EvalRow, EventRow, MetricsRow, SlimeRow, TrainRow, parse_row
from turnwise.run.summary import AnySummary, EvalSummary, Summary, read_summary
from turnwise.view.episodes import MAX_PROBLEMS, Entry, EpisodeIndex
from turnwise.view.follow import GrowingFile
from turnwise.view.gpus import GpuMemory
from turnwise.view.started import options_shown
from turnwise.view.state import run_state, written_at
from turnwise.view.tokens import OpenEpisode, open_episode

MAX_OPEN_TOKENS = 4_000_000
"""Tokens of the episodes of a run that stay open, the latest excepted."""
MAX_DEPTH = 3
"""Folders below the one that is looked at in which runs are looked for."""
LOG_S = 0.25
"""Seconds that one answer may spend on reading logs; what is left is read by the next."""
Json = dict[str, Any]


class ViewedRun:
    """Reads what is there of a run, again and again, and never writes into it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.folder = RunFolder(path)
        self.index = EpisodeIndex(self.folder.episodes)
        self._metrics = GrowingFile(self.folder.metrics)
        self._gpus = GpuMemory(self.folder.logs)
        self._generation = 0
        self._rows: list[MetricsRow] = []
        self._number = 0
        self._problems: list[str] = []
        self._open: OrderedDict[tuple[int, int], OpenEpisode] = OrderedDict()

    def refresh(self) -> None:
        """Reads new rows of metrics.jsonl; a broken one is named in `data().gaps`."""
        self._metrics.look()
        if self._metrics.generation != self._generation:
            self._generation = self._metrics.generation
            self._rows, self._problems, self._number = [], [], 0
        for _, line in self._metrics.lines(until=float("inf")):
            self._number += 1
            try:
                self._rows.append(parse_row(parse_line(self.folder.metrics, self._number, line)))
            except ValueError as error:
                if len(self._problems) < MAX_PROBLEMS:
                    where = f"metrics.jsonl:{self._number} is left out"
                    self._problems.append(f"{where}: {error}")

    def data(self) -> RunData:
        """What was read, as the report has it; the episodes stay in the index."""
        gaps = [
            f"{path.name} is missing"
            for path in (self.folder.config, self.folder.metrics, self.folder.episodes)
            if not path.is_file()
        ]
        config, summary = {}, None
        try:
            config = self.folder.read_config() if self.folder.config.is_file() else {}
        except ConfigError as error:
            gaps.append(str(error))
        try:
            summary = read_summary(self.folder)
        except ConfigError as error:
            gaps.append(str(error))
        trains = [row for row in self._rows if isinstance(row, TrainRow)]
        evals = [row for row in self._rows if isinstance(row, EvalRow)]
        return RunData(
            name=self.name,
            config=config,
            trains=sorted(trains, key=lambda row: row.step),
            evals=sorted(evals, key=lambda row: row.step),
            summary=summary,
            traces=(),
            traced=len(self.index.entries),
            slime=numbers_by_name([row for row in self._rows if isinstance(row, SlimeRow)]),
            gaps=[*gaps, *self._problems, *self.index.problems],
            events=[row for row in self._rows if isinstance(row, EventRow)],
            outcomes=read_history(self.folder.path),
        )

    def listed(self) -> Json:
        """The run as a row of the list."""
        self.refresh()
        run = self.data()
        seconds = [row.rollout_s + (row.train_s or 0.0) for row in run.trains]
        seconds += [row.eval_s for row in run.evals]
        score = next(((r.reward_mean, r.reward_stderr) for r in run.evals[::-1]), (None, None))
        if score[0] is None and run.trains:
            score = (run.trains[-1].reward_mean, run.trains[-1].reward_stderr)
        planned = run.config.get("num_rollout")
        return {
            "name": self.name,
            "state": run_state(self.folder, max(seconds, default=0.0)),
            "kind": "evaluation" if isinstance(run.summary, EvalSummary) else "training",
            "method": _method(run),
            "policy": _policy(run),
            "verdict": _verdict(run.summary),
            "learned": isinstance(run.summary, Summary) and run.summary.learned,
            "score": score[0],
            "stderr": score[1],
            "steps": run.steps,
            "planned": planned if isinstance(planned, int) else None,
            "seconds": sum(seconds),
            "written": written_at(self.folder),
        }

    def shown(self) -> Json:
        """The run as its page shows it."""
        row = self.listed()
        run = self.data()
        summary = run.summary
        ledger = sections.ledger_rows(run)
        lines = [_line(line) for line in ledger["lines"]]
        curves = [*charts.evaluation_charts(run), *charts.training_charts(run)]
        return {
            **row,
            "status": sections.status(run),
            "cards": sections.cards(run),
            "gaps": run.gaps,
            "claim": [] if summary is None else list(summary.claim),
            "charts": [_chart(one) for one in curves],
            "gpu_charts": [_chart(one) for one in charts.gpu_charts(run)],
            "gpus": self._gpu_rows(),
            "slime_charts": [_chart(one) for one in charts.slime_charts(run)],
            "slime": _table(sections.slime_rows(run)),
            "ledger": {
                "balances": ledger["balances"],
                "lines": lines,
                "steps": [_line(line) for line in ledger["steps"]],
                "left_out": ledger["steps_left_out"],
            },
            "ending_chart": _chart(charts.ending_chart(run)),
            "endings": sections.ending_legend(run),
            "time_chart": _chart(charts.time_chart(run)),
            "waits": times.wait_rows(run),
            "wait_chart": _chart(charts.wait_chart(run)),
            "stages": times.stage_rows(run),
            "counted": _table(sections.metric_rows(run)),
            "measures": _table(sections.measure_rows(run)),
            "numbers": _table(sections.number_rows(run)),
            "events": _table(event_rows(run)),
            "config": options_shown(self.folder, dict(run.config)),
        }

    def _gpu_rows(self) -> Json:
        self._gpus.refresh(time.monotonic() + LOG_S)
        return _table(self._gpus.rows())

    def open(self, entry: Entry) -> OpenEpisode:
        """The episode with its tokens; the latest ones stay in memory.

        Raises:
            ConfigError: its line is no trace, or was written anew meanwhile.
        """
        key = (self.index.file.generation, entry.line)
        found = self._open.get(key)
        if found is None:
            try:
                found = open_episode(self.index.read(entry))
            except (ValueError, RecursionError, OSError) as error:
                path = self.folder.episodes
                raise ConfigError(f"{path}:{entry.line + 1}: {error}") from None
            self._open[key] = found
        self._open.move_to_end(key)
        while len(self._open) > 1 and (
            sum(one.tokens for one in self._open.values()) > MAX_OPEN_TOKENS
        ):
            self._open.popitem(last=False)
        return found

    def index_for(self, seconds: float) -> None:
        """Reads on in episodes.jsonl."""
        self.index.refresh(time.monotonic() + seconds)


def find_runs(root: Path) -> Iterator[tuple[str, Path]]:
    """Names and folders of the runs in `root`, or of `root` itself where it is one.

    A link to a run is one; what lies below a link to another folder is not looked at.
    """
    if _is_run(root):
        yield root.resolve().name, root
        return
    waiting = [(root, 1)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            inner = sorted(path for path in folder.iterdir() if path.is_dir())
        except OSError:
            continue
        for path in inner:
            if path.name.startswith("."):
                continue
            if _is_run(path):
                yield path.relative_to(root).as_posix(), path
            elif depth < MAX_DEPTH and not path.is_symlink():
                waiting.append((path, depth + 1))


def _is_run(path: Path) -> bool:
    """Whether the folder is a run's; a checkpoint has a config.json too."""
    folder = RunFolder(path)
    if folder.metrics.is_file() or folder.episodes.is_file():
        return True
    return folder.config.is_file() and folder.logs.is_dir()


def _method(run: RunData) -> str:
    if isinstance(run.summary, Summary):
        return run.summary.method
    if isinstance(run.summary, EvalSummary):
        return run.summary.benchmark
    return str(run.config.get("method") or "")


def _policy(run: RunData) -> str:
    if isinstance(run.summary, EvalSummary):
        return run.summary.policy
    return str(run.config.get("hf_checkpoint") or run.config.get("model") or "")


def _verdict(summary: AnySummary | None) -> str:
    return "" if summary is None else summary.verdict().replace("->", "→")


def _chart(chart: Chart | None) -> Json | None:
    if chart is None:
        return None
    return {"title": chart.title, "label": chart.label, "note": chart.note, "data": chart.data}


def _table(table: sections.Table) -> Json:
    return {"head": table.head, "rows": table.rows, "note": table.note}


def _line(line: sections.LedgerLine) -> list[str]:
    return [
        line.name,
        f"{line.started:,}",
        f"{line.finished:,}",
        f"{line.stopped:,}{line.stopped_by}",
        f"{line.lost:,}{line.lost_by}",
        f"{line.cancelled:,}",
        line.coverage + ("" if line.balances else ": does not balance"),
    ]
