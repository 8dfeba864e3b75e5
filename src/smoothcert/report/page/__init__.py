"""The report: runs as one page of HTML that needs nothing else, recomputed from their votes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from smoothcert import __version__
from smoothcert.checks import check_count
from smoothcert.data.dataset import Dataset
from smoothcert.errors import ConfigError, OutputError
from smoothcert.files import check_writable, replacing
from smoothcert.report.page import sections
from smoothcert.report.page.curve import curve, curve_data
from smoothcert.report.page.gallery import gallery as draw_gallery
from smoothcert.report.page.html import Html, element, embedded_json, join, safe
from smoothcert.report.page.pictures import Inputs, find_inputs
from smoothcert.report.page.runs import Shown, shown_runs
from smoothcert.report.page.scale import headline_radius, table_radii
from smoothcert.report.page.words import guaranteed, not_guaranteed, notices
from smoothcert.runs.directory import Run

GALLERY = 24
_MOST = 400
_MARK = '<meta name="generator" content="smoothcert'
_CLASS_RADII = 6


def write_report(
    runs: Sequence[Run],
    out: Path,
    *,
    images: bool = True,
    data: str | Path | Dataset | None = None,
    gallery: int = GALLERY,
) -> list[str]:
    """Write one self-contained page about `runs`, and return notices of what is missing or amiss in them.

    Every claim is computed anew from the votes; where that gives less than what is recorded, the page has the less.

    Args:
        runs: opened runs of any kind, complete or not.
        out: a file that ends in .html; one that is there is replaced only if it is such a report.
        images: show pictures of the inputs, from the data set that the run names if it is here and still the same.
        data: the data set, or where it is, if that cannot be told from the run.
        gallery: how many inputs to show, of all runs together; 0 for none.
    """
    check_report_path(out)
    check_count("gallery", gallery, least=0, most=_MOST)
    if not runs:
        raise ConfigError("Expected at least one run to report on, got none.")
    for run in runs:
        if run.attacks:
            raise ConfigError(f"{run.path} holds attacks, which are no certificates: see `smoothcert show`.")
    inputs = find_inputs(runs, data) if images and gallery else [Inputs(None, "left out as asked for")] * len(runs)
    shown = shown_runs(runs)
    page = _page(shown, inputs, gallery)
    with replacing(out) as partial:
        partial.write_bytes(page.encode("utf-8", "backslashreplace"))
    missing = dict.fromkeys(one.missing for one in inputs if one.data is None and images and gallery)
    return [*notices(shown), *(f"without pictures: {reason}" for reason in missing)]


def check_report_path(path: Path) -> None:
    """Raise the error that writing a report to `path` would end in; only another report is ever overwritten."""
    if path.suffix.lower() != ".html":
        raise ConfigError(f"Expected a file name that ends in .html, got {path.name!r}.")
    check_writable(path)
    if os.path.lexists(path) and not path.is_file():
        raise OutputError(f"Cannot write {path}: it is no ordinary file. Choose another --out.")
    if path.is_file() and not _is_report(path):
        raise ConfigError(f"{path} is there and is no report of smoothcert's, so it stays. Choose another --out.")


def _is_report(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _MARK.encode() in file.read(2000)
    except OSError as error:
        raise OutputError(f"Cannot replace {path}: {error.strerror}.") from error


def _asset(name: str) -> str:
    return files("smoothcert.report.page").joinpath("assets", name).read_text("utf-8")


def _page(runs: Sequence[Shown], inputs: Sequence[Inputs], gallery: int) -> str:
    certifying = [shown for shown in runs if shown.certifies]
    return Template(_asset("page.html")).substitute(
        version=safe(__version__),
        title=safe(_title(runs)),
        style=_asset("page.css"),
        script=_asset("page.js"),
        data=embedded_json(curve_data(certifying, headline_radius(runs))),
        nav=_nav(runs, gallery),
        notices=join(element("p", line, class_="notice", role="note") for line in notices(runs)),
        cards=join(sections.card(shown, headline_radius(runs)) for shown in runs),
        accuracy=_accuracy(certifying, table_radii(runs)),
        predictions=_predictions([shown for shown in runs if not shown.certifies]),
        classes=_classes(runs),
        gallery=_gallery(runs, inputs, gallery),
        guaranteed=join(guaranteed(runs)),
        not_guaranteed=join(not_guaranteed(runs)),
        repeating=join(sections.repeating(shown) for shown in runs),
        manifests=join(sections.manifest(shown) for shown in runs),
    )


def _title(runs: Sequence[Shown]) -> str:
    names = dict.fromkeys(shown.data_name for shown in runs)
    what = "Certified robustness" if any(shown.certifies for shown in runs) else "Smoothed predictions"
    return f"{what}: {', '.join(names)}"


def _nav(runs: Sequence[Shown], gallery: int) -> Html:
    links = {
        "accuracy": "Certified accuracy" if any(shown.certifies for shown in runs) else "",
        "predictions": "" if all(shown.certifies for shown in runs) else "Predictions",
        "classes": "By class" if any(shown.labelled for shown in runs) else "",
        "gallery": "Inputs" if gallery and any(shown.claims for shown in runs) else "",
        "guarantee": "What is guaranteed",
        "repeat": "Repeat and verify",
        "manifest": "Manifest",
    }
    return join(element("a", title, href=f"#{anchor}") for anchor, title in links.items() if title)


def _section(anchor: str, title: str, *content: object) -> Html:
    return element("section", element("h2", title, id=anchor), *content)


def _accuracy(runs: Sequence[Shown], radii: Sequence[float]) -> Html:
    if not runs:
        return Html("")
    return _section(
        "accuracy",
        "Certified accuracy",
        element("p", sections.radius_note(runs), class_="aside"),
        curve(runs),
        Html(_asset("picker.html")),
        sections.accuracy_table(runs, radii),
    )


def _predictions(runs: Sequence[Shown]) -> Html:
    if not runs:
        return Html("")
    note = (
        "These runs answer with a class and have no radius: nothing is claimed about other inputs than the ones given."
    )
    return _section("predictions", "Predictions", element("p", note), *map(sections.unanswered_table, runs))


def _classes(runs: Sequence[Shown]) -> Html:
    labelled = [shown for shown in runs if shown.labelled]
    if not labelled:
        return Html("")
    radii = table_radii(runs)[:_CLASS_RADII]
    return _section("classes", "By class", *(sections.class_table(shown, radii) for shown in labelled))


def _gallery(runs: Sequence[Shown], inputs: Sequence[Inputs], size: int) -> Html:
    drawn = draw_gallery(runs, inputs, size)
    if not drawn:
        return Html("")
    if all(shown.deterministic for shown in runs):
        return _section("gallery", "Inputs", drawn)
    note = (
        "Votes are those of all draws, pilots included. The noisy copies were drawn for this page from a fixed seed, "
        "at each run's noise level; they are not the draws that voted. They are cut off at black and white for "
        "display only: the network sees what lies beyond. Large pictures are shown with fewer pixels."
    )
    return _section("gallery", "Inputs", element("p", note, class_="aside"), drawn)
