"""Plans that were found on this machine, kept for next time."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from smoothcert import __version__
from smoothcert.backends import BACKENDS, PRECISIONS
from smoothcert.errors import SmoothcertError
from smoothcert.files import replacing
from smoothcert.folders import cache_root
from smoothcert.sampling import Plan


def plan_file(weights_hash: str, shape: tuple[int, ...], device: torch.device, precision: str) -> Path:
    """Where the plan for a model, a shape and this machine is kept."""
    about = {
        "weights": weights_hash,
        "shape": list(shape),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "precision": precision,
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": [__version__, str(torch.__version__), *map(_version, ("onnxruntime", "openvino"))],
    }
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    return cache_root() / "plans" / f"{name}.json"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def processor() -> str:
    """The processor's name, as well as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def remembered_plan(path: Path) -> Plan | None:
    """The plan in a file, if there is one that can be run here."""
    try:
        plan = Plan(**json.loads(path.read_text("utf-8"))["plan"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    known = plan.backend in BACKENDS and plan.precision in PRECISIONS
    sound = all(isinstance(n, int) and 1 <= n <= 2**16 for n in (plan.batch_size, plan.workers))
    return plan if known and sound and BACKENDS[plan.backend].missing() is None else None


def remember_plan(path: Path, plan: Plan, trials: Sequence[Mapping[str, Any]]) -> None:
    """Keep a plan, with what was tried; that it cannot be kept is no reason to stop."""
    content = {"plan": asdict(plan), "trials": list(trials)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(json.dumps(content, indent=1), "utf-8")
    except (OSError, SmoothcertError):
        return
