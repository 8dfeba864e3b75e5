import json
import pickle
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import torch
from torch import nn

from networks import votes
from smoothcert import Normalize, models
from smoothcert.errors import ModelError


class Service(BaseHTTPRequestHandler):
    """Answers a batch of images with labels alone: whether the upper half is brighter than the lower."""

    def do_POST(self):
        rows = np.frombuffer(self.rfile.read(int(self.headers["Content-Length"])), np.float32).reshape(-1, 2, 32)
        content = json.dumps((rows[:, 0].mean(1) > rows[:, 1].mean(1)).astype(int).tolist()).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def service():
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_remote_service_that_returns_labels_only_certifies(service, tmp_path):
    path = tmp_path / "remote_client.py"
    path.write_text(
        "import json, urllib.request\n"
        "def labels(batch):\n"
        f"    with urllib.request.urlopen({service!r}, batch.numpy().tobytes()) as answer:\n"
        "        return json.load(answer)\n"
    )
    with pytest.raises(ModelError, match="num_classes"):
        votes(models.load(f"{path}:labels"), np.zeros((1, 1, 8, 8), np.uint8))
    image = np.full((1, 8, 8), 100, np.uint8)
    image[:, :4] += 12
    [counts] = votes(models.load(f"{path}:labels", num_classes=2), image[None])
    p = 0.5 * (1 + float(torch.erf(torch.tensor(12 / 255 * 32**0.5 / (0.25 * 2**0.5) / 2**0.5))))
    assert counts[1] / 2_000 == pytest.approx(p, abs=0.05)


def test_a_package_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_models").mkdir()
    (tmp_path / "my_models" / "nets.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.flatten(1)[:, :3]\n"
        "ready = Net()\n"
        "def classify(batch):\n"
        "    return batch.flatten(1)[:, :4]\n"
        "def broken():\n"
        "    raise OSError('no weights here')\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, columns in (("Net", 3), ("ready", 3), ("classify", 4)):
        assert models.load(f"my_models.nets:{name}")(torch.rand(2, 1, 2, 2)).shape == (2, columns)
    for name, said in (
        ("broken", "no weights here"),
        ("nothing", "no such name"),
        ("number", "got int"),
    ):
        with pytest.raises(ModelError, match=said):
            models.load(f"my_models.nets:{name}")
    with pytest.raises(ModelError, match=r"Cannot import 'my_models\.none'"):
        models.load("my_models.none:x")


NETWORK = (
    "from dataclasses import dataclass\n"
    "import torch\n"
    "@dataclass\n"
    "class Size:\n"
    "    columns: 'int' = 3\n"
    "class Net(torch.nn.Module):\n"
    "    size = Size()\n"
    "    def forward(self, x):\n"
    "        return x.flatten(1)[:, : self.size.columns]\n"
    "def make():\n"
    "    return Net()\n"
)


def test_a_file_named_like_a_standard_module_leaves_that_alone(tmp_path):
    """In a process of its own, in which neither module is imported yet."""
    (tmp_path / "colorsys.py").write_text(NETWORK)  # rarely imported by anything
    (tmp_path / "json.py").write_text(NETWORK)
    code = (
        "import sys\n"
        "from smoothcert import models\n"
        "import smoothcert.models.sources\n"
        "modules, path = dict(sys.modules), list(sys.path)\n"
        "assert 'colorsys' not in modules\n"
        "for name in ('colorsys', 'json'):\n"
        f"    models.load({str(tmp_path)!r} + '/' + name + '.py:make')\n"
        "assert sys.path == path\n"
        "new = set(sys.modules) - set(modules)\n"
        f"strange = [n for n in new if {str(tmp_path)!r} in str(getattr(sys.modules[n], '__file__', ''))]\n"
        "assert len(strange) == 2 and all(n.startswith('smoothcert.') for n in strange), strange\n"
        "assert all(sys.modules[n] is modules[n] for n in modules)\n"
        "import colorsys, json\n"
        "assert json.loads('[1]') == [1] and colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_working_folder_is_on_the_path_only_while_a_model_is_made(tmp_path, monkeypatch):
    (tmp_path / "own_factory.py").write_text("def make():\n    import own_parts\n    return own_parts.Net()\n")
    (tmp_path / "own_parts.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert str(tmp_path) not in before
    assert models.load("own_factory:make")(torch.rand(2, 1, 2, 2)).shape == (2, 3)
    assert sys.path == before
    with pytest.raises(ModelError, match="Cannot import"):
        models.load("own_nothing:make")
    assert sys.path == before


def test_a_file_is_run_again_each_time_and_a_failure_leaves_nothing_behind(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(NETWORK)
    x = torch.rand(2, 1, 2, 2)
    assert models.load(f"{path}:Net")(x).shape == (2, 3)
    path.write_text(NETWORK.replace("= 3", "= 12 - 10"))
    first = models.load(f"{path}:Net")
    assert first(x).shape == (2, 2)
    path.write_text("raise OSError('not today')")
    with pytest.raises(ModelError, match="not today"):
        models.load(f"{path}:Net")
    pickle.dumps(first.network)  # its class is still found
    before = set(sys.modules)
    (tmp_path / "other.py").write_text("raise OSError('not today')")
    with pytest.raises(ModelError, match="not today"):
        models.load(f"{tmp_path / 'other.py'}:Net")
    assert set(sys.modules) == before


def test_a_network_from_a_file_can_be_sent_to_another_process(tmp_path):
    """As a run in several processes sends it, wherever the other process looks for modules."""
    (tmp_path / "json.py").write_text(NETWORK)
    (tmp_path / "net.pkl").write_bytes(pickle.dumps(models.load(f"{tmp_path / 'json.py'}:make")))
    code = (
        "import importlib, json, pickle, sys, torch\n"
        "from pathlib import Path\n"
        "import smoothcert.user_files\n"
        "importlib.invalidate_caches()\n"
        f"network = pickle.loads(Path({str(tmp_path / 'net.pkl')!r}).read_bytes()).network\n"
        "assert network(torch.rand(2, 1, 2, 2)).shape == (2, 3)\n"
        "assert json.loads('[1]') == [1]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_normalisation_is_seen_at_the_front_of_nested_modules():
    scaled = nn.Sequential(nn.Sequential(Normalize([0.5], [0.25])), nn.Flatten())
    assert "(x − (0.5)) / (0.25)" in models.load(scaled).normalization
    assert "(x −" not in models.load(nn.Sequential(nn.Flatten(), scaled)).normalization
