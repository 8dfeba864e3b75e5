"""Recipes: each a loss with its paper, its formula and its settings."""

from __future__ import annotations

from smoothcert.families import Family
from smoothcert.training.recipes.base import Draws, Losses, Recipe
from smoothcert.training.recipes.cat_rs import CatRs
from smoothcert.training.recipes.consistency import Consistency
from smoothcert.training.recipes.denoiser import Denoiser
from smoothcert.training.recipes.dual import Dual
from smoothcert.training.recipes.gaussian import Gaussian
from smoothcert.training.recipes.lipschitz_margin import LipschitzMargin
from smoothcert.training.recipes.macer import Macer
from smoothcert.training.recipes.smoothadv import SmoothAdv
from smoothcert.training.recipes.smoothmix import SmoothMix
from smoothcert.training.recipes.stability import Stability

__all__ = ["RECIPES", "Draws", "Losses", "Recipe"]

RECIPES = Family("recipe", Recipe)
for _recipe in (
    Gaussian,
    Stability,
    SmoothAdv,
    Macer,
    Consistency,
    SmoothMix,
    CatRs,
    Denoiser,
    LipschitzMargin,
    Dual,
):
    RECIPES.register(_recipe)
