"""The model card: what was trained on what, how good it is, and nothing rounded up."""

import pytest

from smoothcert.training.card import write_card
from smoothcert.training.recipes import RECIPES

LOG = [
    {"epoch": 1, "loss": 2.0, "accuracy": 0.5, "learning_rate": 0.1, "seconds": 1.0},
    {"epoch": 2, "loss": 0.98765, "accuracy": 0.66699, "learning_rate": 0.01, "seconds": 2.0},
]


def record(recipe="gaussian", **changes):
    parsed = RECIPES.parse(recipe)
    common = {
        "architecture": "lenet",
        "classifier": None,
        "settings": {
            "sigma": 0.5,
            "recipe": {"name": parsed.name, **vars(parsed)},
            "epochs": 20,
            "batch_size": 256,
            "learning_rate": 0.05,
            "schedule": "cosine",
            "seed": 17,
        },
        "data": {"name": "mnist (train)", "inputs": 60_000},
        "versions": {"smoothcert": "0.1.0", "torch": "2.9"},
        "result": {
            "epochs": 20,
            "seconds": 1234.5,
            "test": {"data": "mnist (test)", "inputs": 10_000, "accuracy": 0.98779, "noisy_accuracy": 0.96999},
        },
    }
    return {**common, **changes}


@pytest.fixture
def card(tmp_path):
    def write(found, log=LOG, tables=()):
        write_card(tmp_path / "README.md", found, log, tables)
        return (tmp_path / "README.md").read_text("utf-8")

    return write


def test_the_card_says_what_was_trained(card):
    text = card(record("consistency:weight=5"))
    assert text.startswith("# lenet on mnist (train), consistency, σ = 0.5\n")
    for line in (
        "A base classifier for randomized smoothing, trained under Gaussian noise of σ = 0.5.",
        "| architecture | lenet |",
        "| data | mnist (train), 60,000 inputs |",
        "| recipe | consistency (Jeong & Shin 2020, arXiv:2006.04062) |",
        "| its settings | copies = 2, weight = 5.0, entropy = 0.5 |",
        "| epochs | 20, batches of 256 |",
        "| learning rate | 0.05, cosine |",
        "| seed | 17 |",
    ):
        assert line in text.splitlines()
    assert "smoothcert 0.1.0, torch 2.9" in text
    assert text.endswith("\n")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_its_paper_in_the_card(card, name):
    text = card(record(name, classifier="net" if name == "denoiser" else None))
    assert f"| recipe | {name} ({RECIPES[name].paper}) |" in text
    assert "arXiv:" in RECIPES[name].paper
    assert ("| its settings |" in text) == (name != "gaussian")


def test_a_recipe_that_only_an_earlier_version_had_is_named_in_the_card(card):
    found = record()
    found["settings"]["recipe"] = {"name": "adaptive", "steps": 2}
    lines = card(found).splitlines()
    assert "| recipe | adaptive |" in lines
    assert "| its settings | steps = 2 |" in lines


def test_accuracy_is_rounded_down_and_not_called_certified(card):
    text = card(record())
    assert "On mnist (test), 10,000 inputs: 98.7 % without noise, 96.9 % on one noisy copy of each." in text
    assert "Neither figure is certified." in text
    assert "loss 0.9877, 66.6 % of noisy copies right" in text


def test_the_card_says_that_nothing_is_certified_until_something_is(card):
    assert "Not measured yet" in card(record())
    text = card(record(), tables=["a table", ""])
    assert "Not measured yet" not in text
    assert "## Certified accuracy\n\na table\n" in text


def test_a_network_without_noise_or_test_says_so(card):
    found = record(result={"epochs": 20, "seconds": 1.0})
    found["settings"] = {**found["settings"], "sigma": 0.0}
    text = card(found, log=[])
    assert "trained under no noise" in text
    assert "without noise, " not in text
    assert "In the last epoch" not in text


def test_the_use_is_that_of_the_noise_it_was_trained_for(card):
    assert "smoothcert certify FOLDER DATA --sigma 0.5 --out RUN" in card(record())


def test_a_denoisers_card_says_how_a_denoiser_is_used(card):
    text = card(record("denoiser", classifier="net (sha256:1)", architecture="dncnn"))
    assert text.splitlines()[2].startswith("A denoiser for randomized smoothing")
    assert "| in front of | net (sha256:1) |" in text
    assert "--denoiser" in text.partition("## Use")[2]
    assert "certify FOLDER" not in text


def test_a_name_that_would_break_the_table_does_not(card):
    """Data may come from a file of any name."""
    found = record(data={"name": "a|b.npz", "inputs": 3})
    [line] = [line for line in card(found).splitlines() if line.startswith("| data |")]
    assert line.replace(r"\|", "").count("|") == 3


def test_a_card_that_cannot_be_written_leaves_the_old_one(card, tmp_path):
    before = card(record())
    broken = record()
    del broken["versions"]
    with pytest.raises(KeyError):
        write_card(tmp_path / "README.md", broken, LOG)
    assert (tmp_path / "README.md").read_text("utf-8") == before
    assert [one.name for one in tmp_path.iterdir()] == ["README.md"]
