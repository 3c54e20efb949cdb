"""What the services of an interrupted episode have answered, so that it can go on where it was.

The episode loop is run again from its start. A call that was recorded is answered from the record,
and must ask what was asked then; after the record the real service takes over. Calls of one name
may be under way at once: each has its place in the order in which they were made, and a place whose
call was broken off is asked for again. Parts of an episode that run side by side, so that their
calls come in no fixed order, ask under names of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from turnwise.episode import Boundary, BoundaryError

CALLS = "service_calls"
"""In an episode's `info`: what `Replay.calls` was at its end."""


class Replay:
    """Answers of services by the name of who was asked."""

    def __init__(self, calls: Mapping[str, Iterable[Mapping[str, Any]]] | None = None) -> None:
        """
        Args:
            calls: What `calls` of an earlier run of the episode was.
        """
        self._calls = {
            name: {one["place"]: dict(one) for one in made} for name, made in (calls or {}).items()
        }
        self._recorded = {name: frozenset(made) for name, made in self._calls.items()}
        self._made: Counter[str] = Counter()

    @property
    def calls(self) -> dict[str, list[dict[str, Any]]]:
        """Of each name `place`, `asked` and `answer` of each call, in order. JSON-able."""
        return {name: [made[place] for place in sorted(made)] for name, made in self._calls.items()}

    def recorded(self, name: str) -> list[dict[str, Any]]:
        """The calls of an earlier run: what a service with a memory is told before it goes on."""
        made, places = self._calls.get(name, {}), self._recorded.get(name, frozenset())
        return [made[place] for place in sorted(places)]

    async def call(self, name: str, asked: Any, make: Callable[[], Awaitable[Any]]) -> Any:
        """The recorded answer, else the one that `make` gives, which is recorded.

        Args:
            name: Of the service, within the episode: `user`, `model/executor`.
            asked: JSON-able: what the answer depends on.
            make: Asks the service for a JSON-able answer.

        Raises:
            BoundaryError: at `Boundary.ENVIRONMENT`: something else is asked than was recorded.
        """
        place = self._made[name]
        self._made[name] += 1
        if place not in self._recorded.get(name, ()):
            answer = await make()
            made = self._calls.setdefault(name, {})
            made[place] = {"place": place, "asked": asked, "answer": answer}
            return answer
        kept = self._calls[name][place]
        if kept["asked"] != asked:
            raise BoundaryError(
                Boundary.ENVIRONMENT,
                f"call {place} of {name} can't be replayed: asked is {str(asked)[:80]!r},"
                f" recorded is {str(kept['asked'])[:80]!r}",
            )
        return kept["answer"]
