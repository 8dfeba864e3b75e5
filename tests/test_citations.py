"""Citations of Cohen et al. 2019 name items that the paper has, on the same subject; data name their source.

The paper is numbered as it compiles: lemmas share the theorems' counter, and the plots of Appendix I have no number.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for folder, pattern in [
        (".", "*.md"),
        ("docs", "**/*.md"),
        ("src", "**/*.py"),
        ("tests", "**/*.py"),
        ("benchmarks", "*.py"),
        ("reproduce", "*.py"),
    ]
    for path in (ROOT / folder).glob(pattern)
    if path.name not in {"CHANGELOG.md", "test_paper_page.py", Path(__file__).name}
)
# Each numbered item, and words of which a passage that cites it has one.
ITEMS = {
    "Theorem 1": "",
    "Theorem 2": "no larger|cannot be improved|first to change|assumes",
    "Lemma 3": "Neyman",
    "Lemma 4": "Neyman",
    "Lemma 5": "interval",
    "Theorem 6": "Bernstein",
    "Proposition 1": "PREDICT|smoothed classifier's or None",
    "Proposition 2": "CERTIFY|bounds hold",
    "Proposition 3": "linear",
    "Proposition 4": "linear",
    "Proposition 5": "linear",
    "Proposition 6": "infinit|∞|too small|everywhere",
    "Proposition 7": "resolution|average",
    "Figure 1": "illustration|level sets|density",
    "Figure 2": "illustration|noisy",
    "Figure 3": "illustration|worst",
    "Figure 4": "resolution",
    "Figure 5": "p_A|n draws",
    "Figure 6": "accuracy",
    "Figure 7": "Wong|dual|compare",
    "Figure 8": "Lecuyer|theorem-accuracy|projection|another n",
    "Figure 9": "illustration|proof",
    "Figure 10": "illustration|linear",
    "Figure 11": "illustration|linear",
    "Figure 12": "resolution",
    "Figure 13": "Tsuzuku|Zhang|compare",
    "Figure 14": "lower.bound",
    "Figure 15": "train",
    "Figure 16": "noise",
    "Figure 17": "noise",
    "Table 1": "ImageNet",
    "Table 2": "ImageNet",
    "Table 3": "CIFAR",
    "Table 4": "PREDICT",
    "Section 1": "",
    "Section 2": "",
    "Section 3": "",
    "Section 3.1": "radius",
    "Section 3.2": "PREDICT|CERTIFY",
    "Section 3.2.1": "PREDICT",
    "Section 3.2.2": "n draws|max_radius|CERTIFY",
    "Section 3.3": "augment|train|recipe",
    "Section 4": "accuracy|attack|projection|tight",
    "Section 5": "",
    "Section 6": "",
    "Appendix A": "proof",
    "Appendix B": "linear",
    "Appendix C": "PREDICT|CERTIFY",
    "Appendix C.1": "PREDICT",
    "Appendix C.2": "CERTIFY",
    "Appendix D": "bound",
    "Appendix E": "accuracy|table",
    "Appendix E.1": "accuracy|table|radi",
    "Appendix E.2": "PREDICT|answers",
    "Appendix F": "train",
    "Appendix G": "resolution",
    "Appendix H": "compar|bound|train",
    "Appendix H.1": "compar",
    "Appendix H.2": "bound",
    "Appendix H.3": "train",
    "Appendix I": "Lecuyer|Li et al",
    "Appendix I.1": "Lecuyer",
    "Appendix I.2": "Li et al|Rényi|order",
    "Appendix J": "compar|attack|network",
    "Appendix J.1": "compar",
    "Appendix J.2": "ImageNet|CIFAR",
    "Appendix J.3": "attack|cross-entropy",
    "Appendix K": "noise",
}
NUMBER = r"(?:\d+|[A-Z])(?:\.\d+)*\b"
CITED = (
    rf"(Theorem|Lemma|Proposition|Figure|Table|Section|Appendi)(?:s|x|ces)? ({NUMBER}(?:(?:,| and| to|–|-) ?{NUMBER})*)"
)
CITATION = re.compile(rf"(?P<author>\S+ \d{{4}}, )?{CITED}(?: and {CITED})?")
WIDTH = 400  # characters before and after a citation that are its passage


def cited(text):
    """Items that a text cites from the paper, each with its passage; items of works by other authors are left out."""
    text = re.sub(r"\s*\n\s*#? *", " ", text)
    for match in CITATION.finditer(text):
        if match["author"] and not text[: match.end("author")].endswith("Cohen et al. 2019, "):
            continue
        passage = text[max(match.start() - WIDTH, 0) : match.end() + WIDTH]
        _, *groups = match.groups()
        for kind, numbers in zip(groups[::2], groups[1::2], strict=True):
            for number in re.findall(NUMBER, numbers or ""):
                yield f"{'Appendix' if kind == 'Appendi' else kind} {number}", passage


def test_citations_are_found_and_those_of_other_works_are_not():
    text = "As in Cohen et al. 2019, Propositions 3 to 5 and Figure 9. Zhai et al. 2020,\n    Section 4 and Theorem 9."
    assert [item for item, _ in cited(text)] == ["Proposition 3", "Proposition 5", "Figure 9"]
    assert [item for item, _ in cited("Appendices D and H.2")] == ["Appendix D", "Appendix H.2"]


CITING = [path for path in FILES if any(cited(path.read_text("utf-8")))]


@pytest.mark.parametrize("path", CITING, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_citation_of_the_paper_is_about_what_it_cites(path):
    for item, passage in cited(path.read_text("utf-8")):
        assert item in ITEMS, f"{item}: the paper has none"
        assert re.search(ITEMS[item], passage, re.IGNORECASE), f"{item} is about something else: …{passage}…"


def test_most_of_the_paper_is_cited():
    """The search above finds what it is looking for."""
    found = {item for path in CITING for item, _ in cited(path.read_text("utf-8"))}
    assert {f"Proposition {number}" for number in range(1, 8) if number != 4} <= found
    assert {"Theorem 1", "Theorem 2", "Section 3.2.1", "Appendix J.3"} <= found


VOTES = "cohen_resnet110_cifar10_counts_test"


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if VOTES in path.read_text("utf-8")]
    + [ROOT / "docs" / name for name in ("draws.md", "figures.md", "results/published.md")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_who_uses_the_votes_of_the_papers_networks_says_who_sampled_them(path):
    assert "FireShadow05/accelerated_smoothing" in path.read_text("utf-8")
