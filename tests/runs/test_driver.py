import io
import sys

import numpy as np
import pytest

from smoothcert import runs, smoothed
from smoothcert.data import ArrayData
from smoothcert.errors import ResumeError
from smoothcert.models.architectures import small_cnn
from smoothcert.models.spec import ModelSpec
from smoothcert.runs.smoothing import run_dataset
from smoothcert.training.loop import seeded

DATA = ArrayData(np.random.default_rng(0).integers(256, size=(6, 1, 8, 8), dtype=np.uint8), None, None, "noise")
SETTINGS = runs.CertifySettings(sigma=0.5, n_max=500, seed=0, batch_size=32)


def test_no_draw_serves_twice(tmp_path, monkeypatch):
    """Not even those by which the chunks are measured: no row may rest on noise that was looked at before."""
    made, stream = [], smoothed.Stream

    def recorded(key, input_id, stage, question=""):
        made.append((input_id, stage))
        return stream(key, input_id, stage, question)

    monkeypatch.setattr(smoothed, "Stream", recorded)
    run = runs.certify_dataset(seeded(small_cnn, 0), DATA, tmp_path / "run", SETTINGS)
    used = [one for one in made if one[0].startswith("index:")]
    expected = [(f"index:{row['index']}", stage) for row in run.rows for stage in range(len(row["stages"]))]
    assert sorted(used) == sorted(expected)
    assert len(made) > len(used), "what was measured was not seen here"


def test_a_run_does_not_go_on_with_another_normalisation(tmp_path):
    network = seeded(small_cnn, 0)

    def run(mean, resume):
        spec = ModelSpec(source=network, settings={"mean": [mean], "std": [0.5]})
        return run_dataset(spec, DATA, SETTINGS, tmp_path / "run", resume=resume)

    run(0.1, resume=False)
    assert run(0.1, resume=True).complete
    with pytest.raises(ResumeError, match=r"model\.weights_hash"):
        run(0.1000001, resume=True)


@pytest.mark.parametrize("progress", [True, False])
def test_a_long_run_from_python_shows_how_far_it_is(tmp_path, monkeypatch, progress):
    monkeypatch.setattr("smoothcert.progress.PATIENCE", 0.0)
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    runs.certify_dataset(seeded(small_cnn, 0), DATA, tmp_path / "run", SETTINGS, progress=progress)
    assert ("draws" in screen.getvalue()) == progress
