"""Files that are hostile, cut off, altered or of another kind (A57, A58): an explained ModelError, and no code runs."""

import contextlib
import io
import json
import pickle
import zipfile
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from smoothcert import models
from smoothcert.errors import ModelError
from smoothcert.models.checkpoints import read_blueprint, save_checkpoint
from smoothcert.models.exported import _is_arithmetic
from smoothcert.models.sealed import write_sealed


class Touch:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "code-ran"


@pytest.fixture(scope="module")
def archive(network, tmp_path_factory):
    """A program of torch.export, as bytes."""
    path = tmp_path_factory.mktemp("export") / "m.pt2"
    example = (torch.rand(2, 1, 8, 8),)
    program = torch.export.export(network, example, dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, path)
    return path.read_bytes()


def rewritten(content, change):
    """The archive with each member (name, data) replaced by what `change` makes of it; None leaves it out."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return out.getvalue()


def changed_json(edit):
    def change(name, data):
        if not name.endswith("models/model.json"):
            return data
        program = json.loads(data)
        edit(program)
        return json.dumps(program).encode()

    return change


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.ckpt", "m.joblib", "m.pkl"])
def test_a57_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path, mark, name):
    write = joblib.dump if name in ("m.joblib", "m.pkl") else torch.save
    write(Touch(mark), tmp_path / name)
    with pytest.raises(ModelError, match="--unsafe-load"):
        models.load(tmp_path / name)
    assert not mark.exists()


def test_a57_the_flag_runs_it(tmp_path, mark):
    """Else the test above would not show that the refusal is what kept the file from running."""
    torch.save(Touch(mark), tmp_path / "m.pt")
    with pytest.raises(ModelError):  # what it returns is no model
        models.load(tmp_path / "m.pt", unsafe=True)
    assert mark.exists()


def test_a_pickled_module_loads_behind_the_flag(network, tmp_path):
    torch.save(network, tmp_path / "m.pt")
    with pytest.raises(ModelError, match=r"torch\.nn\.modules.*--unsafe-load"):
        models.load(tmp_path / "m.pt")
    x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(models.load(tmp_path / "m.pt", unsafe=True)(x), network(x))


def set_guard(text):
    def edit(program):
        program["guards_code"] = [text]

    return edit


def set_target(text):
    def edit(program):
        program["graph_module"]["graph"]["nodes"][0]["target"] = text

    return edit


def set_size(text):
    def edit(program):
        def visit(value):
            if isinstance(value, dict):
                if "expr_str" in value:
                    value["expr_str"] = text
                for item in value.values():
                    visit(item)
            elif isinstance(value, list):
                for item in value:
                    visit(item)

        visit(program)

    return edit


HOSTILE = [
    "__import__('os').system('true')",
    "open('x','w')",
    "().__class__",
    "s0.__class__",
    "Symbol.__init__",
    "print",
    "9**9**9**9",
    "9**(9**9)",
    "9**99999999",
    "((((9**9)**9)**9)**9)**9",
    "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
    "Pow(Integer(9), Integer(9999999999))",
    "2** s0",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("edit", [set_guard, set_size], ids=["guard", "size"])
def test_a57_expressions_in_an_exported_program_are_arithmetic_or_refused(archive, tmp_path, text, edit):
    (tmp_path / "m.pt2").write_bytes(rewritten(archive, changed_json(edit(text))))
    with pytest.raises(ModelError, match=r"arithmetic on sizes.*--unsafe-load"):
        models.load(tmp_path / "m.pt2")


@pytest.mark.parametrize(
    "text", ["s0**2 - 4*s1", "Pow(Symbol('s0', integer=True), Integer(2))", "Max(1, s0) <= 2**3", "s77 // 2 + 1"]
)
def test_arithmetic_of_real_programs_is_allowed(text):
    assert _is_arithmetic(text)


def test_a57_torch_itself_would_run_such_an_expression(archive, tmp_path, mark):
    """Why the archive is searched: loading it would have run this."""
    path = tmp_path / "m.pt2"
    path.write_bytes(
        rewritten(archive, changed_json(set_size(f"__import__('pathlib').Path({str(mark)!r}).touch() or 1")))
    )
    with pytest.raises(ModelError):
        models.load(path)
    assert not mark.exists()
    with contextlib.suppress(ModelError):
        models.load(path, unsafe=True)
    assert mark.exists()


@pytest.mark.parametrize(
    "target", ["torch.hub.load", "torch.os.system", "math.floor", "_operator.methodcaller", "#x:y"]
)
def test_a57_a_program_that_calls_more_than_operators_is_refused(archive, tmp_path, target):
    (tmp_path / "m.pt2").write_bytes(rewritten(archive, changed_json(set_target(target))))
    with pytest.raises(ModelError, match="not an operator of ATen"):
        models.load(tmp_path / "m.pt2")


@pytest.mark.parametrize(
    "member", ["data/sample_inputs/model.pt", "data/constants/opaque_obj_0", "data/constants/custom_obj_0"]
)
def test_a57_a_pickle_inside_an_exported_program_is_refused(archive, tmp_path, mark, member):
    content = rewritten(archive, lambda name, data: None if name.endswith(member) else data)
    out, hostile = io.BytesIO(content), io.BytesIO()
    torch.save(Touch(mark), hostile)
    with zipfile.ZipFile(out, "a") as whole:
        whole.writestr(f"m/{member}", hostile.getvalue())
    (tmp_path / "m.pt2").write_bytes(out.getvalue())
    with pytest.raises(ModelError, match="--unsafe-load"):
        models.load(tmp_path / "m.pt2")
    assert not mark.exists()


def test_a57_weights_of_an_exported_program_are_not_unpickled(archive, tmp_path, mark):
    def change(name, data):
        if name.endswith("model_weights_config.json"):
            content = json.loads(data)
            next(iter(content["config"].values()))["use_pickle"] = True
            return json.dumps(content).encode()
        return pickle.dumps(Touch(mark)) if name.endswith("/weight_0") else data

    (tmp_path / "m.pt2").write_bytes(rewritten(archive, change))
    with pytest.raises(ModelError, match="--unsafe-load"):
        models.load(tmp_path / "m.pt2")
    assert not mark.exists()


# A58: damage


def checkpoint(network, folder, blueprint):
    save_checkpoint(folder / "m.safetensors", network, blueprint)
    return folder / "m.safetensors"


def weights(network, folder, _):
    torch.save(network.state_dict(), folder / "m.pt")
    return folder / "m.pt"


def onnx(network, folder, _):
    shapes = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(
        network,
        (torch.rand(2, 1, 8, 8),),
        folder / "m.onnx",
        dynamo=True,
        dynamic_shapes=shapes,
        external_data=False,
        verbose=False,
    )
    return folder / "m.onnx"


def exported(network, folder, _):
    torch.export.save(torch.export.export(network, (torch.rand(2, 1, 8, 8),)), folder / "m.pt2")
    return folder / "m.pt2"


MAKERS = [checkpoint, weights, onnx, exported]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", MAKERS, ids=lambda one: one.__name__)
def test_a58_a_file_cut_off_anywhere_is_a_model_error(network, blueprint, tmp_path, make):
    path = make(network, tmp_path, blueprint)
    content = path.read_bytes()
    for length in sorted(
        {0, 1, 7, 8, 9, 60, len(content) // 3, len(content) // 2, len(content) - 40, len(content) - 1}
    ):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"Expected|truncated|damaged"):
            models.load(path, arch=None if make is checkpoint else "small-cnn")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", MAKERS, ids=lambda one: one.__name__)
def test_a58_a_file_of_another_kind_is_a_model_error(network, blueprint, tmp_path, make):
    path = make(network, tmp_path, blueprint)
    rng = np.random.default_rng(0)
    for content in (
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"<html></html>" * 20,
        rng.bytes(1000),
        b"PK\x03\x04" + bytes(50),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError):
            models.load(path, arch="small-cnn")


def test_a58_every_flipped_bit_of_a_checkpoint_is_seen(network, blueprint, tmp_path):
    path = checkpoint(network, tmp_path, blueprint)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    rng = np.random.default_rng(1)
    text = range(len(content[:header].rstrip()))  # after it come spaces that fill the header up
    places = [*rng.choice(text, 60, replace=False), *rng.integers(header, len(content), 60)]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(ModelError):
            models.load(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [weights, exported], ids=lambda one: one.__name__)
def test_a58_a_flipped_bit_in_the_weights_of_an_archive_is_seen(network, blueprint, tmp_path, make):
    path = make(network, tmp_path, blueprint)
    content = path.read_bytes()
    place = content.index(network[0].bias.detach().numpy().tobytes()) + 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
    with pytest.raises(ModelError, match="damaged"):
        models.load(path, arch="small-cnn")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format 1"),
        ({"architecture": "resnet9000"}, "does not describe a network"),
        ({"num_classes": "ten"}, "does not describe a network"),
        ({"num_classes": 7}, "shape"),
        ({"surprise": 1}, "unknown surprise"),
        ({"architecture": "lenet", "input_shape": [1, 28, 28]}, "shape|not those of this architecture"),
    ],
)
def test_a58_metadata_that_does_not_describe_the_network_is_refused(network, tmp_path, change, said):
    good = {"architecture": "small-cnn", "num_classes": 10, "input_shape": [1, 8, 8]}
    write_sealed(tmp_path / "m.safetensors", network.state_dict(), {**good, **change})
    with pytest.raises(ModelError, match=said):
        models.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("text", ["no json", "[1]", "{}", '{"format": 1, "architecture": "small-cnn"}'])
def test_a58_metadata_without_its_hash_is_refused(network, tmp_path, text):
    save_file(network.state_dict(), tmp_path / "m.safetensors", {"smoothcert": text})
    with pytest.raises(ModelError, match="damaged"):
        models.load(tmp_path / "m.safetensors")


def test_a_checkpoint_tells_how_it_came_about(network, blueprint, tmp_path):
    assert read_blueprint(checkpoint(network, tmp_path, blueprint)) == blueprint
    save_file(network.state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match="not written by smoothcert"):
        models.load(tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match="without our metadata"):
        read_blueprint(tmp_path / "other.safetensors")
    loaded = models.load(tmp_path / "other.safetensors", arch="small-cnn")
    assert loaded.num_classes == 10
    with pytest.raises(ModelError, match="'small-cnn', not 'lenet'"):
        models.load(tmp_path / "m.safetensors", arch="lenet")


def test_what_could_not_be_loaded_again_is_not_saved(network, blueprint, tmp_path):
    with pytest.raises(ModelError, match="not those of this architecture"):
        save_checkpoint(tmp_path / "m.safetensors", nn.Linear(3, 2), blueprint)
    assert list(tmp_path.iterdir()) == []


def test_saving_and_loading_leave_the_callers_random_state_alone(network, blueprint, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    models.load(checkpoint(network, tmp_path, blueprint))
    assert torch.equal(torch.get_rng_state(), before)
