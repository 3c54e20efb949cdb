"""Copy-on-write tables over one read-only snapshot per process and domain.

Upstream parses the whole database for every episode and compares two databases by hashing the
text of all of it. Here an episode owns only the records it touched, and two databases are equal
exactly if their changed records have the same text.

Text, not `==`: upstream hashes `str()` of nested tuples, in which 1, 1.0 and True differ.
"""

from __future__ import annotations

import marshal
from bisect import bisect_left
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from hashlib import sha256
from typing import Any

from taubench.source import DomainFiles, Record, domain_files

# No tool writes these, so every episode reads the snapshot's own. A test hashes the snapshot
# after all other tests' kinds of trajectories.
SHARED_TABLES = frozenset({"products", "flights"})

State = Mapping[str, Mapping[str, Record]]
Changes = Mapping[tuple[str, str], str]
"""Text of every record that differs from the snapshot, by (table, key)."""


def hashable(item: Any) -> Any:
    """Upstream's canonical form: dicts as tuples of pairs sorted by key, lists as tuples."""
    if isinstance(item, dict):
        return tuple([(key, hashable(value)) for key, value in sorted(item.items())])
    if isinstance(item, list):
        return tuple([hashable(element) for element in item])
    return item


def render(record: Any) -> str:
    """The text by which a record, or a value in it, is compared."""
    return str(hashable(record))


class CowTable(Mapping[str, Record]):
    """A table whose records are copied when they are first looked up by key.

    `[]` gives a private copy that may be changed in place. Iterating over `values()` and
    `items()` gives the snapshot's own records where the episode has none: to be read only.
    Records can be added or replaced, not deleted; no tool deletes one.
    """

    __slots__ = ("_base", "own")

    def __init__(self, base: Mapping[str, Record]) -> None:
        self._base = base
        self.own: dict[str, Record] = {}

    def __getitem__(self, key: str) -> Record:
        record = self.own.get(key)
        if record is None:
            record = self.own[key] = marshal.loads(marshal.dumps(self._base[key]))
        return record

    def __setitem__(self, key: str, record: Record) -> None:
        self.own[key] = record

    def __contains__(self, key: object) -> bool:
        return key in self.own or key in self._base

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        for key in self.own:
            if key not in self._base:
                yield key

    def __len__(self) -> int:
        return len(self._base) + sum(key not in self._base for key in self.own)

    def _merged(self) -> dict[str, Record]:
        return {**self._base, **self.own}

    def items(self) -> ItemsView[str, Record]:
        return self._merged().items()

    def values(self) -> ValuesView[Record]:
        return self._merged().values()


class Snapshot:
    """The database of a domain as every episode finds it. Read only."""

    def __init__(self, files: DomainFiles) -> None:
        self.files = files
        self._texts: dict[tuple[str, str], str] = {}
        self._rendered: dict[str, tuple[list[str], list[int], bytes]] = {}

    def new_state(self) -> State:
        """Tables for one episode."""
        return {
            name: table if name in SHARED_TABLES else CowTable(table)
            for name, table in self.files.tables.items()
        }

    def text(self, table: str, key: str) -> str | None:
        """Text of the snapshot's record, None if it has none of that key."""
        text = self._texts.get((table, key))
        if text is None and key in self.files.tables[table]:
            text = self._texts[table, key] = render(self.files.tables[table][key])
        return text

    def changes(self, state: State) -> Changes:
        """What `state` has changed; equal for two states exactly if upstream's hashes are."""
        return {
            (name, key): text
            for name, table in state.items()
            if isinstance(table, CowTable)
            for key, record in table.own.items()
            if (text := render(record)) != self.text(name, key)
        }

    def state_hash(self, changes: Changes) -> str:
        """SHA-256 in hex of the whole database with `changes`, as upstream computes it."""
        digest = sha256(b"(")
        for position, name in enumerate(sorted(self.files.tables)):
            digest.update(f"{', ' * bool(position)}({name!r}, (".encode())
            mine = {key: text for (table, key), text in changes.items() if table == name}
            self._hash_table(digest, name, mine)
            digest.update(b"))")
        digest.update(b")")
        return digest.hexdigest()

    def _hash_table(self, digest: Any, name: str, changed: Mapping[str, str]) -> None:
        keys, offsets, text = self._table_text(name)
        pieces: list[memoryview | bytes] = []
        position = 0
        for key in sorted(changed):
            found = bisect_left(keys, key)
            pieces.append(memoryview(text)[offsets[position] : offsets[found]])
            pieces.append(f"({key!r}, {changed[key]}), ".encode())
            position = found + (found < len(keys) and keys[found] == key)
        pieces.append(memoryview(text)[offsets[position] :])
        last = next(index for index in reversed(range(len(pieces))) if pieces[index])
        for piece in pieces[:last]:
            digest.update(piece)
        digest.update(pieces[last][:-2])

    def _table_text(self, name: str) -> tuple[list[str], list[int], bytes]:
        """Sorted keys, where each record begins (and the end), and the text of the table.

        Every record is followed by a comma and a space; the last one's are not upstream's.
        Tables have at least 50 records, so the comma of a one-element tuple never occurs.
        """
        if name not in self._rendered:
            table = self.files.tables[name]
            keys = sorted(table)
            offsets, parts = [0], []
            for key in keys:
                parts.append(f"({key!r}, {render(table[key])}), ".encode())
                offsets.append(offsets[-1] + len(parts[-1]))
            self._rendered[name] = keys, offsets, b"".join(parts)
        return self._rendered[name]


_snapshots: dict[str, Snapshot] = {}


def snapshot(domain: str) -> Snapshot:
    """The one snapshot of the domain in this process.

    Raises:
        ValueError: unknown domain.
        SourceError: tau-trait is missing or not version 0.1.1.
    """
    if domain not in _snapshots:
        _snapshots.setdefault(domain, Snapshot(domain_files(domain)))
    return _snapshots[domain]
