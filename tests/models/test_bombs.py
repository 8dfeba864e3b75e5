"""Small model files that ask for much memory, and files of another kind: a ModelError, in little memory."""

import io
import json
import struct
import tarfile
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from hostile_files import UNPACKED, assert_refused, outcomes, write_zeros
from smoothcert import models
from smoothcert.errors import ModelError
from smoothcert.models.architectures import build, small_cnn
from smoothcert.models.dncnn import DnCNN
from smoothcert.models.sealed import write_sealed


class Large:
    """Asks for 8 TB in a way that torch takes for safe."""

    def __reduce__(self):
        return (bytearray, (8 * 10**12,))


def saved(content):
    return lambda path: torch.save(content, path)


def weights_that_unpack(path):
    """An archive of torch.save in which a tensor is compressed."""
    plain, length = io.BytesIO(), 2**16
    torch.save({"0.weight": torch.zeros(length)}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            if name.endswith("/data/0"):
                write_zeros(new, name)
            else:
                more = struct.pack("<I", UNPACKED // 4)
                new.writestr(name, old.read(name).replace(b"J" + struct.pack("<I", length), b"J" + more))


def exported(path):
    program = torch.export.export(small_cnn(), (torch.rand(2, 1, 8, 8),))
    torch.export.save(program, path)


def program_that_unpacks(path):
    exported(path)
    with zipfile.ZipFile(path, "a") as archive:
        write_zeros(archive, "m/data/constants/tensor_9")


def program_with_weights_that_unpack(path):
    inner = path.with_name("inner.pt")
    weights_that_unpack(inner)
    plain = path.with_name("plain.pt2")
    exported(plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            sample = name.endswith("sample_inputs/model.pt")
            new.writestr(name, inner.read_bytes() if sample else old.read(name))


def program_with(text):
    def write(path):
        plain = path.with_name("plain.pt2")
        exported(plain)
        with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                new.writestr(name, text if name.endswith("models/model.json") else old.read(name))

    return write


def checkpoint(architecture="small-cnn", **about):
    def write(path):
        small = {"mlp-7": (4,)}.get(architecture)
        network = build(architecture, classes=10, input_shape=small)
        shape = list(small or {"small-cnn": (1, 8, 8), "resnet20": (3, 32, 32)}.get(architecture, (1, 28, 28)))
        described = {"architecture": architecture, "num_classes": 10, "input_shape": shape, **about}
        write_sealed(path, network.state_dict(), described)

    return write


def denoiser(path):
    about = {"architecture": "dncnn", "channels": 3, "depth": 1024, "width": 4096, "sigma": 0.25}
    write_sealed(path, DnCNN(3, depth=3, width=2).state_dict(), about)


def metadata(text):
    return lambda path: save_file({"w": torch.zeros(3)}, path, {"smoothcert": text})


def repeated(shape):
    """A tensor of one number, which takes 4 bytes in memory and in the file."""
    return torch.zeros(()).expand(shape)


def many_classes():
    return {**small_cnn().state_dict(), "7.weight": repeated((10**9, 64)), "7.bias": repeated((10**9,))}


def long_file(path):
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no space


LOAD, WEIGHTS = "models.load({!r})", "models.load({!r}, arch='small-cnn')"
BOMBS = {
    "weights.pt": (weights_that_unpack, WEIGHTS, "would unpack to"),
    "program.pt2": (program_that_unpacks, LOAD, "would unpack to"),
    "nested.pt2": (program_with_weights_that_unpack, LOAD, "would unpack to"),
    "deep.pt2": (program_with("[" * 10**5 + "]" * 10**5), LOAD, "not the JSON of a program"),
    "deeper.pt2": (program_with("[" * 800 + "]" * 800), LOAD, "Expected a program of torch.export"),
    "digits.pt2": (program_with('{"a": ' + "9" * 5000 + "}"), LOAD, "not the JSON of a program"),
    "list.pt2": (program_with('{"config": {"a": 1}}'), LOAD, "not the JSON of a program"),
    "classes.safetensors": (checkpoint(num_classes=10**12), LOAD, "needs 65,"),
    "digits.safetensors": (checkpoint(num_classes=10**4000), LOAD, "does not describe a network"),
    "sides.safetensors": (checkpoint("wong-cnn", input_shape=[1, 4 * 10**6, 4 * 10**6]), LOAD, "needs 3,"),
    "norms.safetensors": (checkpoint("lipschitz-cnn", input_shape=[1, 4 * 10**6, 4 * 10**6]), LOAD, "needs 3,"),
    "flat.safetensors": (checkpoint("mlp-7", input_shape=[10**6, 10**6]), LOAD, "values, got"),
    "denoiser.safetensors": (denoiser, "make_denoiser({!r}, 0.25)", "values, got"),
    "deep.safetensors": (metadata("[" * 10**5 + "]" * 10**5), LOAD, "damaged"),
    "deeper.safetensors": (metadata('{"a": ' + "[" * 900 + "]" * 900 + "}"), LOAD, "damaged"),
    "long.safetensors": (metadata('{"a": ' + "9" * 5000 + "}"), LOAD, "damaged"),
    "bytes.pt": (saved({"0.weight": Large()}), WEIGHTS, "Expected a file of torch.save"),
    "classes.pt": (saved(many_classes()), WEIGHTS, "values, got"),
    "meta.pt": (
        saved({name: one.to("meta") for name, one in small_cnn().state_dict().items()}),
        WEIGHTS,
        "Expected plain tensors",
    ),
    "sparse.pt": (
        saved({name: one.to_sparse() for name, one in small_cnn().state_dict().items()}),
        WEIGHTS,
        "Expected plain tensors",
    ),
    "long.pt": (long_file, WEIGHTS, "does not fit into memory"),
    "hole.safetensors": (long_file, LOAD, "does not fit into memory"),
}
SETUP = """
from smoothcert import models
from smoothcert.models.denoisers import make_denoiser
import smoothcert.models.sources
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    for name, (write, _, _) in BOMBS.items():
        write(folder / name)
        assert (folder / name).stat().st_blocks * 512 < 2**25, f"{name} is no small file"
    return outcomes({name: call.format(str(folder / name)) for name, (_, call, _) in BOMBS.items()}, SETUP)


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_asks_for_much_memory_is_refused_in_little(opened, name):
    assert_refused(opened[name], "ModelError", BOMBS[name][2])


@pytest.mark.parametrize("suffix", [".tar", ".pth", ".pt2", ".ckpt", ".safetensors"])
@pytest.mark.parametrize("unsafe", [False, True])
def test_a_tar_archive_is_no_model(tmp_path, suffix, unsafe):
    """Its first bytes are a name, which torch would take for the operations of a pickle, each letter for another."""
    path = tmp_path / f"m{suffix}"
    for first in "abcdehjlnpqrstuxXJKMRQB(.])}0123456789":
        with tarfile.open(path, "w") as archive:
            member = tarfile.TarInfo(f"{first}.txt")
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
        with pytest.raises(ModelError, match=r"m\.") as caught:
            models.load(path, arch="small-cnn", unsafe=unsafe)
        if suffix != ".safetensors":
            assert "tar archive. Unpack it" in str(caught.value)


@pytest.mark.parametrize("first", range(256))
def test_bytes_that_are_no_pickle_are_a_model_error(tmp_path, first):
    (tmp_path / "m.pth").write_bytes(bytes([first]) * 40 + b".")
    with pytest.raises(ModelError, match=r"m\.pth"):
        models.load(tmp_path / "m.pth", arch="small-cnn")


def test_an_onnx_model_is_hashed_with_the_weights_beside_it(tmp_path):
    from smoothcert.models.hashes import hash_bytes, hash_files

    (tmp_path / "a").write_bytes(b"12" * 10**6)
    (tmp_path / "b").write_bytes(json.dumps([1]).encode())
    assert hash_files(tmp_path / "a", tmp_path / "b") == hash_bytes(b"12" * 10**6, b"[1]")
