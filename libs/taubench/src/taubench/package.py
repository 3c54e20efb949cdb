"""An installed package whose files are read, and some of whose modules run, without importing it.

Its own import would bring model clients, servers and credentials with it. A module runs in a
namespace of its own under a private `__import__`, which gives stand-ins, runs further modules of
the package that are wanted, and refuses its others. `sys.modules` is not touched.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast


class SourceError(RuntimeError):
    """A package with a benchmark's files is missing, of another version, or not as expected."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """
    Attributes:
        name, version: Which distribution.
        module: Its package, by the name that it is imported by.
    """

    name: str
    version: str
    module: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def _any_name(name: str) -> str:
    return name


class Package:
    """The files of a distribution.

    Attributes:
        root: The package's folder.
    """

    def __init__(
        self,
        distribution: Distribution,
        *,
        stand_ins: Callable[[str], Mapping[str, SimpleNamespace]] = lambda root: {},
        runs: Callable[[str], bool] = lambda name: False,
        known_as: Callable[[str], str] = _any_name,
    ) -> None:
        """
        Args:
            distribution: Which.
            stand_ins: For the package's folder, namespaces by the name of the module that they
                replace, of this package or any other.
            runs: Whether a module of the package may run.
            known_as: The `__name__` of a module: Python puts it into some error messages.

        Raises:
            SourceError: it is not installed, or of another version.
        """
        self._distribution = distribution
        wanted = f"{distribution.name}=={distribution.version}"
        spec = importlib.util.find_spec(distribution.module)
        if spec is None or not spec.submodule_search_locations:
            raise SourceError(f"{distribution.name} is not installed: install {wanted}")
        try:
            found = importlib.metadata.version(distribution.name)
        except importlib.metadata.PackageNotFoundError:
            found = "without metadata"
        if found != distribution.version:
            raise SourceError(f"{distribution.name} {found} is installed: install {wanted}")
        self.root = spec.submodule_search_locations[0]
        self._loader = cast(importlib.abc.ResourceLoader, spec.loader)
        self._modules = dict(stand_ins(self.root))
        self._runs, self._known_as = runs, known_as
        self._builtins = {**vars(builtins), "__import__": self._import}

    def read(self, *parts: str) -> bytes:
        """A file of the package. SourceError if there is none."""
        try:
            return self._loader.get_data(os.path.join(self.root, *parts))
        except OSError as error:
            raise SourceError(f"{self._distribution} lacks {'/'.join(parts)}: {error}") from error

    def run(self, name: str) -> SimpleNamespace:
        """Runs the module once and returns its namespace. SourceError if there is none."""
        if name not in self._modules:
            *folders, _ = name.split(".")[1:]
            spec = importlib.machinery.PathFinder.find_spec(
                name, [os.path.join(self.root, *folders)]
            )
            if spec is None or spec.loader is None:
                raise SourceError(f"{self._distribution} lacks the module {name}")
            code = cast(importlib.abc.InspectLoader, spec.loader).get_code(name)
            assert code is not None
            namespace = {
                "__name__": self._known_as(name),
                "__package__": name if spec.submodule_search_locations else name.rpartition(".")[0],
                "__builtins__": self._builtins,
            }
            exec(code, namespace)
            self._modules[name] = SimpleNamespace(**namespace)
        return self._modules[name]

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        if level:
            assert globals is not None
            name = importlib.util.resolve_name("." * level + name, str(globals["__package__"]))
        if name in self._modules:
            return self._modules[name]
        if name.partition(".")[0] != self._distribution.module:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if not self._runs(name) or not fromlist:
            raise ImportError(
                f"{name} is not among the modules that turnwise reads of {self._distribution.name}"
            )
        return self.run(name)
