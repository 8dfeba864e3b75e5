"""Families of interchangeable parts (noises, procedures, recipes, …), each with one registry of its members.

A member is a dataclass derived from its family's base class; its fields are its settings. Members come from this
package, from installed packages (entry points of the group `smoothcert.FAMILY`) or from a Python file of the user:

    gaussian                                 a member of this package, or of an installed one
    consistency:weight=5,copies=4            the same with settings
    my_file.py:MyLoss:weight=5               a class in a file
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from smoothcert.config import convert
from smoothcert.errors import ConfigError
from smoothcert.user_files import import_file

Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a member from outside this package was found, and the hash of its source code."""

    source: str
    sha256: str


class Family(Mapping[str, type[Member]]):
    """The members of one family by name.

    Args:
        name: the family in one word, such as "noise", for messages and for the entry points' group.
        base: the class that every member is derived from.
    """

    def __init__(self, name: str, base: type[Member]) -> None:
        self.name, self.base = name, base
        self._members: dict[str, type[Member]] = {}

    def register(self, member: type[Member]) -> type[Member]:
        """Add a class under its `name`; for use as a decorator."""
        name = member_name(member)
        if self._members.get(name, member) is not member:
            raise ValueError(f"there is a {self.name} called {name!r} already")
        self._members[name] = member
        return member

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, name: str) -> type[Member]:
        return self._members[name]

    def summaries(self) -> dict[str, str]:
        """What each registered member is, in one line, by name."""
        return {name: member_summary(member) for name, member in self._members.items()}

    def find(self, reference: str) -> type[Member]:
        """The class that a name or `file.py:Class` refers to; ConfigError if there is none."""
        if reference in self._members:
            return self._members[reference]
        file, colon, attribute = reference.rpartition(":")
        if colon and file.endswith(".py"):
            return self._checked(_attribute_of_file(file, attribute), reference)
        installed = {entry.name: entry for entry in entry_points(group=f"smoothcert.{self.name}")}
        if reference in installed:
            return self._checked(_loaded(installed[reference]), reference)
        known = [*self._members, *installed]
        near = _near(reference, known)
        raise ConfigError(
            f"Expected a {self.name}, one of {', '.join(known)} or file.py:Class, got {reference!r}.{near}"
        )

    def _checked(self, found: object, reference: str) -> type[Member]:
        if not isinstance(found, type) or not issubclass(found, self.base):
            raise ConfigError(f"Expected {reference} to be a subclass of {self.base.__name__}, got {found!r}.")
        return found

    def parse(self, text: str) -> Member:
        """The member that a text names, with its settings: "planned:effort=full"."""
        reference, given = split_settings(text)
        member = self.find(reference)
        return self.make(member, dict(_assignments(given, f"{self.name} {reference}")))

    def text(self, member: Member) -> str:
        """The text that `parse` reads `member` from, with the settings that differ from their defaults."""
        changed = [field for field in settings_of(member) if getattr(member, field.name) != field.default]
        settings = ",".join(f"{field.name}={str(getattr(member, field.name)).lower()}" for field in changed)
        reference = self.reference(type(member))
        return f"{reference}:{settings}" if settings else reference

    def reference(self, member: type[Member]) -> str:
        """The text by which `find` finds a class."""
        name = member_name(member)
        found = origin(member)
        if found is None or self._members.get(name) is member:
            return name
        return found.source

    def record(self, member: Member) -> dict[str, Any]:
        """A member as plain values: its name, its settings and, from outside this package, its origin."""
        values: dict[str, Any] = {"name": member_name(type(member))}
        values.update((field.name, getattr(member, field.name)) for field in settings_of(member))
        found = origin(type(member))
        return values if found is None else {**values, "origin": asdict(found)}

    def make(self, member: type[Member], settings: Mapping[str, str]) -> Member:
        """A member from settings as text; ConfigError naming the one that is unknown, wrong or not given."""
        hints = get_type_hints(member)
        known = {field.name: field for field in settings_of(member)}
        label = f"{self.name} {member_name(member)}"
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in known:
                expected = ", ".join(f"{one}=…" for one in known) or "no settings"
                raise ConfigError(
                    f"Expected {expected} of the {label}, got '{name}={value}'.{_near(name, list(known))}"
                )
            values[name] = _converted(label, name, value, hints[name])
        missing = [name for name, field in known.items() if is_required(field) and name not in values]
        if missing:
            raise ConfigError(f"The {label} needs {', '.join(missing)}: write {member_name(member)}:{missing[0]}=….")
        return member(**values)


def _near(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def split_settings(text: str) -> tuple[str, str]:
    """The reference to a member, and what follows it: "file.py:Class:a=1" is ("file.py:Class", "a=1")."""
    parts = text.split(":")
    length = 2 if parts[0].endswith(".py") and len(parts) > 1 else 1
    return ":".join(parts[:length]), ":".join(parts[length:])


def _assignments(text: str, label: str) -> Iterator[tuple[str, str]]:
    """The settings in "a=1,b=2"."""
    seen = set()
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_")
        if not equals:
            raise ConfigError(f"Expected settings of the {label} as name=value, got {part!r}.")
        if name in seen:
            raise ConfigError(f"`{name}` of the {label} is given twice.")
        seen.add(name)
        yield name, value


def _converted(label: str, name: str, text: str, hint: Any) -> Any:
    """A setting's text as a value of its type."""
    candidates: list[Any] = [{"true": True, "false": False, "none": None}.get(text.lower(), text), text]
    for kind in (int, float):
        try:
            candidates.append(kind(text))
        except ValueError:
            continue
    for candidate in candidates:
        try:
            return convert(candidate, hint)
        except TypeError:
            continue
    raise ConfigError(f"{text!r} is no value for `{name}` of the {label}.")


def settings_of(member: type[Any] | Any) -> tuple[Field[Any], ...]:
    """The fields of a member that can be set."""
    return tuple(field for field in fields(member) if field.init)


def is_required(field: Field[Any]) -> bool:
    """Whether a setting has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def member_name(member: type[Any]) -> str:
    """The name that a class goes by; by default the class's own."""
    return str(getattr(member, "name", member.__name__))


def member_summary(member: type[Any]) -> str:
    """What a member is, in one line: its `summary`, else the first line of its docstring."""
    summary = getattr(member, "summary", None)
    return str(summary) if summary else (inspect.getdoc(member) or "").partition("\n")[0]


def origin(member: type[Any]) -> Origin | None:
    """Where a class from outside this package comes from; None for one of this package."""
    if member.__module__.partition(".")[0] == __name__.partition(".")[0] and not _is_users(member):
        return None
    path = inspect.getsourcefile(member)
    if path is None:
        raise ConfigError(f"Expected {member.__qualname__} to come from a file: its source is recorded with each run.")
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return Origin(f"{path}:{member.__qualname__}", digest)


def _is_users(member: type[Any]) -> bool:
    return member.__module__.startswith("smoothcert.user_files.")


def _attribute_of_file(file: str, name: str) -> object:
    try:
        module = import_file(Path(file))
    except FileNotFoundError:
        raise ConfigError(f"Expected a Python file {file}, there is none.") from None
    except Exception as error:
        raise ConfigError(f"Cannot import {file}: {type(error).__name__}: {error}.") from error
    if not hasattr(module, name):
        raise ConfigError(f"Expected a class {name!r} in {file}, which has no such name.")
    return getattr(module, name)


def _loaded(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except Exception as error:
        raise ConfigError(f"Cannot import {entry.value}: {type(error).__name__}: {error}.") from error
