"""Small data sets in their standard layouts, real ones where they are on this machine, and a server to fetch from."""

from __future__ import annotations

import gzip
import http.server
import os
import pickle
import struct
import threading
import time
from pathlib import Path

import numpy as np

COUNT = 6


def random_images(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_idx(path, array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_binary(path, images, *labels):
    """CIFAR's binary version: label bytes, then the pixels of each image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [label.astype(np.uint8)[:, None] for label in labels]
    path.write_bytes(np.hstack([*columns, images.reshape(len(images), -1)]).tobytes())


def write_pickle(path, content, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def real_root():
    return Path(os.environ.get("SMOOTHCERT_DATA", Path.home() / ".cache" / "smoothcert"))


class Server:
    """Serves what tests put into `files`: bytes, or a function of the request."""

    def __init__(self):
        self.files, self.requests = {}, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                content = outer.files.get(self.path)
                if callable(content):
                    content(self)
                elif content is None:
                    self.send_error(404)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # clients that hang up are part of the tests
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def hangs_up(content, announced):
    """A server that promises more than it sends."""

    def send(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(announced))
        handler.end_headers()
        handler.wfile.write(content)

    return send


def dawdles(seconds):
    """A server that sends a little and then nothing for a while."""

    def send(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"some")
        handler.wfile.flush()
        time.sleep(seconds)

    return send


def write_image(path, seed=0, shape=(4, 5, 3), kind="PNG"):
    """A random image in a file; returned as [C, H, W]."""
    from PIL import Image

    pixels = random_images(shape, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, kind)
    return pixels.transpose(2, 0, 1)
