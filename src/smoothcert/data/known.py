"""The standard data sets: what they hold, where their files lie, what these must hash to, where they are published.

The MD5 sums are the publishers' own; they show damage, not malice, for which MD5 is too weak.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from smoothcert.data.names import printable
from smoothcert.errors import InputError


@dataclass(frozen=True, slots=True)
class Layout:
    """One customary way to lay the files out: in which folders, and which files a split consists of."""

    kind: str
    folders: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Download:
    """A file to fetch: its path below the address, its size in bytes, its checksum, and its split (None for all)."""

    file: str
    size: int
    checksum: str
    """In hexadecimal: the publisher's MD5 sum (32 digits), or a SHA-256 sum (64 digits)."""
    split: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A standard data set."""

    name: str
    counts: Mapping[str, int]
    shape: tuple[int, ...] | None
    classes: tuple[str, ...] | None = None
    layouts: tuple[Layout, ...] = ()
    url: str = ""
    downloads: tuple[Download, ...] = ()
    unpacked: int = 0
    """At most this many bytes are in the downloaded archive, or 0 where the downloads are the files themselves."""
    md5: Mapping[str, str] | None = None
    """By file name, of what is in the file; for `.gz`, of what it unpacks to."""


@dataclass(frozen=True, slots=True)
class Found:
    """The files of one split on this machine."""

    kind: str
    folder: Path
    files: tuple[Path, ...]


_DIGITS = tuple("0123456789")
_IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_CIFAR10 = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_SVHN = {split: (f"{split}_32x32.mat",) for split in ("train", "test", "extra")}

MNIST = Known(
    "mnist",
    {"train": 60_000, "test": 10_000},
    (1, 28, 28),
    _DIGITS,
    (Layout("idx", ("", "MNIST/raw", "raw"), _IDX),),
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        Download("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "train"),
        Download("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432", "train"),
        Download("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3", "test"),
        Download("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c", "test"),
    ),
    md5={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
)
FASHION_MNIST = Known(
    "fashion-mnist",
    {"train": 60_000, "test": 10_000},
    (1, 28, 28),
    tuple(_FASHION.split(",")),
    (Layout("idx", ("", "FashionMNIST/raw", "raw"), _IDX),),
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        Download("train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "train"),
        Download("train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe", "train"),
        Download("t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79", "test"),
        Download("t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310", "test"),
    ),
    md5={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)
CIFAR10 = Known(
    "cifar10",
    {"train": 50_000, "test": 10_000},
    (3, 32, 32),
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    (
        Layout(
            "binary",
            ("cifar-10-batches-bin", ""),
            {split: tuple(f"{file}.bin" for file in files) for split, files in _CIFAR10.items()},
        ),
        Layout("python", ("cifar-10-batches-py", ""), _CIFAR10),
    ),
    "https://www.cs.toronto.edu/~kriz/",
    (Download("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),),
    unpacked=184_400_000,
    md5={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)
CIFAR100 = Known(
    "cifar100",
    {"train": 50_000, "test": 10_000},
    (3, 32, 32),
    None,
    (
        Layout("binary", ("cifar-100-binary", ""), {"train": ("train.bin",), "test": ("test.bin",)}),
        Layout("python", ("cifar-100-python", ""), {"train": ("train",), "test": ("test",)}),
    ),
    "https://www.cs.toronto.edu/~kriz/",
    (Download("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),),
    unpacked=184_500_000,
    md5={
        "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
        "test.bin": "4499cfba6c016c1be1438163640a0898",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
)
SVHN = Known(
    "svhn",
    {"train": 73_257, "test": 26_032, "extra": 531_131},
    (3, 32, 32),
    _DIGITS,
    (Layout("mat", ("", "SVHN"), _SVHN),),
    "http://ufldl.stanford.edu/housenumbers/",
    (
        Download("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373", "train"),
        Download("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3", "test"),
        Download("extra_32x32.mat", 1_329_278_602, "a93ce644f1a588dc4d68dda5feec44a7", "extra"),
    ),
    md5={
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        "extra_32x32.mat": "a93ce644f1a588dc4d68dda5feec44a7",
    },
)
DIGITS = Known("digits", {"train": 1_297, "test": 500}, (1, 8, 8), _DIGITS)
IMAGENET = Known("imagenet", {"train": 1_281_167, "val": 50_000}, None, url="https://image-net.org/download.php")

KNOWN: dict[str, Known] = {one.name: one for one in (DIGITS, MNIST, FASHION_MNIST, CIFAR10, CIFAR100, SVHN, IMAGENET)}


def canonical_name(source: str) -> str | None:
    """The name in KNOWN that `source` spells in one of the usual ways, or None."""
    return spelt_among(source, KNOWN)


def spelt_among(source: str, names: Collection[str]) -> str | None:
    """The one of `names` that `source` spells, whatever its case, hyphens and underscores; None if there is none."""
    bare = {name.replace("-", ""): name for name in names}
    return bare.get(source.strip().lower().replace("-", "").replace("_", ""))


def known(name: str) -> Known:
    """The data set of this name; InputError naming the nearest one if there is none."""
    spelt = canonical_name(name)
    if spelt is None:
        raise unknown_name(name, KNOWN)
    return KNOWN[spelt]


def unknown_name(name: str, names: Collection[str]) -> InputError:
    """The error for a name that is none of `names`, with the nearest of them."""
    near = get_close_matches(name.lower(), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"Expected a data set, one of {', '.join(names)}, got '{printable(name)}'.{hint}")


def find(data: Known, root: Path, split: str) -> Found | None:
    """Where the files of a split lie under `root`, in the first layout that has all of them."""
    for layout in data.layouts:
        for folder in _folders(data, layout, root):
            files = [_present(folder / name) for name in layout.files[split]]
            if all(files):
                return Found(layout.kind, folder, tuple(file for file in files if file is not None))
    return None


def expected_files(data: Known, root: Path, split: str) -> str:
    """In words, which files `find` looks for and where."""
    ways = [f"{', '.join(layout.files[split])} in {_home(data, layout, root)}" for layout in data.layouts]
    return " or ".join(ways)


def _home(data: Known, layout: Layout, root: Path) -> str:
    return printable(root / data.name / layout.folders[0])


def _folders(data: Known, layout: Layout, root: Path) -> list[Path]:
    """Under the data set's own folder; or right under the root, where the layout's folder names the data set."""
    named = [folder for folder in layout.folders if folder not in ("", "raw")]
    return [root / data.name / folder for folder in layout.folders] + [root / folder for folder in named]


def _present(path: Path) -> Path | None:
    packed = path.with_name(path.name + ".gz")
    return path if path.is_file() else packed if path.name.endswith("ubyte") and packed.is_file() else None


def check_split(data: Known, split: str) -> str:
    """Return `split` if the data set has it, else InputError saying which it has."""
    if split not in data.counts:
        raise InputError(f"Expected a split of {data.name}, one of {', '.join(data.counts)}, got '{printable(split)}'.")
    return split
