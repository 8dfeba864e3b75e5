"""The sections of the page that every run has: its card, its tables, its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smoothcert.records import NO_RADIUS, exact_decimal, floor_decimal, radius_text
from smoothcert.report.page.commands import repeat_command, repeating_needs, verify_command
from smoothcert.report.page.curve import STYLES
from smoothcert.report.page.html import Html, element, join, safe, table
from smoothcert.report.page.runs import Shown, alpha_text, percent
from smoothcert.report.page.words import noise_in_words, procedure_in_words
from smoothcert.runs.scope import certified_margin, inputs_in_words

_MANY_CLASSES = 20
_MANY_INDICES = 24
_MANY_ROWS = 200


# Headline


def card(shown: Shown, radius: float) -> Html:
    """What a run says in one number and one sentence, and the settings it was made with."""
    return element(
        "article",
        element("h2", key(shown), shown.name),
        _number(shown, radius),
        element("dl", *(element("div", element("dt", name), element("dd", text)) for name, text in _facts(shown))),
        class_="card",
    )


def key(shown: Shown) -> Html:
    """The run's line in the curve, to know it by."""
    line = element("path", d="M0 5H34", class_=f"curve style-{shown.number % STYLES}")
    drawing = element("svg", line, viewBox="0 0 34 10", class_="key", aria_hidden="true")
    return drawing if shown.certifies else Html("")


def _number(shown: Shown, radius: float) -> Html:
    """The headline: a share, rounded down, and what it is a share of."""
    rows = len(shown.claims)
    if rows == 0:
        return element("p", "No input is done yet.", class_="headline")
    kind = "are answered with their true class" if shown.labelled else "are answered"
    share: float | None = float(np.mean(shown.counted))
    if shown.certifies:
        share = shown.accuracy(radius)
        kind = _certified_kind(shown, radius)
    if share is None:
        return element("p", f"Radius {exact_decimal(radius)} was not tested.", class_="headline")
    number = element("span", percent(share), class_="big")
    return element("p", number, f" of {rows:,} inputs of {shown.data_name} {kind}.", class_="headline")


def _certified_kind(shown: Shown, radius: float) -> str:
    kind = "have their true class certified" if shown.labelled else "have a class certified"
    if margin := certified_margin(shown.run):
        kind += f" with a lead of at least {exact_decimal(margin)} in probability"
    if radius == 0:
        kind += f" ({NO_RADIUS})"
    else:
        whose = "network's" if shown.deterministic else "smoothed classifier's"
        kind += f" within L2 radius {exact_decimal(radius)}: no perturbation of smaller norm changes the {whose} answer"
    return kind + (", as the log says" if shown.imported else "")


def _facts(shown: Shown) -> list[tuple[str, object]]:
    values, counts, rows = shown.values, shown.count(), len(shown.claims)
    facts: list[tuple[str, object]] = [
        ("Certainty", f"each statement is false with probability at most {alpha_text(values['alpha'])}, per input"),
        ("Procedure", procedure_in_words(shown)),
        ("Draws", f"{shown.draws:,} in all, {shown.draws / rows:,.0f} per input" if shown.draws else "not recorded"),
        ("Smoothing", f"σ = {values['sigma']:g}, {noise_in_words(shown)}"),
    ]
    if shown.deterministic:
        facts = [("Certainty", "deterministic: each statement is true"), ("Procedure", procedure_in_words(shown))]
    if shown.certifies:
        facts.append(("Mean radius", f"{_average(shown)} (inputs without certificate as 0)"))
    wrong = f"; {counts['wrong']:,} with another class" if shown.labelled else ""
    failed = f"; {counts['failed']:,} failed" if counts["failed"] else ""
    verb = "certified" if shown.certifies else "answered"
    right = f"{counts['right']:,} {verb} {'with their true class' if shown.labelled else ''}".rstrip()
    facts.append(("Inputs", f"{rows:,}: {right}{wrong}; {counts['abstained']:,} abstained{failed}"))
    facts.append(("Selection", inputs_in_words(shown.run)))
    facts.append(("Model", _model(shown)))
    return facts


def _average(shown: Shown) -> str:
    """The average radius; that of a grid run says that it is another quantity."""
    average = floor_decimal(shown.average_radius, 3)
    return average if shown.tested is None else f"{average}, of tested radii only"


def _model(shown: Shown) -> Html:
    model = shown.values["model"]
    weights = model.get("weights_hash")
    short = join([", weights ", element("code", str(weights)[:19] + "…")]) if weights else safe("")
    recipe = safe(f", trained by {model['recipe']}" if model.get("recipe") else "")
    by, _, content = ((shown.values.get("plan") or {}).get("executed") or "").partition("sha256:")
    run_by = safe(f"; run by {by}{content[:12]}…" if by else "")
    return join([element("code", model.get("source") or "unknown"), recipe, short, run_by])


# Tables


def accuracy_table(runs: Sequence[Shown], radii: Sequence[float]) -> Html:
    """Certified accuracy of all runs at some radii."""
    rows = [
        [
            join([key(shown), shown.name]),
            *(percent(shown.accuracy(radius)) for radius in radii),
            _average(shown),
        ]
        for shown in runs
    ]
    what = "certified as their true class" if all(shown.labelled for shown in runs) else "certified"
    caption = f"Share of inputs {what} within at least each L2 radius, rounded down"
    if any(shown.accuracy(radius) is None for shown in runs for radius in radii):
        caption += "; – where the run did not test it"
    return table(["radius", *map(exact_decimal, radii), "average radius"], rows, caption=caption, class_="numbers")


def class_table(shown: Shown, radii: Sequence[float]) -> Html:
    """A run by true class; in a drawer where the classes are many."""
    truths = np.array([-1 if truth is None else truth for truth in shown.truths])
    present = sorted({int(truth) for truth in truths if truth >= 0})
    head = ["true class", "inputs", *(f"≥ {exact_decimal(radius)}" for radius in radii if shown.certifies)]
    head += [] if shown.certifies else ["right"]
    rows = [_class_row(shown, label, truths == label, radii) for label in present]
    caption = f"{shown.name}: by true class" + (", certified within at least each radius" if shown.certifies else "")
    drawn = table([*head, "wrong class", "abstained", "failed"], rows, caption=caption, class_="numbers")
    if len(present) <= _MANY_CLASSES:
        return drawn
    return element("details", element("summary", f"{shown.name}: {len(present):,} classes"), drawn)


def _class_row(shown: Shown, label: int, where: np.ndarray, radii: Sequence[float]) -> list[str]:
    counts, total = shown.count(where), int(where.sum())
    shares: list[float | None] = (
        [shown.accuracy(radius, where) for radius in radii] if shown.certifies else [counts["right"] / total]
    )
    others = [str(counts[name]) for name in ("wrong", "abstained", "failed")]
    return [shown.class_name(label), f"{total:,}", *map(percent, shares), *others]


def unanswered_table(shown: Shown) -> Html:
    """The inputs of a run without radii that did not get their true class."""
    places = np.flatnonzero(~shown.counted).tolist()
    rows = [
        [
            str(shown.indices[k]),
            shown.class_name(shown.truths[k]),
            shown.class_name(shown.claims[k].label),
            shown.outcome(k),
        ]
        for k in places[:_MANY_ROWS]
    ]
    more = len(places) - len(rows)
    rest = [element("p", f"and {more:,} more, in the run's own file", class_="aside")] if more else []
    if not places:
        return element("p", f"{shown.name}: every input got {'its true class' if shown.labelled else 'an answer'}.")
    title = f"{shown.name}: {len(places):,} inputs without {'their true class' if shown.labelled else 'an answer'}"
    drawn = table(["input", "true class", "answer", "outcome"], rows, caption=title)
    return element("details", element("summary", title), drawn, *rest)


# Evidence


def repeating(shown: Shown) -> Html:
    """How to make a run again, and how to check it."""
    if shown.run.retirement is not None:
        return element("section", element("h3", shown.name), element("p", f"This run was {shown.run.retirement}."))
    return element(
        "section",
        element("h3", shown.name),
        element("p", "To make it again:"),
        _command(repeat_command(shown)),
        element("ul", *(element("li", line) for line in repeating_needs(shown))),
        element("p", _no_votes() if shown.imported else _to_check(shown)),
        Html("") if shown.imported else _command(verify_command(shown)),
    )


def _to_check(shown: Shown) -> str:
    if shown.deterministic:
        return "To check what the run can show by itself (with --again, bounds are computed once more):"
    return "To check every claim against the recorded votes:"


def _no_votes() -> str:
    return "A log without votes cannot be verified: only the code and the settings that wrote it can be run again."


def _command(text: str) -> Html:
    return element("pre", element("code", text))


def manifest(shown: Shown) -> Html:
    """A run's manifest in a drawer; a long list of inputs is shortened."""
    values = dict(shown.values)
    indices = values["indices"]
    if len(indices) > _MANY_INDICES:
        values["indices"] = f"{len(indices):,} inputs, from {indices[0]} to {indices[-1]}; run.json has the list"
    summary = element("summary", f"{shown.name}: run.json, run ", element("code", shown.run.manifest.run_id[:16]))
    return element("details", summary, element("pre", element("code", join(_json_lines(values), "\n"))))


def _json_lines(values: Mapping[str, Any]) -> list[str]:
    """Pretty JSON: a line for every name, and for every name within, but none for every item of a list."""

    def text(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    lines = []
    for name, value in values.items():
        inner = [f"    {text(key)}: {text(one)}," for key, one in value.items()] if isinstance(value, Mapping) else []
        lines += (
            [f"  {text(name)}: {{", *_last_comma_off(inner), "  },"] if inner else [f"  {text(name)}: {text(value)},"]
        )
    return ["{", *_last_comma_off(lines), "}"]


def _last_comma_off(lines: list[str]) -> list[str]:
    return [*lines[:-1], lines[-1].removesuffix(",")]


def radius_note(shown: Sequence[Shown]) -> str:
    """How far the furthest certificate goes, and where curves end for another reason."""
    largest = max((float(one.radii[one.counted].max(initial=0.0)) for one in shown), default=0.0)
    note = f"The largest radius certified is {radius_text(largest)}." if largest > 0 else "No radius is certified."
    if any(one.tested is not None for one in shown):
        note += (
            " A run that tested some radii has a curve that ends at the last of them, beyond which nothing is known;"
            " between two of them it is drawn at the height of the next, a lower bound."
        )
    return note
