"""Which interpreter runs snippets, and which files it needs.

It is the one that runs Turnwise, without its site packages: a snippet sees the standard library
and the packages it was promised, not the code, the data and the answers of the program that
trains. Under a virtual environment, a PEX or a build tool's sandbox these lie in many places,
partly behind symbolic links, so they are found by importing the packages once and looking.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob

SCOUT_S = 120.0
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Otherwise each thread reserves 64 MiB or more of the address space that a snippet may take.
    "MALLOC_ARENA_MAX": "2",
}
FLAGS = ("-I", "-S", "-B", "-X", "utf8")

_MODULES = (
    "quota",
    "landlock",
    "syscalls",
    "seccomp",
    "confine",
    "tree",
    "snippet",
    "supervisor",
    "zygote",
)
_PACKAGE = "sandbox.child"
_OTHERS = ("site-packages", "dist-packages")
_SYSTEM = (
    "/lib64",
    "/usr/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/usr/lib/locale",
)

_SCOUT = """
import glob, importlib, importlib.util, json, os, sys
names = json.loads(sys.argv[1]); entries = json.loads(sys.argv[2])
builtin = set(sys.path); sys.path += [e for e in entries if e not in builtin]
missing = {}
for name in names:
    try:
        importlib.import_module(name)
    except Exception as error:
        missing[name] = f"{type(error).__name__}: {error}"
files = set()
used = set()
tops = set()
for name, module in sorted(sys.modules.items()):
    spec = getattr(module, "__spec__", None)
    if "." in name or spec is None or name in sys.builtin_module_names:
        continue
    origin = getattr(spec, "origin", None)
    place = [*(spec.submodule_search_locations or ())] or ([origin] if origin else [])
    for path in place:
        entry = os.path.dirname(path)
        if os.path.exists(path) and entry not in builtin:
            used.add(entry)
            tops.add(name)
            files.add(path)
            libs = os.path.join(entry, name + ".libs")
            if os.path.isdir(libs):
                files.add(libs)
with open("/proc/self/maps") as maps:
    mapped = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
files |= {path for path in mapped if os.path.isfile(path)}
files |= {path for path in glob.glob(sys.base_prefix + "/lib/lib*.so*") if os.path.isfile(path)}
print(json.dumps({"missing": missing, "files": sorted(files),
    "stdlib": os.path.dirname(os.__file__), "path": [e for e in sys.path if e in used],
    "importable": sorted(tops)}))
"""

BOOT = f"""
import json, socket, sys, types
control = socket.socket(fileno=0)
settings = json.loads(control.recv(1 << 20))
package = ""
for part in {_PACKAGE!r}.split("."):
    package = (package + "." + part).lstrip(".")
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = []
for name, source in settings.pop("modules"):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main(control, settings)
"""
"""First program of the interpreter: takes our modules and its settings from descriptor 0."""


class SandboxUnavailable(RuntimeError):
    """No sandbox can be had as configured; the message says why and what to change."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The interpreter and all that a snippet may read.

    Attributes:
        executable: Path, without symbolic links.
        stdlib: Folder of the standard library, which may hold other packages as well.
        path: Folders in which the promised packages are found.
        importable: Names that are imported from there: the promised packages and what they need.
        files: Files and folders of the packages and of shared libraries.
        packages: The promised packages that are here.
        missing: Promised packages that can't be imported, with the reason.
    """

    executable: str
    stdlib: str
    path: tuple[str, ...]
    importable: tuple[str, ...]
    files: tuple[str, ...]
    packages: tuple[str, ...]
    missing: dict[str, str]

    def read(self) -> list[str]:
        """What a snippet may read: no packages but the promised ones."""
        library = [self.stdlib]
        if self.elsewhere():
            names = set(os.listdir(self.stdlib)) - set(_OTHERS)
            library = [os.path.join(self.stdlib, name) for name in sorted(names)]
        return [*library, *self.system(), *self.files, *_resolved(self.files)]

    def elsewhere(self) -> list[str]:
        """Folders of other packages inside of the standard library's."""
        inner = (os.path.join(self.stdlib, name) for name in _OTHERS)
        return [path for path in inner if os.path.isdir(path)]

    def listed(self) -> list[str]:
        """Folders in which the import system looks for names."""
        return [self.stdlib, *self.path]

    def system(self) -> list[str]:
        """Shared libraries, locale and time zones, as far as they are here."""
        libraries = glob("/lib/*-linux-*") + glob("/usr/lib/*-linux-*")
        return [path for path in (*libraries, *_SYSTEM) if os.path.exists(path)]


def modules() -> list[tuple[str, str]]:
    """Names and sources of what runs in the interpreter, each after what it imports."""
    folder = importlib.resources.files(_PACKAGE)
    return [
        (f"{_PACKAGE}.{name}", folder.joinpath(f"{name}.py").read_text("utf-8"))
        for name in _MODULES
    ]


_known: dict[tuple[str, ...], Interpreter] = {}


async def find(packages: Sequence[str]) -> Interpreter:
    """The interpreter for snippets that import `packages`; looked for once per process.

    Raises:
        SandboxUnavailable: when the interpreter does not run.
    """
    key = tuple(packages)
    if key not in _known:
        _known[key] = await _scout(key)
    return _known[key]


async def _scout(packages: tuple[str, ...]) -> Interpreter:
    executable = os.path.realpath(sys.executable)
    entries = [os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry)]
    process = await asyncio.create_subprocess_exec(
        *(executable, *FLAGS, "-c", _SCOUT, json.dumps(packages), json.dumps(entries)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=ENVIRONMENT,
        cwd="/",
    )
    try:
        async with asyncio.timeout(SCOUT_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise SandboxUnavailable(
            f"{executable} did not import {', '.join(packages)} within {SCOUT_S:g} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise SandboxUnavailable(
            f"{executable} ended with {process.returncode}: {err.decode(errors='replace')[-500:]}"
        )
    found = json.loads(out.splitlines()[-1])
    return Interpreter(
        executable=executable,
        stdlib=found["stdlib"],
        path=tuple(found["path"]),
        importable=tuple(found["importable"]),
        files=tuple(found["files"]),
        packages=tuple(name for name in packages if name not in found["missing"]),
        missing=found["missing"],
    )


def _resolved(paths: Sequence[str]) -> list[str]:
    return [real for path in paths if (real := os.path.realpath(path)) != path]
