import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import torch
from torch import nn

from networks import votes
from smoothcert import Normalize, Projected, models
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


def test_normalisation_is_seen_behind_a_projection():
    projection = Projected(torch.eye(4).view(4, 1, 2, 2))
    scaled = nn.Sequential(Normalize([0.5], [0.25]), nn.Flatten())
    assert "(x − (0.5)) / (0.25)" in models.load(nn.Sequential(projection, scaled)).normalization
    assert "(x −" not in models.load(nn.Sequential(projection)).normalization
