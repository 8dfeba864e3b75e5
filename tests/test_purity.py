import subprocess
import sys
from pathlib import Path

import pytest

import smoothcert.stats

# Whatever is added to the statistics is on the list by being there.
STATS = sorted(Path(smoothcert.stats.__file__).parent.glob("[!_]*.py"))
PURE = [
    "smoothcert",
    "smoothcert.errors",
    "smoothcert.checks",
    "smoothcert.records",
    "smoothcert.stats",
    *(f"smoothcert.stats.{path.stem}" for path in STATS),
    "smoothcert.streams",
    "smoothcert.noise",
]

BLOCKED = """
import importlib, sys
sys.modules["torch"] = None  # any import of torch now fails
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("modules", [*([name] for name in PURE), PURE], ids=[*PURE, "all together"])
def test_the_pure_half_is_imported_without_torch(modules):
    done = python(BLOCKED, *modules)
    assert done.returncode == 0, done.stderr


def test_the_statistics_are_on_the_list():
    assert {"bounds", "radii", "procedures"} <= {path.stem for path in STATS}


def test_the_block_does_block():
    done = python(BLOCKED, "smoothcert.sampling")
    assert done.returncode != 0
    assert "torch" in done.stderr


def test_the_public_names_of_the_pure_half_work_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from smoothcert import Bounds, Certificate, FixedN, Predict, Prediction, Votes, draws_for, max_radius\n"
        "assert draws_for(2.0, sigma=1.0, alpha=0.001) == 301\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
