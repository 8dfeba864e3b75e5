"""Fetching the standard data sets from their publishers, and checking the files that are there."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from smoothcert.data.archives import unpack
from smoothcert.data.imagenet import imagenet_layout, load_imagenet
from smoothcert.data.known import IMAGENET, KNOWN, Download, Found, Known, check_split, expected_files, find, known
from smoothcert.data.names import printable
from smoothcert.errors import InputError, OutputError
from smoothcert.files import Limits
from smoothcert.folders import data_root

TIMEOUT = 30.0
_CHUNK = 256 * 1024
_ON_REQUEST = ("extra",)  # larger than the rest together, and hardly anybody needs it

Advance = Callable[[int], None]


def check(name: str, root: Path | str | None = None) -> list[Path]:
    """The files of a data set on this machine, all with their published checksums; InputError otherwise.

    Only splits that are there are looked at, but there must be one.
    """
    data, folder = known(name), data_root(root)
    if data.name == IMAGENET.name:
        return _check_imagenet(folder)
    places = [found for split in data.counts if (found := find(data, folder, split)) is not None]
    if data.layouts and not places:
        raise InputError(
            f"{data.name} is not there: expected {expected_files(data, folder, 'test')}. Get it by `smoothcert data "
            f"fetch {data.name}`."
        )
    files = [file for found in places for file in found.files]
    for file in files:
        _check_sum(data, file)
    return files


def _check_imagenet(root: Path) -> list[Path]:
    """No sums of its files are published, but their number is."""
    data, wanted = load_imagenet(root, "val"), IMAGENET.counts["val"]
    if len(data) != wanted:
        raise InputError(f"Expected {wanted:,} images in {printable(data.folder)}, got {len(data):,}.")
    return [data.folder]


def _check_sum(data: Known, file: Path) -> None:
    wanted = (data.md5 or {})[file.name.removesuffix(".gz")]
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content:
            got = _md5(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"Cannot read {printable(file)}: {printable(error)}. Fetch it again.") from error
    if got != wanted:
        raise InputError(f"Expected the MD5 sum {wanted} of {printable(file)}, got {got}. Fetch it again.")


def _md5(file: IO[bytes]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def fetch(
    name: str,
    root: Path | str | None = None,
    *,
    split: str | None = None,
    mirror: str | None = None,
    advance: Advance | None = None,
    timeout: float = TIMEOUT,
) -> list[Path]:
    """Download what is missing of a data set and return the new files; nothing that is there and whole is touched.

    A file is moved into place only with the published size and checksum. `mirror` takes the place of the publisher's
    address; `advance` is told of every few bytes. InputError if the network or the file is at fault, OutputError if
    the disk is.
    """
    data, folder = known(name), data_root(root)
    _check_fetchable(data, folder)
    new: list[Path] = []
    lacking = missing(data, folder, split)
    if lacking:
        _check_unshadowed(data, folder, split)
    for download in lacking:
        with _downloaded(data, download, folder, mirror or data.url, advance, timeout) as partial:
            if data.unpacked:
                new += unpack(partial, folder / data.name, Limits(entries=100, size=data.unpacked))
            else:
                target = folder / data.name / download.file
                partial.replace(target)
                new.append(target)
    return new


def _check_fetchable(data: Known, root: Path) -> None:
    if data.name == "digits":
        raise InputError("digits need no fetching: they come with scikit-learn.")
    if data.name == IMAGENET.name:
        raise InputError(f"imagenet cannot be fetched: expected {imagenet_layout(root)}.")


def missing(data: Known, root: Path, split: str | None = None) -> list[Download]:
    """The downloads that a data set, or one split of it, still lacks."""
    lacking = [one for one in _wanted(data, split) if not _is_whole(data, find(data, root, one))]
    return [one for one in data.downloads if lacking and (one.split is None or one.split in lacking)]


def _wanted(data: Known, split: str | None) -> list[str]:
    return [check_split(data, split)] if split else [one for one in data.counts if one not in _ON_REQUEST]


def _is_whole(data: Known, found: Found | None) -> bool:
    if found is None:
        return False
    try:
        for file in found.files:
            _check_sum(data, file)
    except InputError:
        return False
    return True


def _check_unshadowed(data: Known, root: Path, split: str | None) -> None:
    """A damaged file that a download does not replace would still be the one that is found."""
    home = root / data.name / data.layouts[0].folders[0]
    for one in _wanted(data, split):
        found = find(data, root, one)
        if found is None or _is_whole(data, found):
            continue
        for file in found.files:
            if file.parent != home or (not data.unpacked and file.name not in {load.file for load in data.downloads}):
                raise InputError(f"{printable(file)} or a file beside it is damaged. Remove it, then fetch again.")


@contextmanager
def _downloaded(
    data: Known, download: Download, root: Path, base: str, advance: Advance | None, timeout: float
) -> Iterator[Path]:
    """The download in a temporary file beside its place, whole and checked; it is gone after the block."""
    folder = root / data.name
    url = f"{base.rstrip('/')}/{download.file}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{download.file}.", suffix=".part", dir=folder)
    except OSError as error:
        raise OutputError(f"Cannot write into {printable(folder)}: {error.strerror}.") from error
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            _transfer(url, file, download, advance or (lambda _: None), timeout, folder)
        partial.chmod(0o644)  # mkstemp makes files that only the owner may read
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _transfer(url: str, file: IO[bytes], download: Download, advance: Advance, timeout: float, folder: Path) -> None:
    if not url.startswith(("http://", "https://")):
        raise InputError(f"Expected an address that starts with http:// or https://, got {printable(url)}.")
    by_hand = f"Place {download.file} into {printable(folder)} by hand, or try later"
    digest, received = hashlib.md5(usedforsecurity=False), 0
    with closing(_chunks(url, timeout, by_hand)) as chunks:
        for chunk in chunks:
            received += len(chunk)
            if received > download.size:
                break
            digest.update(chunk)
            _write(file, chunk)
            advance(len(chunk))
    if received != download.size:
        got = "more" if received > download.size else f"{received:,}"
        raise InputError(f"Expected {download.size:,} bytes from {printable(url)}, got {got}. {by_hand}.")
    if digest.hexdigest() != download.md5:
        raise InputError(
            f"Expected the MD5 sum {download.md5} of {printable(url)}, got {digest.hexdigest()}: it is another file or "
            f"was damaged on its way. {by_hand}."
        )


def _chunks(url: str, timeout: float, by_hand: str) -> Generator[bytes, None, None]:
    try:
        request = Request(url, headers={"User-Agent": "smoothcert"})  # noqa: S310  the scheme was checked
        with urlopen(request, timeout=timeout) as response:  # noqa: S310
            while chunk := response.read(_CHUNK):
                yield chunk
    except HTTPError as error:
        error.close()  # it is the response, too
        raise InputError(f"Cannot fetch {printable(url)}: the server says {error.code}. {by_hand}.") from error
    except (URLError, TimeoutError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise InputError(f"Cannot fetch {printable(url)}: {printable(reason)}. {by_hand}.") from error


def _write(file: IO[bytes], chunk: bytes) -> None:
    try:
        file.write(chunk)
    except OSError as error:
        raise OutputError(f"Cannot write the download: {error.strerror}.") from error


def whereabouts(root: Path | str | None = None) -> dict[str, Path | None]:
    """For every known data set the folder in which a split of it was found, or None."""
    folder = data_root(root)
    return {name: _place(data, folder) for name, data in KNOWN.items()}


def _place(data: Known, root: Path) -> Path | None:
    if data.name == IMAGENET.name:
        folders = [root / data.name / part for part in ("val", "train")]
        return next((folder for folder in folders if folder.is_dir()), None)
    return next((found.folder for split in data.counts if (found := find(data, root, split)) is not None), None)
