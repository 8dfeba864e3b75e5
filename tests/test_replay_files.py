import json

import numpy as np
import pytest

from smoothcert.cli import main
from smoothcert.errors import ConfigError, InputError
from smoothcert.replay import load_votes, replay
from smoothcert.stats.procedures import FixedN


def certificates(path, *rows):
    lines = [{"sigma": s, "stages": [{"counts": c, "invalid": i, "ties": 0}]} for s, c, i in rows]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_draws_without_an_answer_are_not_silently_left_out(tmp_path):
    with pytest.raises(InputError, match="400 without one"):
        load_votes(certificates(tmp_path / "v.jsonl", (0.25, [600, 0], 400)))


def test_votes_of_other_noise_levels_are_not_mixed_in(tmp_path):
    path = certificates(tmp_path / "v.jsonl", (0.25, [900, 100], 0), (0.5, [500, 500], 0))
    assert load_votes(path, sigma=0.5).tolist() == [[500, 500]]
    for sigma in (None, 0.12):
        with pytest.raises(InputError, match=r"got certificates at 0\.25, 0\.5"):
            load_votes(path, sigma=sigma)


def test_the_command_replays_the_rows_of_its_sigma_alone(tmp_path, capsys):
    path = certificates(tmp_path / "v.jsonl", (0.25, [900, 100], 0), (0.5, [500, 500], 0))
    assert main(["replay", str(path), "--sigma", "0.25", "--n-max", "1000"]) == 0
    assert capsys.readouterr().out.startswith("1 inputs")


def test_a_broken_npz_is_refused_in_one_line(tmp_path, capsys):
    path = tmp_path / "v.npz"
    path.write_bytes(b"PK\x03\x04 broken")
    assert main(["replay", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="`seed`"):
        replay(np.array([[9, 1]]), lambda _: FixedN(n=1000), sigma=0.25, seed=-1)
