"""Run folders to report on, and what a browser would see of the report."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from turnwise.run.folder import RunFolder
from turnwise.run.metrics import as_row
from turnwise.run.summary import Summary, write_summary
from turnwise.run.traces import trace_row
from turnwise.trials import Estimate

from .episodes import TOKENIZER, episode
from .rows import eval_row, train_row


@dataclass
class Page(HTMLParser):
    """Elements, text outside of scripts, and scripts."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: list[tuple[dict[str, str | None], str]] = field(default_factory=list)
    text: str = ""
    headings: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def read(cls, path: Path) -> Page:
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag in ("td", "th", "dt", "dd"):
            self.text += " "
        if tag in ("h1", "h2"):
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif "style" not in self._open:
            self.text += data
            if "h1" in self._open or "h2" in self._open:
                self.headings[-1] += data
            if "thead" in self._open and data.strip():
                self.heads.append(data)

    @property
    def episodes(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.scripts[0][1])
        return rows

    @property
    def charts(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.scripts[1][1])
        return rows


def outline(shown: dict[str, Any]) -> list[str]:
    """An episode as lines, trained text with a star."""
    lines = [f"{shown['when']} / {shown['title']}"]
    for blocks in shown["segments"]:
        for block in blocks:
            lines.append(block["name"])
            for chunk in block["chunks"]:
                star = "*" if chunk["trained"] else ""
                lines.append(f"  {chunk['author']}{star}: {''.join(chunk['texts'])!r}")
    return lines


def summary(**changes: Any) -> Summary:
    fields: dict[str, Any] = {
        "method": "tau",
        "before": Estimate(0.46, 0.04, 32, 128),
        "after": Estimate(0.66, 0.04, 32, 128),
        "difference": Estimate(0.2, 0.04, 32, 256),
        "baselines": {"doing nothing": 0.0},
        "trials": 4,
        "steps": 3,
        "seed": 7,
        "services": {"user": "offline"},
        "coverage": 1.0,
        "claim": ("Held-out tasks share no order with training tasks.",),
    }
    return Summary(**{**fields, **changes})


def run_folder(path: Path, steps: int = 3, *, ended: bool = True) -> RunFolder:
    folder = RunFolder.create(path / "tau-run", "tau", {"seed": 7, "num_rollout": steps})
    folder.append_metrics(as_row(eval_row()))
    add_trace(folder, step=0, kind="eval")
    for step in range(1, steps + 1):
        folder.append_metrics(as_row(train_row(step=step, reward_mean=0.5 + 0.1 * (step % 4))))
        add_trace(folder, step=step, kind="train")
    if ended:
        folder.append_metrics(as_row(eval_row(step=steps, reward_mean=0.66)))
        add_trace(folder, step=steps, kind="eval")
        write_summary(folder, summary(steps=steps))
    return folder


def add_trace(folder: RunFolder, *, step: int, kind: str, why: str = "best", **how: Any) -> None:
    folder.append_episode(trace_row(episode(**how), TOKENIZER, step=step, kind=kind, why=why))
