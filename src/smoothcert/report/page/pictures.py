"""Pictures for the page: the data of a run, if they are here and still the same, and PNG without further libraries."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.data.dataset import Dataset
from smoothcert.data.known import canonical_name
from smoothcert.data.loading import load
from smoothcert.data.names import source_and_split
from smoothcert.errors import SmoothcertError
from smoothcert.runs.directory import Run

Image = npt.NDArray[np.uint8]
COPIES = 2
_BYTES = 5_000_000  # of all pictures together, so that the page stays below 10 MB
_LARGEST, _SMALLEST = 160, 32


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a run, or in `missing` why there are none to show."""

    data: Dataset | None
    missing: str = ""


def find_inputs(runs: Sequence[Run], given: str | Path | Dataset | None) -> list[Inputs]:
    """The inputs of each run: `given`, or the data set that its manifest names, where that is known and here.

    An error in loading `given` is raised, any other makes the pictures missing.
    """
    data = _load(given, runs[0].manifest.values) if isinstance(given, str | Path) else given
    found: dict[str, Inputs] = {}
    for run in runs:
        values, fingerprint = run.manifest.values, _fingerprint(run.manifest.values)
        if fingerprint not in found:
            found[fingerprint] = _named(values) if data is None else _matching(data, values)
    return [found[_fingerprint(run.manifest.values)] for run in runs]


def _fingerprint(values: Mapping[str, Any]) -> str:
    """What the data of a run hash to; nothing where a log does not say."""
    return str(values["data"].get("fingerprint", ""))


def _named(values: Mapping[str, Any]) -> Inputs:
    name = str(values["data"]["name"])
    if not _fingerprint(values):
        return Inputs(None, "the run does not say which data it is about")
    source, _ = source_and_split(name)
    if canonical_name(source) is None:
        return Inputs(None, f"of the data only the name, {name}, is recorded, not the place; give it with --data")
    try:
        return _matching(_load(source, values), values)
    except (SmoothcertError, OSError) as error:
        return Inputs(None, f"the data could not be loaded: {str(error).rstrip('.')}")


def _load(source: str | Path, values: Mapping[str, Any]) -> Dataset:
    """The data as `certify` loads them: image files of several sizes are brought to the model's."""
    _, split = source_and_split(str(values["data"]["name"]))
    shape = values["model"].get("input_shape")
    is_image = shape is not None and len(shape) == 3
    channels = 1 if is_image and shape[0] == 1 else None
    data = load(source, split=split, channels=channels)
    if data.shape is not None or not is_image:
        return data
    return load(source, split=split, channels=channels, size=(shape[1], shape[2]))


def _matching(data: Dataset, values: Mapping[str, Any]) -> Inputs:
    if data.fingerprint() != _fingerprint(values):
        return Inputs(None, f"the data {data.name} here are not those of the run: their fingerprints differ")
    return Inputs(data)


# Drawing


def largest_side(pictures: int) -> int:
    """How many pixels a side may have, so that so many pictures in colour fit into the page."""
    side = int((_BYTES / (max(pictures, 1) * 3 * 4 / 3)) ** 0.5)
    return max(_SMALLEST, min(_LARGEST, side))


def as_image(one: npt.NDArray[Any], side: int) -> npt.NDArray[np.float64] | None:
    """An input as values in [0, 1], [H, W, 1 or 3], with pixels left out where it is large; None if it is no image."""
    if one.ndim != 3 or one.shape[0] not in (1, 3):
        return None
    values = np.moveaxis(one, 0, -1) / (255 if one.dtype == np.uint8 else 1)
    # Left out rather than averaged: averages would make the noise look weaker than it is.
    step = -(-max(values.shape[:2]) // side)
    return np.asarray(values[::step, ::step], np.float64)


def pictures(image: npt.NDArray[np.float64], sigma: float, seed: int) -> list[str]:
    """The image and, where there is noise, copies under it as data URIs.

    The copies are cut off at 0 and 1, which only the display does.
    """
    generator = np.random.default_rng(seed)
    noisy = [image + sigma * generator.standard_normal(image.shape) for _ in range(COPIES if sigma else 0)]
    return [data_uri(np.rint(255 * np.clip(one, 0, 1)).astype(np.uint8)) for one in (image, *noisy)]


def data_uri(image: Image) -> str:
    """An image [H, W, 1 or 3] as a PNG that stands in its own address."""
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode('ascii')}"


def png(image: Image) -> bytes:
    """An image [H, W, 1 or 3] as PNG: a header, the rows with filter 0 in front of each, an end."""
    height, width, channels = image.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
