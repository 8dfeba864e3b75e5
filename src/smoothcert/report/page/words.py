"""The sentences of the page: how claims were come to, what is guaranteed and what is not, what is amiss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smoothcert.records import ceil_decimal
from smoothcert.report.page.html import Html, element
from smoothcert.report.page.runs import Shown, alpha_text
from smoothcert.runs.scope import certified_margin, margin_in_words

Points = tuple[tuple[str, str], ...]


_METHODS = {
    "lipschitz": "the margin over the product of the layers' norms (Tsuzuku et al. 2018)",
    "dual": "linear relaxation of the network with the same slopes below and above (Wong & Kolter 2018)",
    "crown": "linear relaxation of the network with the better of two kinds of slopes (Zhang et al. 2018)",
    "auto-lirpa": "linear relaxation of the network by auto_LiRPA (Xu et al. 2020)",
}


def procedure_in_words(shown: Shown) -> str:
    """How the claims were derived."""
    if shown.run.retirement is not None:
        return shown.run.retirement
    settings = shown.values["procedure"]
    most = f"{settings.get('n_max', settings.get('n', 0)):,}"
    words = {
        "FixedN": "the paper's CERTIFY, {n0} draws to choose the class and {most} fresh ones to bound its probability",
        "Planned": "Planned, pilots that choose the class and the number of draws, and at most {most} fresh ones to "
        "bound it",
        "Grid": "Grid, which of {radii} given radii hold for {whom}, in at most {most} draws",
        "Predict": "the paper's PREDICT, {most} draws and a test of the leader against the second",
        "SequentialPredict": "SequentialPredict, the leader as soon as it is clear, in at most {most} draws",
        "deterministic": _METHODS.get(settings.get("method", ""), "a deterministic bound of the network"),
        "imported": "a log that other code has left" + (", said to rest on {most} draws" if "n" in settings else ""),
    }
    whom = "each input's true class" if shown.values.get("known_labels") else "the class that leads a pilot"
    text = words.get(settings["name"], "").format(
        most=most,
        n0=settings.get("n0"),
        radii=len(settings.get("radii", ())),
        whom=whom,
    )
    text = text or str(settings["name"])
    margin = margin_in_words(shown.run)
    return f"{text}; {margin}" if margin else text


def noise_in_words(shown: Shown) -> str:
    """Which noise smooths the classifier."""
    if shown.deterministic:
        return "none"
    kinds = sorted({row["noise"] for row in shown.run.rows if row.get("noise")})
    names = {"grid": "Gaussian on the pixel grid", "gaussian": "Gaussian in floating point"}
    return " and ".join(names.get(kind, kind) for kind in kinds) or "Gaussian"


# Guarantees


_CERTIFICATES: Points = (
    (
        "Within the radius.",
        "A certificate of radius R says: whatever is added to the input, as long as its L2 norm (the root of the sum "
        "of squares over all values, in units where values go from 0 to 1) is below R, the classifier, smoothed where "
        "there is noise, returns the same class.",
    ),
    ("Against everyone.", "It holds for any attack, known or not, and for any base classifier."),
)
_LEADS: Points = (
    (
        "With a lead.",
        "Where a run was made with a margin, its class leads every other class by at least that much in probability "
        "everywhere within the radius. Predictions with enough draws rarely abstain there, whatever is added to the "
        "input.",
    ),
)
_PREDICTIONS: Points = (
    (
        "Predictions.",
        "A predicted class is the smoothed classifier's own; nothing is said about what is near the input.",
    ),
)
_ROUNDING: Points = (("Never rounded up.", "Shares and radii are rounded down, in the tables as in the curve."),)
_LIMITS: Points = (
    (
        "Not that the class is right.",
        "A certificate says that the answer stays the same, not that it is true. Where true classes are known, the "
        "shares here count only inputs that have both.",
    ),
    (
        "Not other kinds of change.",
        "Only perturbations that are small in L2 norm are covered: not rotations, other lighting or patches, nor "
        "changes that are small in another sense.",
    ),
    (
        "Not other inputs.",
        "What is certified is certified for the inputs of these runs, one by one. Shares are of these inputs and bound "
        "nothing about the rest of the data.",
    ),
)
_RESERVATIONS: tuple[tuple[Callable[[Shown], object], str, str], ...] = (
    (
        lambda shown: not shown.deterministic,
        "Not the network by itself.",
        "Where there is noise, the guarantee is about the smoothed classifier: the class that most noisy copies of an "
        "input get. The base network used without noise has no guarantee.",
    ),
    (
        lambda shown: shown.deterministic,
        "Bounds of a network.",
        "Where there is no noise, the guarantee is about the network itself, computed without rounding; in float32 it "
        "may answer otherwise where two scores are nearly equal.",
    ),
    (
        lambda shown: "floating" in noise_in_words(shown),
        "Floating point.",
        "Some noise was added in floating point, which follows the theorem only approximately: a base classifier made "
        "to read rounding errors could make a certificate false.",
    ),
    (
        lambda shown: shown.imported,
        "Imported logs.",
        "They hold no votes. Their radii are as the log prints them, which may be rounded up, and nothing about them "
        "was recomputed; α and σ are what the person who imported them said.",
    ),
    (
        lambda shown: shown.run.retirement is not None,
        "Retired procedures.",
        "Some runs were recorded by a procedure that this version does not have. Their claims are shown as recorded: "
        "nothing about them was recomputed.",
    ),
    (
        lambda shown: shown.values.get("known_labels"),
        "Known labels.",
        "Where only the true class was tested, an input that is not certified may have a certificate for another "
        "class.",
    ),
    (
        lambda shown: shown.values.get("allow_random"),
        "A random model.",
        "The base classifier answers at random; the claims rest on its drawing afresh for every noisy copy.",
    ),
)


def guaranteed(runs: Sequence[Shown]) -> list[Html]:
    """What holds, and with which probability."""
    alphas = " or ".join(alpha_text(alpha) for alpha in sorted({shown.values["alpha"] for shown in runs}))
    points = [
        (
            "With high probability.",
            f"What is said about an input is false with probability at most {alphas}, over the random noise drawn for "
            "it.",
        )
    ]
    if all(shown.deterministic for shown in runs):
        points = [("For certain.", "Nothing is random: what is said about an input is true.")]
    points += _CERTIFICATES if any(shown.certifies for shown in runs) else ()
    points += _LEADS if any(certified_margin(shown.run) for shown in runs) else ()
    points += () if all(shown.certifies for shown in runs) else _PREDICTIONS
    return [_point(*point) for point in (*points, *(() if any(shown.imported for shown in runs) else _ROUNDING))]


def not_guaranteed(runs: Sequence[Shown]) -> list[Html]:
    """What nobody should read out of the page."""
    expected, rows = max((shown.values["alpha"] * len(shown.claims), len(shown.claims)) for shown in runs)
    together = (
        "Not all inputs at once.",
        f"α is per input. Among {rows:,} inputs, at most {ceil_decimal(expected, 3)} false statements are to be "
        "expected, so a share may be too high by that many inputs.",
    )
    own = [(lead, text) for applies, lead, text in _RESERVATIONS if any(applies(shown) for shown in runs)]
    chance = () if all(shown.deterministic for shown in runs) else (together,)
    return [_point(lead, text) for lead, text in (*_LIMITS, *chance, *own)]


def _point(lead: str, text: str) -> Html:
    return element("li", element("strong", lead), " ", text)


# Notices


def notices(runs: Sequence[Shown]) -> list[str]:
    """What is missing or amiss, to be said before any number."""
    return [f"{shown.name}: {line}" for shown in runs for line in _run_notices(shown)]


def _run_notices(shown: Shown) -> list[str]:
    lines, total, rows = [], len(shown.run.manifest.indices), len(shown.claims)
    if rows < total:
        lines.append(f"not complete. Shares are of the {rows:,} inputs done so far, out of {total:,}.")
    if shown.run.errors:
        lines.append(f"{len(shown.run.errors):,} of {rows:,} inputs failed; they count as not certified.")
    if shown.disputed:
        lines.append(
            f"for {len(shown.disputed):,} of {rows:,} inputs, such as {shown.disputed[0]}, the votes do not give what "
            "is recorded. The weaker of the two is shown. Verify the run."
        )
    if shown.run.notice:
        lines.append(str(shown.run.notice))
    if shown.imported:
        lines.append("a log by other code, without votes. Its numbers are shown as it has them.")
    return lines
