"""Empty modules in place of sglang and its router, for what is imported and never called."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


def _empty_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of sglang whose every name is a class without content."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name.split(".")[0] in ("sglang", "sglang_router"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__getattr__ = _empty_class  # type: ignore[method-assign]
        return module

    def exec_module(self, module: Any) -> None:
        pass


sys.meta_path.append(_Empty())
