from __future__ import annotations

import io
import struct
import subprocess
import sys
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from data.making import random_images
from smoothcert.data.images import Preparation, decode_image, image_shape, read_image, resized_shape
from smoothcert.errors import ConfigError, InputError, MissingExtraError

PIXELS = random_images((20, 30, 3))
AS_IS = Preparation()


def encoded(pixels=PIXELS, kind="PNG", **settings):
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width, height, rows, *, depth=8, colour=0):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {}), ("PPM", {}), ("PNG", {"optimize": True})],
)
def test_lossless_formats_give_back_every_pixel(kind, settings):
    image = decode_image(encoded(PIXELS, kind, **settings), "here", AS_IS)
    np.testing.assert_array_equal(image, PIXELS.transpose(2, 0, 1))
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert image.flags.writeable


def test_jpeg_gives_what_pillow_gives():
    content = encoded(PIXELS, "JPEG")
    theirs = np.asarray(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(decode_image(content, "here", AS_IS), theirs.transpose(2, 0, 1))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".txt", ""])
def test_the_content_decides_whatever_the_suffix(tmp_path, suffix):
    path = tmp_path / f"image{suffix}"
    path.write_bytes(encoded(PIXELS, "WEBP", lossless=True))
    np.testing.assert_array_equal(read_image(path, AS_IS), PIXELS.transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_8_bit_mode_becomes_colour_or_grey(mode, channels):
    source = Image.fromarray(PIXELS).convert(mode)
    image = decode_image(encoded(source), "here", Preparation(channels=channels))
    expected = np.asarray(source.convert("RGB" if channels == 3 else "L"))
    np.testing.assert_array_equal(image, np.atleast_3d(expected).transpose(2, 0, 1))


def test_a_palette_with_transparency_is_read_without_a_warning():
    source = Image.fromarray(PIXELS).convert("P")
    content = encoded(source, transparency=bytes(range(256)))
    np.testing.assert_array_equal(
        decode_image(content, "here", AS_IS), np.asarray(source.convert("RGB")).transpose(2, 0, 1)
    )


def test_cmyk_photographs_are_read():
    content = encoded(Image.fromarray(PIXELS).convert("CMYK"), "JPEG")
    assert decode_image(content, "here", AS_IS).shape == (3, 20, 30)


def test_the_orientation_noted_by_a_camera_is_ignored():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode_image(encoded(PIXELS, "JPEG", exif=exif), "here", AS_IS).shape == (3, 20, 30)


@pytest.mark.parametrize(
    ("shape", "size", "crop", "expected"),
    [
        ((375, 500), (224, 224), 0.875, (256, 341)),
        ((500, 375), (224, 224), 0.875, (341, 256)),
        ((20, 30), (10, 10), 1.0, (10, 15)),
        ((20, 30), (10, 20), 1.0, (13, 20)),
        ((20, 30), (20, 10), 1.0, (20, 30)),
        ((7, 7), (224, 224), 0.875, (256, 256)),
        ((3, 2), (2, 1), 1.0, (2, 1)),
    ],
)
def test_the_resized_image_just_covers_what_is_cut_out(shape, size, crop, expected):
    assert resized_shape(shape, size, crop) == expected


def test_resizing_and_cropping_are_those_of_the_usual_pipeline():
    source = Image.fromarray(random_images((75, 100, 3)))
    resized = source.resize((42, 32), Image.Resampling.BILINEAR)  # 24/0.75, and 32·100/75 cut off
    expected = np.asarray(resized)[4:28, 9:33]
    image = decode_image(encoded(source), "here", Preparation((24, 24), crop=0.75))
    np.testing.assert_array_equal(image, expected.transpose(2, 0, 1))


def test_with_a_crop_of_1_an_image_of_the_right_size_stays_as_it_is():
    image = decode_image(encoded(), "here", Preparation((20, 30), crop=1.0))
    np.testing.assert_array_equal(image, PIXELS.transpose(2, 0, 1))


def test_with_a_crop_of_1_the_middle_stays():
    image = decode_image(encoded(), "here", Preparation((20, 20), crop=1.0))
    np.testing.assert_array_equal(image, PIXELS[:, 5:25].transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": (0, 5)}, "size"),
        ({"size": (5, 10_000)}, "size"),
        ({"size": (5, 5.0)}, "size"),
        ({"size": (True, 5)}, "size"),
        ({"crop": 0.0}, "crop"),
        ({"crop": 1.01}, "crop"),
        ({"crop": float("nan")}, "crop"),
        ({"crop": "1"}, "crop"),
        ({"channels": 4}, "channels"),
        ({"channels": True}, "channels"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, named):
    with pytest.raises(ConfigError, match=f"Expected `{named}`"):
        Preparation(**settings)


FITS = b"SIMPLE  =                    T".ljust(2880)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nsystemdict"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (SVG, "SVG"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>" + SVG, "SVG"),
        (EPS, "EPS"),
        (FITS, "FITS"),
        (encoded(PIXELS, "GIF"), "GIF"),
        (encoded(PIXELS, "TIFF"), "TIFF"),
        (b"<html><body>404", "a web page"),
        (b"PK\x03\x04rest", "a zip archive"),
        (encoded(PIXELS, "ICO"), "a file that starts with"),
        (b"\0" * 100, "a file that starts with"),
    ],
)
def test_other_formats_are_refused_by_what_they_are(tmp_path, content, found):
    path = tmp_path / "image.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"Expected an image .*image.png, got .*{found}"):
        read_image(path, AS_IS)


def test_a_gif_of_very_many_frames_is_refused():
    one, other = Image.new("L", (2, 2)), Image.new("L", (2, 2), 255)
    with pytest.raises(InputError, match=r"got GIF"):
        decode_image(encoded(one, "GIF", save_all=True, append_images=[other, one] * 500), "here", AS_IS)


@pytest.mark.parametrize(("kind", "settings"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_animations_are_refused(kind, settings):
    frames = [Image.fromarray(random_images((4, 4, 3), seed)) for seed in range(3)]
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **settings)
    with pytest.raises(InputError, match=r"an animation of 3"):
        decode_image(content, "here", AS_IS)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "PPM"])
def test_a_file_that_breaks_off_anywhere_is_refused_by_name(kind):
    content = encoded(PIXELS, kind)
    for kept in sorted({1, 2, 9, 20, 30, 60, len(content) // 4, len(content) // 2, len(content) * 9 // 10}):
        with pytest.raises(InputError, match=r"my file"):
            decode_image(content[:kept], "my file", AS_IS)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "PPM"])
def test_damage_gives_an_error_or_an_image_and_nothing_else(kind):
    content = encoded(PIXELS, kind)
    rng = np.random.default_rng(1)
    outcomes = set()
    for place in [*range(40), *rng.integers(40, len(content), 60).tolist()]:
        damaged = content[:place] + bytes([content[place] ^ int(rng.integers(1, 256))]) + content[place + 1 :]
        try:
            outcomes.add(decode_image(damaged, "here", AS_IS).dtype)
        except InputError:
            outcomes.add("refused")
    assert outcomes <= {np.dtype(np.uint8), "refused"}
    assert "refused" in outcomes


@pytest.mark.parametrize(
    "content",
    [
        encoded(Image.fromarray(np.full((4, 4), 700, np.uint16))),
        png(1, 1, zlib.compress(b"\0" + b"\1\2" * 3), depth=16, colour=2),
        b"P5 1 1 65535\n\1\2",
        b"Pf 1 1 -1.0\n\0\0\0\0",
    ],
)
def test_more_than_8_bits_per_channel_are_refused_rather_than_cut_off(content):
    with pytest.raises(InputError, match=r"here"):
        decode_image(content, "here", AS_IS)


def test_sizes_are_taken_from_the_header_before_anything_is_decoded(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(encoded()[:60])  # the pixels are missing
    assert image_shape(path, 3) == (3, 20, 30)
    assert image_shape(path, 1) == (1, 20, 30)


@pytest.mark.parametrize(
    "content",
    [
        png(13_000, 13_000, b""),
        png(2**31 - 1, 2**31 - 1, b""),
        b"P5 100000 100000 255\n",
        b"BM" + struct.pack("<IHHI", 0, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 9000, 9000, 1, 24, *[0] * 6),
        b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + struct.pack("<II", 10, 0) + b"\xff\xff\xff" * 2,
        b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8L" + struct.pack("<IB", 9, 0x2F) + b"\xff" * 9,
        b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8 " + struct.pack("<I", 9) + b"\0\0\0\x9d\x01\x2a" + b"\xff\x3f" * 2,
    ],
)
def test_too_many_pixels_are_refused_without_a_warning(content):
    with warnings.catch_warnings(record=True) as leaked, pytest.raises(InputError, match=r"pixels in here, got"):
        decode_image(content, "here", AS_IS)
    assert leaked == []


def test_a_thin_strip_is_not_blown_up():
    content = encoded(np.zeros((1, 20_000), np.uint8))
    with pytest.raises(InputError, match=r"at most 64,000,000 pixels in here, got 5,120,000 × 256"):
        decode_image(content, "here", Preparation((224, 224)))


BOMB = """
import resource, sys, warnings
from pathlib import Path
warnings.simplefilter("error")
from smoothcert.data.images import Preparation, read_image, decode_image
from smoothcert.errors import InputError
decode_image(Path(sys.argv[1]).with_name("small.png").read_bytes(), "small", Preparation())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_image(Path(sys.argv[1]), Preparation((224, 224)))
except InputError as error:
    assert "13,000 × 13,000" in str(error), error
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_png_of_13000_by_13000_pixels_costs_no_memory(tmp_path):
    packer = zlib.compressobj(9)
    rows = b"".join([packer.compress(bytes(13_001)) for _ in range(13_000)]) + packer.flush()
    content = png(13_000, 13_000, rows)
    assert len(content) < 200 * 1024
    (tmp_path / "bomb.png").write_bytes(content)
    (tmp_path / "small.png").write_bytes(encoded())
    command = [sys.executable, "-c", BOMB, str(tmp_path / "bomb.png")]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 8  # megabytes; decoded it is 161


def test_the_hash_of_a_label_file_is_checked_against_the_bytes(tmp_path):
    import hashlib

    path = tmp_path / "image.png"
    path.write_bytes(encoded())
    right = hashlib.sha256(encoded()).hexdigest()
    assert read_image(path, AS_IS, right.upper()).shape == (3, 20, 30)
    with pytest.raises(InputError, match=r"image.png to have the sha256 0000"):
        read_image(path, AS_IS, "0" * 64)


def test_a_file_that_is_too_long_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("smoothcert.data.images.MOST_BYTES", 100)
    path = tmp_path / "image.png"
    path.write_bytes(encoded())
    with pytest.raises(InputError, match=r"at most 100 bytes"):
        read_image(path, AS_IS)


def test_a_name_that_would_steer_the_terminal_is_escaped(tmp_path):
    path = tmp_path / "a\tb\x1b[31m.png"
    path.write_bytes(b"")
    with pytest.raises(InputError) as caught:
        read_image(path, AS_IS)
    assert "a\\tb\\x1b[31m.png" in str(caught.value)


def test_says_which_extra_to_install_when_pillow_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.PngImagePlugin", None)
    with pytest.raises(MissingExtraError, match=r"Pillow is needed.*smoothcert\[images\]"):
        decode_image(encoded(), "here", AS_IS)
