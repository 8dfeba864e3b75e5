"""Recipes: each a loss with its paper, its formula and its settings."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any, get_type_hints

from smoothcert.config import convert
from smoothcert.errors import ConfigError
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

__all__ = ["RECIPES", "Draws", "Losses", "Recipe", "parse_recipe", "recipe_text"]

RECIPES: dict[str, type[Recipe]] = {
    recipe.name: recipe
    for recipe in (
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
    )
}


def parse_recipe(text: str) -> Recipe:
    """The recipe that `text` names, with its settings: "consistency" or "consistency:weight=5,copies=4"."""
    name, _, given = text.partition(":")
    if name not in RECIPES:
        raise ConfigError(f"Expected a recipe, one of {', '.join(RECIPES)}, got {name!r}.{_near(name, list(RECIPES))}")
    hints = get_type_hints(RECIPES[name])
    known = [field.name for field in fields(RECIPES[name])]
    settings: dict[str, Any] = {}
    for part in filter(None, given.split(",")):
        key, equals, value = (one.strip() for one in part.partition("="))
        key = key.replace("-", "_")
        if key not in known or not equals:
            expected = ", ".join(f"{one}=…" for one in known) or "no settings"
            raise ConfigError(f"Expected {expected} of the recipe {name}, got {part!r}.{_near(key, known)}")
        if key in settings:
            raise ConfigError(f"`{key}` of the recipe {name} is given twice.")
        settings[key] = _value(name, key, value, hints[key])
    return RECIPES[name](**settings)


def recipe_text(recipe: Recipe) -> str:
    """The text that `parse_recipe` reads `recipe` from, with settings that are not the default ones."""
    changed = [f for f in fields(recipe) if getattr(recipe, f.name) != f.default]
    settings = ",".join(f"{f.name}={str(getattr(recipe, f.name)).lower()}" for f in changed)
    return f"{recipe.name}:{settings}" if settings else recipe.name


def _near(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _value(recipe: str, key: str, text: str, hint: Any) -> Any:
    options: list[Any] = [text, {"true": True, "false": False}.get(text.lower())]
    for kind in (int, float):
        try:
            options.append(kind(text))
        except ValueError:
            continue
    for option in options:
        try:
            return convert(option, hint)
        except TypeError:
            continue
    raise ConfigError(f"{text!r} is no value for `{key}` of the recipe {recipe}.")
