"""Dependencies point one way: a module may import what stands in lower storeys, never its own neighbours or above."""

import ast
from pathlib import Path

import pytest

import smoothcert

SOURCE = Path(smoothcert.__file__).parent
STOREYS = [
    {"errors"},
    {"allocator", "checks", "files", "folders", "lock", "options", "signals", "time_limit", "user_files"},
    {"config"},
    {"families"},
    {"records", "streams", "_grid_kernel"},
    {"stats"},
    {"noise"},
    {"inputs", "models", "data", "progress"},
    {"backends", "device_noise", "reclassification", "replay"},
    {"staging"},
    {"sampling"},
    {"tuning", "plan_cache", "worst_cases", "attacks", "baselines"},
    {"execution", "training"},
    {"smoothed"},
    {"inspection", "runs"},
    {"report"},
    {"cli"},
]
STOREY = {room: number for number, rooms in enumerate(STOREYS) for room in rooms}
FILES = sorted(p for p in SOURCE.rglob("*.py") if p.name != "__main__.py" and p != SOURCE / "__init__.py")


def rooms_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "smoothcert":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("smoothcert."))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_only_go_down(path):
    room = path.relative_to(SOURCE).with_suffix("").parts[0]
    assert room in STOREY, f"{room} has no place in the house: add it to STOREYS"
    for other in rooms_imported(path):
        if other != "__version__":
            assert other == room or STOREY[other] < STOREY[room], f"{room} must not import {other}"


def test_the_check_sees_imports():
    assert set(rooms_imported(SOURCE / "smoothed.py")) >= {"noise", "sampling", "stats", "errors"}
