"""A job's log as it grows, and what of it the run folder needs.

The hooks write metrics.jsonl themselves. Where they can't reach the launcher's folder they repeat
the rows in the log (`turnwise.run.relay`), and from there they get into the folder here. Of
everything else in the log only the last exception is noted, which says why a job failed, and what
ended an engine: whoever asked it knows no more than that it is gone. A job prints what models
wrote: of its escape sequences a terminal gets colours alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TextIO

from turnwise.printable import printable
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import Row
from turnwise.run.relay import relayed_row

# Ray puts the name of an actor and its process before what it prints.
_PREFIX = re.compile(r"(?:\x1b\[[\d;]*m)*(\([^()]*pid=[^()]*\))(?:\x1b\[[\d;]*m)*\s?")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
# What may become a colour with the next piece.
_BEGUN = re.compile(r"\x1b(?:\[[\d;]{0,20})?\Z")
_SHOWN_AS_IS = re.compile(r"(\x1b\[[\d;]*m|\r)")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:\([\w.]+\))?(?::.*)?$")
_HEADING = "Traceback (most recent call last)"
# What SGLang writes before the traceback that ends a server.
_ENDING = "Scheduler hit an exception: "
# Its message goes on with the traceback of the process that failed, which has the cause last.
_RELAYED = "ray.exceptions.RayTaskError"


class LastError:
    """The exception that ended a job, found in its log.

    The job's own process counts before its workers: theirs may come from being ended. What ended an
    SGLang server is told beside it.
    """

    def __init__(self) -> None:
        # By process, whether its traceback is an SGLang server's end.
        self._open: dict[str, bool] = {}
        self._own = self._workers = self._engine = ""

    def __str__(self) -> str:
        said = self._own or self._workers
        if self._engine in ("", said):
            return said
        return f"{said}; an SGLang server had ended with {self._engine}"

    def take(self, line: str) -> None:
        """Takes the next line."""
        prefix = _PREFIX.match(line)
        process = prefix[1] if prefix else ""
        text = _COLOUR.sub("", line[prefix.end() if prefix else 0 :]).rstrip()
        _, ending, after = text.partition(_ENDING)
        if text.startswith(_HEADING) or after.startswith(_HEADING):
            self._open[process] = bool(ending)
            return
        if process not in self._open or not text or text[0].isspace():
            return
        if not _EXCEPTION.match(text):
            del self._open[process]
            return
        text = _REPEATED.sub("", text)
        if self._open[process]:
            # The first one: others may end because of it.
            self._engine = self._engine or text
        if not text.startswith(_RELAYED):
            del self._open[process]
        if process:
            self._workers = text
        else:
            self._own = text


class Follower:
    """Takes a job's log piece by piece; keeps it, shows it and picks out relayed rows.

    Pieces may begin anywhere. What the run folder has of the log already is left out, so a log may
    be followed again, after a lost connection or by another process.

    Attributes:
        error: The last exception that the log shows.
    """

    def __init__(self, run_dir: Path, job: str, out: TextIO | None) -> None:
        """
        Args:
            run_dir: The run folder; the log goes to `logs/JOB.log`, relayed rows to
                `metrics.jsonl`.
            job: The job's id.
            out: Where the log is shown, if anywhere, with control characters as their escapes but
                for colours and what redraws a line.
        """
        path = run_dir / "logs" / f"{job}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        self._log = path.open("a", encoding="utf-8", errors="replace", newline="")
        self._folder = RunFolder(run_dir)
        self._out = out
        self._begun = ""
        self._line = kept.rpartition("\n")[2]
        self._seen = self._skip = len(kept)
        self.error = LastError()
        self._relayed = False
        for line in kept.split("\n")[:-1]:
            self.error.take(line)
            self._relayed = self._relayed or relayed_row(line) is not None

    def restart(self) -> None:
        """The next piece is again the log's first one."""
        self._skip = self._seen

    def feed(self, piece: str) -> None:
        """Takes the next piece.

        Raises:
            RunError: the disk does not take a relayed row.
        """
        if self._skip:
            skipped = min(self._skip, len(piece))
            self._skip -= skipped
            piece = piece[skipped:]
        self._seen += len(piece)
        self._log.write(piece)
        self._log.flush()
        self._show(piece)
        *lines, self._line = (self._line + piece).split("\n")
        for line in lines:
            self.error.take(line)
            row = relayed_row(line)
            if row is not None:
                self._keep(row)

    def close(self) -> None:
        """Closes the file. An unfinished last line is taken when the rest of it comes."""
        self._log.close()

    def _show(self, piece: str) -> None:
        if self._out is None:
            return
        text = self._begun + piece
        begun = _BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        parts = _SHOWN_AS_IS.split(text.removesuffix(self._begun))
        parts[::2] = map(printable, parts[::2])
        self._out.write("".join(parts))
        self._out.flush()

    def _keep(self, row: Row) -> None:
        step = row.get("step")
        # A job that goes on where an earlier one was makes later steps anew.
        if not self._relayed and isinstance(step, int) and self._folder.metrics.exists():
            self._folder.cut_after(step - 1)
        self._relayed = True
        self._folder.append_metrics(row)
