"""ImageNet in its own layouts; it may not be passed on, so that everybody has to get it for themselves."""

from __future__ import annotations

from pathlib import Path

from smoothcert.data.image_files import ImageFiles
from smoothcert.data.image_folder import load_folder
from smoothcert.data.images import Preparation
from smoothcert.data.known import IMAGENET, check_split
from smoothcert.data.names import printable
from smoothcert.data.wnids import wnids
from smoothcert.errors import InputError


def load_imagenet(
    root: Path, split: str, preparation: Preparation | None = None, labels: Path | None = None
) -> ImageFiles:
    """A split under root/imagenet; test is the validation set, as ImageNet's test labels were never published."""
    part = "train" if split == "train" else "val"
    folder = root / IMAGENET.name
    if split not in ("train", "val", "validation", "test"):
        check_split(IMAGENET, split)
    if not (folder / part).is_dir():
        raise InputError(f"imagenet is not there: expected {imagenet_layout(root)}.")
    data = load_folder(folder / part, part, preparation or Preparation(), labels=labels, name=f"imagenet ({part})")
    if data.labels is None:
        raise InputError(
            f"Expected a label file for the images in {printable(folder / part)}, as they are not in class folders: "
            "labels.csv or labels.tsv among them, or one that you name."
        )
    if data.labels.max() >= len(wnids()):
        raise InputError(
            f"Expected ImageNet's labels from 0 to 999, got {data.labels.max()}. Ids from 1 to 1000 as in the "
            "development kit are in another order: translate them by the WordNet ids."
        )
    return ImageFiles(data.folder, data.files, data.labels, wnids(), data.name, data.preparation, data.sha256)


def imagenet_layout(root: Path) -> str:
    """In words, where ImageNet is looked for and how to get it."""
    folder = printable(root / IMAGENET.name)
    return (
        f"{folder}/val/<wnid>/*.JPEG, or {folder}/val/ILSVRC2012_val_*.JPEG with a label file. It may not be passed "
        f"on: register at {IMAGENET.url} and unpack it there"
    )
