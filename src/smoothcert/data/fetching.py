"""Fetching standard data sets and published evidence from their publishers, and checking the files that are there."""

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
from smoothcert.data.known import (
    IMAGENET,
    KNOWN,
    Download,
    Found,
    Known,
    check_split,
    expected_files,
    find,
    spelt_among,
    unknown_name,
)
from smoothcert.data.names import printable
from smoothcert.data.publications import ATTRIBUTION_FILE, PUBLICATIONS, Publication
from smoothcert.errors import InputError, OutputError
from smoothcert.files import Limits, replacing
from smoothcert.folders import data_root

TIMEOUT = 30.0
_CHUNK = 256 * 1024
_ON_REQUEST = ("extra",)  # larger than the rest together, and hardly anybody needs it
_ALGORITHMS = {32: "MD5", 64: "SHA256"}  # by the number of hexadecimal digits

Advance = Callable[[int], None]


def named(name: str) -> Known | Publication:
    """The data set or publication of this name; InputError naming the nearest one if there is none."""
    names = [*KNOWN, *PUBLICATIONS]
    spelt = spelt_among(name, names)
    if spelt is None:
        raise unknown_name(name, names)
    return PUBLICATIONS[spelt] if spelt in PUBLICATIONS else KNOWN[spelt]


def published_folder(name: str, root: Path | str | None = None) -> Path:
    """The folder with the files of a publication, all of them with their checksums; InputError otherwise.

    >>> published_folder("cohen2019") / "certify" / "imagenet"  # doctest: +SKIP
    PosixPath('/home/me/.cache/smoothcert/cohen2019/certify/imagenet')
    """
    if name not in PUBLICATIONS:
        raise unknown_name(name, PUBLICATIONS)
    check(name, root)
    return data_root(root) / name


def check(name: str, root: Path | str | None = None) -> list[Path]:
    """The files of a data set or publication on this machine, all with their checksums; InputError otherwise.

    Of a data set, only splits that are there are looked at, but there must be one.
    """
    data, folder = named(name), data_root(root)
    if isinstance(data, Publication):
        return _check_publication(data, folder)
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
        _check_file(data, file)
    return files


def _check_imagenet(root: Path) -> list[Path]:
    """No sums of its files are published, but their number is."""
    data, wanted = load_imagenet(root, "val"), IMAGENET.counts["val"]
    if len(data) != wanted:
        raise InputError(f"Expected {wanted:,} images in {printable(data.folder)}, got {len(data):,}.")
    return [data.folder]


def _check_publication(data: Publication, root: Path) -> list[Path]:
    folder = root / data.name
    absent = [download.file for download in data.downloads if not (folder / download.file).is_file()]
    if absent:
        raise InputError(
            f"{data.name} is not there: expected {absent[0]}{' and other files' if absent[1:] else ''} in "
            f"{printable(folder)}. Run: smoothcert data fetch {data.name}"
        )
    for download in data.downloads:
        _check_sum(folder / download.file, download.checksum)
    return [folder / download.file for download in data.downloads]


def _check_file(data: Known, file: Path) -> None:
    _check_sum(file, (data.md5 or {})[file.name.removesuffix(".gz")])


def _check_sum(file: Path, wanted: str) -> None:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content:
            got = _sum(content, wanted)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"Cannot read {printable(file)}: {printable(error)}. Fetch it again.") from error
    if got != wanted:
        raise InputError(
            f"Expected the {_algorithm(wanted)} sum {wanted} of {printable(file)}, got {got}. Fetch it again."
        )


def _algorithm(checksum: str) -> str:
    return _ALGORITHMS[len(checksum)]


def _sum(file: IO[bytes], like: str) -> str:
    """The checksum of a file by the algorithm of the checksum `like`."""
    digest = hashlib.new(_algorithm(like), usedforsecurity=False)
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
    """Download what is missing of a data set or publication and return the new files; whole files are left alone.

    A file is moved into place only with the published size and checksum. `mirror` takes the place of the publisher's
    address; `advance` is called with the number of bytes received. Beside the files of a publication, ATTRIBUTION.txt
    says where they come from. InputError if the network or the file is at fault, OutputError if the disk is.
    """
    data, top = named(name), data_root(root)
    _check_fetchable(data, top)
    new: list[Path] = []
    lacking = missing(data, top, split)
    if lacking and isinstance(data, Known):
        _check_unshadowed(data, top, split)
    folder = top / data.name
    for download in lacking:
        with _downloaded(download, folder, mirror or data.url, advance, timeout) as partial:
            if isinstance(data, Known) and data.unpacked:
                new += unpack(partial, folder, Limits(entries=100, size=data.unpacked))
            else:
                target = folder / download.file
                partial.replace(target)
                new.append(target)
    if isinstance(data, Publication):
        with replacing(folder / ATTRIBUTION_FILE) as partial:
            partial.write_text(data.attribution, "utf-8")
    return new


def _check_fetchable(data: Known | Publication, root: Path) -> None:
    if data.name == "digits":
        raise InputError("digits need no fetching: they come with scikit-learn.")
    if data.name == IMAGENET.name:
        raise InputError(f"imagenet cannot be fetched: expected {imagenet_layout(root)}.")


def missing(data: Known | Publication, root: Path, split: str | None = None) -> list[Download]:
    """The downloads that a data set, one split of it, or a publication still lacks."""
    if isinstance(data, Publication):
        if split is not None:
            raise InputError(f"Expected no split of {data.name}, which has none, got '{printable(split)}'.")
        return [one for one in data.downloads if not _has_sum(root / data.name / one.file, one.checksum)]
    lacking = [one for one in _wanted(data, split) if not _is_whole(data, find(data, root, one))]
    return [one for one in data.downloads if lacking and (one.split is None or one.split in lacking)]


def _wanted(data: Known, split: str | None) -> list[str]:
    return [check_split(data, split)] if split else [one for one in data.counts if one not in _ON_REQUEST]


def _has_sum(file: Path, checksum: str) -> bool:
    try:
        _check_sum(file, checksum)
    except InputError:
        return False
    return True


def _is_whole(data: Known, found: Found | None) -> bool:
    if found is None:
        return False
    try:
        for file in found.files:
            _check_file(data, file)
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
def _downloaded(download: Download, folder: Path, base: str, advance: Advance | None, timeout: float) -> Iterator[Path]:
    """The download in a temporary file beside its place, whole and checked; it is gone after the block."""
    target = folder / download.file
    url = f"{base.rstrip('/')}/{download.file}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise OutputError(f"Cannot write into {printable(target.parent)}: {error.strerror}.") from error
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
    algorithm = _algorithm(download.checksum)
    digest, received = hashlib.new(algorithm, usedforsecurity=False), 0
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
    if digest.hexdigest() != download.checksum:
        raise InputError(
            f"Expected the {algorithm} sum {download.checksum} of {printable(url)}, got {digest.hexdigest()}: it is "
            f"another file or was damaged on its way. {by_hand}."
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
    """For every known data set the folder in which a split of it was found, or None.

    For every publication the folder that has all of its files.
    """
    folder = data_root(root)
    places = {name: _place(data, folder) for name, data in KNOWN.items()}
    for name, publication in PUBLICATIONS.items():
        complete = all((folder / name / download.file).is_file() for download in publication.downloads)
        places[name] = folder / name if complete else None
    return places


def _place(data: Known, root: Path) -> Path | None:
    if data.name == IMAGENET.name:
        folders = [root / data.name / part for part in ("val", "train")]
        return next((folder for folder in folders if folder.is_dir()), None)
    return next((found.folder for split in data.counts if (found := find(data, root, split)) is not None), None)
