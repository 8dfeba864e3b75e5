"""A data set of image files, each decoded when it is asked for."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smoothcert.data.dataset import Dataset
from smoothcert.data.images import Preparation, Window, image_shape, read_image
from smoothcert.data.names import printable
from smoothcert.errors import InputError


@dataclass(frozen=True, eq=False)
class ImageFiles(Dataset):
    """Images in files under `folder`, in the order of `files`; `sha256` holds the hash of each, where known."""

    folder: Path
    files: tuple[str, ...]
    labels: npt.NDArray[np.int64] | None
    classes: tuple[str, ...] | None
    name: str
    preparation: Preparation = field(default_factory=Preparation)
    sha256: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.check_labels()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        return self.cropped(index, None)

    def cropped(self, index: int, window: Window | None) -> npt.NDArray[np.uint8]:
        """The part of an image in `window`, brought to the size of all images; without a window, the image prepared."""
        wanted = None if self.sha256 is None else self.sha256[index]
        return read_image(self.folder / self.files[index], self.preparation, wanted, window)

    @cached_property
    def shape(self) -> tuple[int, ...] | None:
        """The shape that all images are brought to or have by their headers; None at the first that differs."""
        channels, size = self.preparation.channels, self.preparation.size
        if size is not None:
            return (channels, *size)
        shapes = (image_shape(self.folder / file, channels) for file in self.files)
        first = next(shapes)
        return first if all(shape == first for shape in shapes) else None

    def fingerprint(self) -> str:
        """The SHA-256 of names, sizes in bytes, labels and preparation: images themselves would take too long."""
        digest = hashlib.sha256(repr((self.preparation, self.sha256)).encode())
        for file in self.files:
            digest.update(os.fsencode(file.replace(os.sep, "/")) + b"\0" + str(self._size(file)).encode() + b"\0")
        if self.labels is not None:
            digest.update(self.labels.tobytes())
        return f"sha256:{digest.hexdigest()}"

    def _size(self, file: str) -> int:
        try:
            return (self.folder / file).stat().st_size
        except OSError as error:
            raise InputError(f"Cannot read {printable(self.folder / file)}: {error.strerror}.") from error
