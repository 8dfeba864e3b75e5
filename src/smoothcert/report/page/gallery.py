"""The gallery: inputs that went wrong, the least and the most robust ones, with their votes and noisy copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smoothcert.errors import SmoothcertError
from smoothcert.records import Votes, radius_text
from smoothcert.report.page.html import Html, element, join
from smoothcert.report.page.pictures import COPIES, Inputs, as_image, largest_side, pictures
from smoothcert.report.page.runs import Shown

_LEAST = 3  # of every run, however many runs there are
_TOP_CLASSES = 4
_SEVERITY = ("wrong", "abstained", "failed")


def gallery(runs: Sequence[Shown], inputs: Sequence[Inputs], size: int) -> Html:
    """About `size` inputs in all, of each run some."""
    if size == 0:
        return Html("")
    share = max(_LEAST, size // len(runs))
    side = largest_side(share * len(runs) * (1 + COPIES))
    parts = [_run_gallery(shown, found, share, side) for shown, found in zip(runs, inputs, strict=True)]
    return join(part for part in parts if part)


def _run_gallery(shown: Shown, inputs: Inputs, share: int, side: int) -> Html:
    if not shown.claims:
        return Html("")
    missing = [element("p", f"Without pictures: {inputs.missing}.", class_="aside")] if inputs.data is None else []
    groups: list[Html] = []
    for title, places in chosen(shown, share).items():
        cards = [_card(shown, inputs, place, side) for place in places]
        groups += [element("h4", title), element("div", *cards, class_="gallery")] if cards else []
    return element("section", element("h3", shown.name), *missing, *groups)


def chosen(shown: Shown, share: int) -> dict[str, list[int]]:
    """The places of the rows to show, by what they show, about a third each."""
    strength = _strength(shown)
    good = sorted(np.flatnonzero(shown.counted).tolist(), key=lambda place: (strength[place], place))
    bad = sorted(np.flatnonzero(~shown.counted).tolist(), key=lambda place: (_order(shown, place), place))
    most = min(share // 3, len(good) // 2)
    least = min(share // 3, len(good) - most)
    words = ("Least robust", "Most robust") if shown.certifies else ("Closest votes", "Clearest votes")
    failures = "Not certified as their true class" if shown.labelled else "Not certified"
    failures = failures if shown.certifies else failures.replace("certified", "answered")
    groups = {failures: bad[: share - most - least], words[0]: good[:least]}
    return {**groups, words[1]: good[len(good) - most :][::-1]}


def _order(shown: Shown, place: int) -> tuple[int, float]:
    """Wrong classes come first, those certified furthest at their head."""
    return _SEVERITY.index(shown.outcome(place)), -float(shown.radii[place])


def _strength(shown: Shown) -> list[float]:
    """How robust inputs are: by radius and, without one, by the lead in the votes."""
    if shown.certifies:
        return shown.radii.tolist()
    return [0.0 if votes is None else _lead(votes) for votes in map(shown.votes, range(len(shown.claims)))]


def _lead(votes: Votes) -> float:
    leader = votes.leader
    return 0.0 if leader is None else (votes.counts[leader] - votes.rival(leader)) / votes.n


# One input


def _card(shown: Shown, inputs: Inputs, place: int, side: int) -> Html:
    index = shown.indices[place]
    return element(
        "figure",
        _pictures(shown, inputs, place, side),
        element("figcaption", element("strong", f"Input {index}"), _facts(shown, place)),
        _votes(shown, place),
        id=f"input-{shown.number}-{index}",
        class_=f"input {shown.outcome(place)}",
    )


def _pictures(shown: Shown, inputs: Inputs, place: int, side: int) -> Html:
    if inputs.data is None or "error" in shown.run.rows[place]:
        return Html("")
    index = shown.indices[place]
    try:
        image = as_image(inputs.data[index], side)
    except (SmoothcertError, OSError):  # this one cannot be read any more
        image = None
    if image is None:
        return Html("")
    first, *copies = pictures(image, shown.run.sigma, index)
    images = [element("img", src=first, alt=f"Input {index}", class_="original")]
    images += [element("img", src=copy, alt=f"Noisy copy {k + 1}") for k, copy in enumerate(copies)]
    return element("div", *images, class_="pictures")


def _facts(shown: Shown, place: int) -> Html:
    claim, row = shown.claims[place], shown.run.rows[place]
    facts = [("true class", shown.class_name(row["true"]))] if shown.labelled else []
    if "error" in row:
        facts.append(("failed", str(row["error"])[:160]))
    else:
        facts.append(("answer", "abstains" if claim.label is None else shown.class_name(claim.label)))
        if shown.certifies and claim.label is not None:
            facts.append(("radius", radius_text(claim.radius)))
    return element("dl", *(element("div", element("dt", name), element("dd", text)) for name, text in facts))


def _votes(shown: Shown, place: int) -> Html:
    """Bars for the classes with the most votes, over all draws."""
    votes = shown.votes(place)
    if votes is None:
        return Html("")
    ranked = sorted(range(len(votes.counts)), key=lambda label: (-votes.counts[label], label))[:_TOP_CLASSES]
    lines = [(shown.class_name(label), votes.counts[label]) for label in ranked if votes.counts[label]]
    others = votes.n - votes.invalid - sum(count for _, count in lines)
    lines += [("others", others)] if others else []
    lines += [("no answer", votes.invalid)] if votes.invalid else []
    title = element("p", f"{votes.n:,} votes", class_="aside")
    return element("div", title, *(_bar(name, count, votes.n) for name, count in lines), class_="votes")


def _bar(name: str, count: int, total: int) -> Html:
    bar = element("span", element("i", style=f"width:{100 * count / total:.1f}%"), class_="bar", aria_hidden="true")
    return element("div", element("span", name), bar, element("span", f"{count:,}"))
