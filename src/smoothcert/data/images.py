"""Image files as arrays in 8 bits: a few formats by content, sizes looked at before anything is decoded.

Images are prepared as for ImageNet: the shorter side is brought to size/crop pixels, bilinearly and antialiased, and
the middle is cut out. The orientation that a camera notes in EXIF is ignored, as training pipelines ignore it.
"""

from __future__ import annotations

import hashlib
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothcert.data.names import printable
from smoothcert.errors import ConfigError, InputError, MissingExtraError
from smoothcert.files import read_at_most

MOST_PIXELS = 64_000_000
MOST_BYTES = 256 * 2**20
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm")

# How a file starts, and Pillow's class for it. Opening that class, rather than letting Pillow guess, keeps every other
# decoder out and needs neither Pillow's global limits nor its warnings about them.
_FORMATS: dict[str, tuple[Callable[[bytes], bool], str, str]] = {
    "JPEG": (lambda start: start.startswith(b"\xff\xd8\xff"), "JpegImagePlugin", "JpegImageFile"),
    "PNG": (lambda start: start.startswith(b"\x89PNG\r\n\x1a\n"), "PngImagePlugin", "PngImageFile"),
    "WEBP": (lambda start: start[:4] == b"RIFF" and start[8:12] == b"WEBP", "WebPImagePlugin", "WebPImageFile"),
    "BMP": (lambda start: start.startswith(b"BM"), "BmpImagePlugin", "BmpImageFile"),
    "PPM": (lambda start: start[:2] in (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), "PpmImagePlugin", "PpmImageFile"),
}
_OTHERS = {
    b"GIF8": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"%!PS": "EPS",
    b"\xc5\xd0\xd3\xc6": "EPS",
    b"SIMPLE": "FITS",
    b"%PDF": "PDF",
    b"PK\3\4": "a zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"<svg": "SVG",
    b"<?xml": "XML, perhaps SVG",
    b"<!DOC": "a web page",
    b"<html": "a web page",
}
Window = Callable[[int, int], tuple[int, int, int, int]]
"""Which part of an image of (height, width) is cut out: (top, left, height, width)."""

_EIGHT_BIT_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr")


@dataclass(frozen=True, slots=True)
class Preparation:
    """What every image is brought to: (height, width), or as it is; the cropped share; 3 channels or 1."""

    size: tuple[int, int] | None = None
    crop: float = 0.875
    channels: int = 3

    def __post_init__(self) -> None:
        if self.size is not None and not _is_size(self.size):
            raise ConfigError(f"Expected `size` to be one or two whole numbers from 1 to 8192, got {self.size!r}.")
        if isinstance(self.crop, bool) or not isinstance(self.crop, int | float) or not 0.1 <= self.crop <= 1:
            raise ConfigError(f"Expected `crop` from 0.1 to 1, the share of the resized image, got {self.crop!r}.")
        if isinstance(self.channels, bool) or self.channels not in (1, 3):
            raise ConfigError(f"Expected `channels` 3 for colour or 1 for grey, got {self.channels!r}.")


def _is_size(size: object) -> bool:
    pair = isinstance(size, tuple) and len(size) == 2
    return pair and all(type(side) is int and 1 <= side <= 8192 for side in size)


def read_image(
    path: Path, preparation: Preparation, sha256: str | None = None, window: Window | None = None
) -> npt.NDArray[np.uint8]:
    """The image in a file as [C, H, W]; InputError if it is no whole image, or not the one with this hash."""
    content = read_at_most(path, MOST_BYTES, InputError, printable(path))
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256.lower():
        raise InputError(f"Expected {printable(path)} to have the sha256 {sha256} of the label file; it has another.")
    return decode_image(content, printable(path), preparation, window)


def image_shape(path: Path, channels: int) -> tuple[int, int, int]:
    """The shape that an image has as it is, from its header alone."""
    with _opened(read_at_most(path, MOST_BYTES, InputError, printable(path)), printable(path)) as image:
        width, height = image.size
    return channels, height, width


def decode_image(
    content: bytes, source: str, preparation: Preparation, window: Window | None = None
) -> npt.NDArray[np.uint8]:
    """The image in these bytes as [C, H, W], or the part in `window` resized; `source` names it in errors."""
    with _opened(content, source) as image:
        try:
            prepared = _prepared(image, preparation, source, window)
            pixels = np.asarray(prepared, np.uint8)
        except InputError:
            raise
        except Exception as error:  # decoders fail in as many ways as there are bytes to flip
            raise InputError(
                f"Expected a whole {image.format} image in {source}, got a damaged one: {error}."
            ) from error
    return np.array(np.atleast_3d(pixels).transpose(2, 0, 1), order="C")


def _opened(content: bytes, source: str) -> Any:
    """Pillow's image after the header only, of an allowed format, size and depth."""
    name = next((name for name, (fits, _, _) in _FORMATS.items() if fits(content[:16])), None)
    if name is None:
        raise InputError(f"Expected an image ({', '.join(_FORMATS)}) in {source}, got {_described(content)}.")
    if name == "WEBP":  # its decoder takes memory for the whole image when it is opened
        _check_size(_webp_size(content), source)
    try:
        image = _plugin(name)(io.BytesIO(content))
        frames = getattr(image, "n_frames", 1)
    except MissingExtraError:
        raise
    except Exception as error:
        raise InputError(f"Expected a {name} image in {source}, got one with a damaged header: {error}.") from error
    _check_size(image.size, source)
    if frames > 1:
        raise InputError(f"Expected one image in {source}, got an animation of {frames:,}.")
    if image.mode not in _EIGHT_BIT_MODES or (name == "PNG" and content[24] == 16):
        raise InputError(f"Expected 8 bits per channel in {source}, got mode {image.mode}. Convert it to 8 bits first.")
    return image


def _plugin(name: str) -> Any:
    _, module, cls = _FORMATS[name]
    try:
        return getattr(importlib.import_module(f"PIL.{module}"), cls)
    except ImportError as error:
        raise MissingExtraError("Pillow", "images") from error


def _described(content: bytes) -> str:
    if not content:
        return "an empty file"
    start = content[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    kind = next((kind for magic, kind in _OTHERS.items() if start.startswith(magic)), None)
    return kind or f"a file that starts with {content[:8]!r}"


def _check_size(size: tuple[int, int], source: str) -> None:
    width, height = size
    if width < 1 or height < 1 or width * height > MOST_PIXELS:
        raise InputError(
            f"Expected an image of at most {MOST_PIXELS:,} pixels in {source}, got {width:,} × {height:,}. Shrink it "
            "first."
        )


def _webp_size(content: bytes) -> tuple[int, int]:
    """Width and height in a WebP header of any of its three kinds; (0, 0) where there is none."""

    def number(start: int, stop: int) -> int:
        return int.from_bytes(content[start:stop], "little")

    if len(content) < 30:
        return 0, 0
    if content[12:16] == b"VP8X":
        return number(24, 27) + 1, number(27, 30) + 1
    if content[12:16] == b"VP8L":
        return (number(21, 25) & 0x3FFF) + 1, (number(21, 25) >> 14 & 0x3FFF) + 1
    return number(26, 28) & 0x3FFF, number(28, 30) & 0x3FFF


def _prepared(image: Any, preparation: Preparation, source: str, window: Window | None) -> Any:
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns about the direct way
    image = image.convert("RGB" if preparation.channels == 3 else "L")
    if window is not None:
        return _cut_out(image, window(image.height, image.width), preparation.size or (image.height, image.width))
    if preparation.size is None:
        return image
    height, width = preparation.size
    resized = resized_shape((image.height, image.width), preparation.size, preparation.crop)
    _check_size(resized[::-1], source)  # a thin strip would grow without bound
    if resized != (image.height, image.width):
        from PIL.Image import Resampling

        image = image.resize(resized[::-1], Resampling.BILINEAR)
    top, left = round((resized[0] - height) / 2), round((resized[1] - width) / 2)
    return image.crop((left, top, left + width, top + height))


def _cut_out(image: Any, part: tuple[int, int, int, int], size: tuple[int, int]) -> Any:
    from PIL.Image import Resampling

    top, left, height, width = part
    return image.crop((left, top, left + width, top + height)).resize(size[::-1], Resampling.BILINEAR)


def resized_shape(shape: tuple[int, int], size: tuple[int, int], crop: float) -> tuple[int, int]:
    """Height and width of the smallest image of this shape's proportions that covers size/crop.

    >>> resized_shape((375, 500), (224, 224), 0.875)
    (256, 341)
    """
    height, width = (round(side / crop) for side in size)
    if height * shape[1] >= width * shape[0]:
        return height, max(width, height * shape[1] // shape[0])
    return max(height, width * shape[0] // shape[1]), width
