"""Where commands print what is coloured or wrapped."""

from __future__ import annotations

from rich.console import Console


class OutputConsole(Console):
    """A console whose reader may leave: rich's own ends the program with code 1 then, this one
    leaves it to `turnwise.command.run_command`."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704
