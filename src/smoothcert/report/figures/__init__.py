"""Figures, drawn with matplotlib's objects so that nobody's pyplot state or backend is touched."""

from smoothcert.report.figures.accuracy import certified_accuracy_figure
from smoothcert.report.figures.canvas import PALETTE, SUFFIXES, check_figure_path, require_matplotlib, save_figure
from smoothcert.report.figures.evidence import load_norms, recorded_run
from smoothcert.report.figures.images import noise_panel
from smoothcert.report.figures.kinds import FIGURES, Kind, check_kind, draw_figure
from smoothcert.report.figures.projections import radius_by_draws_figure
from smoothcert.report.figures.theorems import prior_bounds_figure

__all__ = [
    "FIGURES",
    "PALETTE",
    "SUFFIXES",
    "Kind",
    "certified_accuracy_figure",
    "check_figure_path",
    "check_kind",
    "draw_figure",
    "load_norms",
    "noise_panel",
    "prior_bounds_figure",
    "radius_by_draws_figure",
    "recorded_run",
    "require_matplotlib",
    "save_figure",
]
