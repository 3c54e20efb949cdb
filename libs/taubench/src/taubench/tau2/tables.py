"""The databases of an episode: copy-on-write over one read-only snapshot per process.

Upstream validates and hashes the whole database for every episode and every evaluation. Here an
episode of airline or retail owns only the records it touched: a table makes its own model of a
record when the record is first looked up. Two databases are equal exactly if their touched records
have the same text. Telecom's and mock's databases are small and made anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from functools import cache
from types import MappingProxyType
from typing import Any, get_args

from taubench.tau2.source import SideFiles, data_domain, side_files
from taubench.tau2.standins import dump_json, merge_into_model

COPY_ON_WRITE = frozenset({"airline", "retail"})

Changes = Mapping[tuple[str, str], str]
"""Text of every record that differs from the snapshot, by (table, key)."""


def text_of(record: Any) -> str:
    """The text by which upstream compares a model."""
    return dump_json(record.model_dump(warnings=False))


class Snapshot:
    """A domain's database as every episode finds it: tables of records. Read only.

    Attributes:
        tables: Validated records by key, by table.
    """

    def __init__(self, files: SideFiles) -> None:
        self.files = files
        whole = files.model.model_validate(files.data)
        self.tables: Mapping[str, Mapping[str, Any]] = {
            name: getattr(whole, name) for name in files.model.model_fields
        }
        self._models = {
            name: get_args(field.annotation)[1] for name, field in files.model.model_fields.items()
        }
        self._texts: dict[tuple[str, str], str] = {}

    def fresh(self, table: str, key: str) -> Any:
        """A model of a record that belongs to the caller. KeyError if there is none."""
        return self._models[table].model_validate(self.files.data[table][key])

    def text(self, table: str, key: str) -> str | None:
        """Text of a record, None if there is none of that key."""
        text = self._texts.get((table, key))
        if text is None and key in self.tables[table]:
            text = self._texts[table, key] = text_of(self.tables[table][key])
        return text


class CowTable(MutableMapping[str, Any]):
    """A table whose records are made the episode's own when they are first looked up by key.

    Iterating over `values()` and `items()` gives the snapshot's records where the episode has none:
    to be read only. Records can be added or replaced, not deleted; no tool deletes one.
    """

    __slots__ = ("_snapshot", "_name", "own")

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self._snapshot, self._name = snapshot, name
        self.own: dict[str, Any] = {}

    @property
    def _base(self) -> Mapping[str, Any]:
        return self._snapshot.tables[self._name]

    def __getitem__(self, key: str) -> Any:
        record = self.own.get(key)
        if record is None:
            record = self.own[key] = self._snapshot.fresh(self._name, key)
        return record

    def __setitem__(self, key: str, record: Any) -> None:
        self.own[key] = record

    def __delitem__(self, key: str) -> None:
        raise NotImplementedError("no tool of τ²-bench deletes a record")

    def __contains__(self, key: object) -> bool:
        return key in self.own or key in self._base

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        for key in self.own:
            if key not in self._base:
                yield key

    def __len__(self) -> int:
        return len(self._base) + sum(key not in self._base for key in self.own)

    def _merged(self) -> Mapping[str, Any]:
        return MappingProxyType({**self._base, **self.own}) if self.own else self._base

    def items(self) -> ItemsView[str, Any]:
        return self._merged().items()

    def values(self) -> ValuesView[Any]:
        return self._merged().values()

    def changes(self) -> Iterator[tuple[str, str]]:
        """Key and text of every record that differs from the snapshot's."""
        for key, record in self.own.items():
            if (text := text_of(record)) != self._snapshot.text(self._name, key):
                yield key, text


@cache
def snapshot(domain: str) -> Snapshot:
    """The one snapshot of airline or retail in this process."""
    return Snapshot(side_files(domain)[0])


class State:
    """The database of one side of one episode.

    Attributes:
        db: What a toolkit takes.
    """

    def __init__(self, domain: str, files: SideFiles, update: Mapping[str, Any] | None) -> None:
        """
        Args:
            domain: Whose.
            files: The side's.
            update: Merged into it before anything else.
        """
        self._snapshot = None
        if data_domain(domain) in COPY_ON_WRITE and not update:
            self._snapshot = snapshot(data_domain(domain))
            tables = {name: CowTable(self._snapshot, name) for name in self._snapshot.tables}
            self.db = files.model.model_construct(**tables)
            return
        self.db = files.model.model_validate(files.data)
        if update:
            self.db = merge_into_model(self.db, update)

    def changes(self) -> Changes:
        """What was changed; equal for two states exactly if upstream's hashes are.

        A database that is not copied on write is one record without a key.
        """
        if self._snapshot is None:
            return {("", ""): text_of(self.db)}
        return {
            (name, key): text
            for name in self._snapshot.tables
            for key, text in getattr(self.db, name).changes()
        }

    def sha256(self) -> str:
        """Upstream's hash of the whole database, in hex. Up to 0.1 s."""
        if self._snapshot is None:
            return hashlib.sha256(text_of(self.db).encode()).hexdigest()
        dump = {
            name: {
                key: record.model_dump(warnings=False)
                for key, record in getattr(self.db, name).items()
            }
            for name in self._snapshot.tables
        }
        return hashlib.sha256(dump_json(dump).encode()).hexdigest()
