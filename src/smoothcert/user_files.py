"""A user's Python files as modules, under names that nothing else in the process has.

A file is imported as `smoothcert.user_files.NAME`, where NAME spells the file's path. So `json.py` does not
replace the standard module, and no folder is added to `sys.path`. Classes from the file can be pickled: another process
finds the file again by the module's name.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_PREFIX = f"{__name__}."


def import_file(path: Path) -> ModuleType:
    """Run a Python file, again if it was imported before, and return it as a module."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = _PREFIX + os.fsencode(os.path.abspath(path)).hex()
    spec = _Finder().find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickles look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


class _Finder:
    """Finds a user's file by the name of its module."""

    def find_spec(self, name: str, _target: Any = None) -> ModuleSpec | None:
        """How to import the module `name`; None if the name does not spell the path of a file."""
        try:
            path = os.fsdecode(bytes.fromhex(name.removeprefix(_PREFIX)))
        except ValueError:
            return None
        if not path.endswith(".py") or not os.path.isfile(path):
            return None
        return importlib.util.spec_from_file_location(name, path)


# What makes this module a package whose submodules are found by the finder above. The entry must be an absolute path,
# since Python drops others when it invalidates its caches; there is no such folder.
__path__ = [f"{__file__}.modules"]
sys.path_importer_cache[__path__[0]] = _Finder()  # type: ignore[assignment]
