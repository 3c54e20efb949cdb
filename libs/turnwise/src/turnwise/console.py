"""Where commands print what is coloured or wrapped, and what came from elsewhere."""

from __future__ import annotations

from rich.console import Console

from turnwise.printable import printable


def tell(text: str) -> None:
    """Prints text in which names of tasks, models or files stand: no terminal obeys them."""
    print(printable(text))


class OutputConsole(Console):
    """A console whose reader may leave: rich's own ends the program with code 1 then, this one
    leaves it to `turnwise.command.run_command`."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704
