"""timm and torchvision for real, in a process of their own.

They stand apart from our environment, since torchvision does not match a CPU build of torch: its compiled operators
are not registered, and importing it fails. Where `make` has put them aside, a stand-in registers these operators'
names; they belong to object detection and no classifier calls them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

VISION = Path(sys.prefix) / "vision"
pytestmark = pytest.mark.skipif(not (VISION / "timm").is_dir(), reason=f"timm and torchvision are not in {VISION}")

STAND_IN = """
import sys, torch
operators = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    operators.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
LOOK = """
from smoothcert import FixedN, Smoothed, models
import numpy as np
def look(source, network, mean, std, side):
    loaded = models.load(source)
    x = torch.rand(2, 3, side, side)
    normal = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), network.eval()(normal))
    assert loaded.input_shape == (3, side, side), loaded.input_shape
    image = np.full((3, side, side), 90, np.uint8)
    result = Smoothed(loaded, 0.25, seed=0).certify(image, FixedN(n=20, n0=5, alpha=0.1))
    assert sum(result.stages[1].counts) == 20
    return loaded
"""
TIMM = """
import timm
from pathlib import Path
network = timm.create_model("test_resnet", pretrained=False, num_classes=5)
timm.models.save_for_hf(network, sys.argv[1], safe_serialization=True)
about = network.pretrained_cfg
loaded = look("timm:local-dir:" + sys.argv[1], network, about["mean"], about["std"], about["input_size"][1])
assert (loaded.kind, loaded.num_classes, loaded.classes) == ("timm", 5, None)
network = timm.create_model("test_resnet", pretrained=False, num_classes=1000)
timm.models.save_for_hf(network, sys.argv[1] + "/whole", safe_serialization=True)
assert models.load("timm:local-dir:" + sys.argv[1] + "/whole").classes[1].startswith("goldfish")
"""
TORCHVISION = """
import os
from pathlib import Path
from torchvision.models import get_model, get_model_weights
network = get_model("squeezenet1_1", weights=None)
url = get_model_weights("squeezenet1_1").DEFAULT.url
folder = Path(os.environ["TORCH_HOME"], "hub", "checkpoints")
folder.mkdir(parents=True)
torch.save(network.state_dict(), folder / url.rsplit("/", 1)[1])
loaded = look("torchvision:squeezenet1_1", network, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224)
assert (loaded.kind, loaded.num_classes, loaded.classes[1]) == ("torchvision", 1000, "goldfish")
"""
OTHERS = """
import sys, torch
from smoothcert import models
from smoothcert.errors import ModelError, MissingExtraError
for source in ("timm:resnet18", "torchvision:resnet18", "hf:" + sys.argv[1]):
    try:
        models.load(source)
    except ModelError as error:
        print(error)
assert models.load(torch.nn.Flatten())(torch.rand(2, 3, 1, 1)).shape == (2, 3)
import sklearn.linear_model, numpy as np
estimator = sklearn.linear_model.LogisticRegression().fit(np.eye(3), [0, 1, 2])
assert models.load(estimator)(torch.rand(2, 3)).shape == (2, 3)
print("the others work")
"""


def python(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning:smoothcert", "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(VISION), "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_timm_network_certifies_with_its_own_normalisation(tmp_path):
    done = python(STAND_IN + LOOK + TIMM, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_torchvision_network_certifies_with_its_own_normalisation(tmp_path):
    done = python(STAND_IN + LOOK + TORCHVISION, TORCH_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_a_clear_error(tmp_path):
    unknown = """
from smoothcert import models
from smoothcert.errors import ModelError
for source in ("timm:no_such_net", "torchvision:no_such_net", "timm:resnet18", "torchvision:resnet18"):
    try:
        models.load(source)
    except ModelError as error:
        print(error)
"""
    done = python(STAND_IN + unknown, TORCH_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if not line.startswith("Downloading")]
    assert [line.split(":")[0] for line in said] == [
        "Cannot load timm",
        "Cannot load torchvision",
    ] * 2


def test_a_broken_torchvision_is_named_and_breaks_no_other_source(tmp_path):
    """Without the stand-in: as on a machine whose torchvision does not match its torch."""
    done = python(OTHERS, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "the others work"
    assert len(lines) == 4
    assert all("cannot be imported" in line for line in lines[:2])
