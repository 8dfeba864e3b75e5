"""Folders of images: a subfolder per class, or all in one folder with a label file or without labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from smoothcert.data.image_files import ImageFiles
from smoothcert.data.images import SUFFIXES, Preparation
from smoothcert.data.label_files import CUSTOMARY_NAMES, find_label_file, label_files
from smoothcert.data.names import printable
from smoothcert.data.wnids import wnid_labels, wnids
from smoothcert.errors import ConfigError, InputError

_SPLITS = {"train": ("train",), "test": ("test",), "val": ("val", "validation"), "validation": ("validation", "val")}


def load_folder(
    folder: Path, split: str, preparation: Preparation, *, labels: Path | None = None, name: str | None = None
) -> ImageFiles:
    """The images of a split in or under `folder`, in the order in which torchvision's ImageFolder has them."""
    given, folder = folder, split_folder(folder, split)
    title = name or printable(given.resolve().name + ("" if folder == given else f" ({folder.name})"))
    subfolders = [entry.name for entry in _entries(folder) if entry.is_dir()]
    flat = sorted(entry.name for entry in _entries(folder) if entry.is_file() and _is_image(entry.name))
    if subfolders and not flat:
        if labels is not None:
            raise ConfigError(f"Expected no label file for {printable(folder)}, whose subfolders are the classes.")
        return _by_class(folder, sorted(subfolders), title, preparation)
    if not flat:
        raise InputError(f"Expected images ({' '.join(SUFFIXES)}) in {printable(folder)}, got none.")
    table = labels or find_label_file(folder)
    if table is not None:
        known = label_files(table, flat)
        return ImageFiles(folder, tuple(flat), known.labels, known.classes, title, preparation, known.sha256)
    if subfolders:
        raise InputError(
            f"Expected either images or a subfolder per class in {printable(folder)}, got both. Move one of them, or "
            f"give the images a label file ({', '.join(CUSTOMARY_NAMES)})."
        )
    return ImageFiles(folder, tuple(flat), None, None, title, preparation)


def split_folder(folder: Path, split: str) -> Path:
    """The subfolder of this split, if `folder` is divided into splits; else the folder itself.

    A single class may well be called train, so that is no division by itself.
    """
    names = {entry.name for entry in _entries(folder) if entry.is_dir()}
    splits = names & {name for known in _SPLITS.values() for name in known}
    if not splits or (splits != names and len(splits) < 2):
        return folder
    found = next((name for name in _SPLITS.get(split, (split,)) if name in names), None)
    if found is None:
        raise InputError(
            f"Expected a folder {printable(split)} in {printable(folder)}, got {', '.join(sorted(splits))}. Choose one "
            "of these as the split."
        )
    return folder / found


def _by_class(folder: Path, classes: list[str], title: str, preparation: Preparation) -> ImageFiles:
    files: list[str] = []
    labels: list[int] = []
    numbers = wnid_labels(classes, printable(folder))
    for place, name in enumerate(classes):
        inside = sorted(_images_under(folder / name))
        if not inside:
            raise InputError(
                f"Expected images ({' '.join(SUFFIXES)}) in every class folder of {printable(folder)}, got none in "
                f"{printable(name)}. Remove it, or choose a folder above or below."
            )
        files += [os.path.relpath(os.path.join(*found), folder) for found in inside]
        labels += [place if numbers is None else int(numbers[place])] * len(inside)
    names = tuple(classes) if numbers is None else wnids()
    return ImageFiles(folder, tuple(files), np.array(labels, np.int64), names, title, preparation)


def _images_under(top: Path) -> Iterator[tuple[str, str]]:
    """(folder, name) of all images at any depth; links are followed, but never into a folder that was entered."""
    seen: set[tuple[int, int]] = set()
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        here = folder.stat()
        if (here.st_dev, here.st_ino) in seen:
            continue
        seen.add((here.st_dev, here.st_ino))
        for entry in _entries(folder):
            if entry.is_dir():
                waiting.append(Path(entry.path))
            elif entry.is_file() and _is_image(entry.name):
                yield str(folder), entry.name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, without hidden files, which archives and file managers strew about."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"Cannot read the folder {printable(folder)}: {error.strerror}.") from error


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)
