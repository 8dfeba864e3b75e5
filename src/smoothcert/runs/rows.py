"""Results as rows of a run: what all rows share stands in the manifest, votes are kept sparsely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from smoothcert.records import Bounds, Certificate, Prediction, Votes
from smoothcert.runs.retired import current_settings

Row = dict[str, Any]


def result_row(result: Certificate | Prediction) -> Row:
    """The part of a row that holds a certificate or a prediction."""
    row: Row = {"label": result.label, "noise": result.noise, "stages": [_sparse(votes) for votes in result.stages]}
    if isinstance(result, Certificate):
        return {**row, "radius": result.radius, "bounds": asdict(result.bounds)}
    return {**row, "p_value": result.p_value, "reason": result.reason}


def row_result(row: Row, manifest: Mapping[str, Any]) -> Certificate | Prediction | None:
    """The result that a row and its manifest describe; None for an input that failed, or one without votes."""
    if "stages" not in row:
        return None
    classes = manifest["model"]["num_classes"]
    procedure = current_settings(manifest["procedure"])
    if manifest.get("known_labels"):
        procedure["label"] = row["true"]
    common: dict[str, Any] = {
        "label": row["label"],
        "alpha": manifest["alpha"],
        "sigma": manifest["sigma"],
        "noise": row["noise"],
        "procedure": procedure,
        "stages": tuple(_dense(votes, classes) for votes in row["stages"]),
        "key": manifest["key"],
        "input_id": f"index:{row['index']}",
        "executed": manifest.get("plan", {}).get("executed"),
    }
    if "radius" in row:
        return Certificate(radius=row["radius"], bounds=Bounds(**row["bounds"]), **common)
    return Prediction(p_value=row["p_value"], reason=row["reason"], **common)


def _sparse(votes: Votes) -> Row:
    """Votes by class, without the classes that have none."""
    row: Row = {"n": votes.n, "votes": {str(k): count for k, count in enumerate(votes.counts) if count}}
    for name in ("invalid", "ties"):
        if getattr(votes, name):
            row[name] = getattr(votes, name)
    return row


def _dense(row: Row, classes: int) -> Votes:
    counts = [0] * classes
    for name, count in row["votes"].items():
        counts[int(name)] = count
    return Votes.of(counts, row.get("invalid", 0), row.get("ties", 0))
