"""What a labelled set of images is, wherever it came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smoothcert.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class ImageData:
    """Images [N, C, H, W] in 8 bits, one label per image and one name per class.

    The images stay uint8, so that every pixel is exactly k/255 and sound noise on that grid applies.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.uint8:
            raise InputError(f"Expected uint8 images [N, C, H, W], got {self.images.dtype} {self.images.shape}.")
        if self.labels.shape != (len(self.images),) or self.labels.dtype != np.int64:
            raise InputError(f"Expected {len(self.images)} int64 labels, got {self.labels.dtype} {self.labels.shape}.")
        if len(self.labels) and not (self.labels.min() >= 0 and self.labels.max() < len(self.classes)):
            raise InputError(f"Expected labels from 0 to {len(self.classes) - 1}, as there are that many class names.")

    def __len__(self) -> int:
        return len(self.images)
