from __future__ import annotations

from dataclasses import fields

import pytest

from smoothcert.errors import ConfigError
from smoothcert.training.recipes import RECIPES
from smoothcert.training.recipes.cat_rs import CatRs
from smoothcert.training.recipes.consistency import Consistency
from smoothcert.training.recipes.macer import Macer
from smoothcert.training.recipes.smoothadv import SmoothAdv
from smoothcert.training.recipes.smoothmix import SmoothMix

NAMES = [
    "gaussian",
    "stability",
    "smoothadv",
    "macer",
    "consistency",
    "smoothmix",
    "cat-rs",
    "denoiser",
    "lipschitz-margin",
    "dual",
]


def test_there_are_ten_recipes_each_with_its_paper_and_its_formula():
    assert list(RECIPES) == NAMES
    for name, recipe in RECIPES.items():
        assert recipe.name == name
        assert "arXiv:" in recipe.paper
        assert recipe.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_a_name_alone_means_the_settings_of_the_paper_and_is_written_back_as_it_was(name):
    recipe = RECIPES.parse(name)
    assert type(recipe) is RECIPES[name]
    assert recipe == RECIPES[name]()
    assert RECIPES.text(recipe) == name
    assert RECIPES.parse(f"{name}:") == recipe


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("consistency:weight=5,copies=4", Consistency(weight=5.0, copies=4)),
        ("consistency: weight = 5 , copies = 4", Consistency(weight=5.0, copies=4)),
        ("macer:deferred=0.5", Macer(deferred=0.5)),
        ("macer:margin=1e-3", Macer(margin=0.001)),
        ("smoothadv:attack=ddn,warmup=0", SmoothAdv(attack="ddn", warmup=0)),
        ("smoothmix:one-step=true", SmoothMix(one_step=True)),
        ("smoothmix:one_step=False,step-size=2", SmoothMix(one_step=False, step_size=2.0)),
    ],
)
def test_reads_settings_in_any_order_with_blanks_and_with_hyphens(text, recipe):
    found = RECIPES.parse(text)
    assert found == recipe
    assert [type(getattr(found, f.name)) for f in fields(found)] == [
        type(getattr(recipe, f.name)) for f in fields(recipe)
    ]


def odd(value):
    """Another value of the same kind."""
    other = {"pgd": "ddn", "answer": "label", True: False, False: True}
    if isinstance(value, (str, bool)):
        return other[value]
    return value + 3 if isinstance(value, int) else value * 1.25 + 1e-7


@pytest.mark.parametrize("name", NAMES)
def test_the_text_of_a_recipe_is_read_back_as_the_same_recipe(name):
    settings = {field.name: odd(field.default) for field in fields(RECIPES[name])}
    for chosen in [*({key: value} for key, value in settings.items()), settings]:
        recipe = RECIPES[name](**chosen)
        text = RECIPES.text(recipe)
        assert RECIPES.parse(text) == recipe
        assert text.count("=") == len(chosen)


def test_the_text_names_only_settings_that_are_not_the_default_ones():
    assert RECIPES.text(Consistency(weight=5.0, copies=2)) == "consistency:weight=5.0"
    assert RECIPES.text(SmoothMix(one_step=True)) == "smoothmix:one_step=true"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gausian", "got 'gausian'. Did you mean 'gaussian'?"),
        ("", "one of gaussian, stability, smoothadv"),
        ("Consistency", "Did you mean 'consistency'?"),
        ("gaussian:weight=1", "Expected no settings of the recipe gaussian, got 'weight=1'."),
        ("consistency:wieght=5", "Did you mean 'weight'?"),
        ("consistency:weight", "Expected settings of the recipe consistency as name=value, got 'weight'."),
        ("consistency:name=x", "Expected copies=…, weight=…, entropy=… of the recipe consistency, got 'name=x'."),
        ("consistency:weight=", "'' is no value for `weight` of the recipe consistency."),
        ("consistency:weight=much", "'much' is no value for `weight`"),
        ("consistency:weight=true", "'true' is no value for `weight`"),
        ("consistency:copies=2.5", "'2.5' is no value for `copies`"),
        ("consistency:copies=true", "'true' is no value for `copies`"),
        ("smoothmix:one_step=1", "'1' is no value for `one_step`"),
        ("smoothadv:attack=fgsm", "'fgsm' is no value for `attack`"),
        ("cat-rs:target=votes", "'votes' is no value for `target`"),
    ],
)
def test_says_what_it_expected_where_a_text_cannot_be_read(text, message):
    with pytest.raises(ConfigError) as error:
        RECIPES.parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("stability", "weight", "-1"),
        ("smoothadv", "copies", "0"),
        ("smoothadv", "steps", "0"),
        ("smoothadv", "radius", "-0.1"),
        ("smoothadv", "warmup", "-1"),
        ("macer", "copies", "0"),
        ("macer", "weight", "-1"),
        ("macer", "sharpness", "nan"),
        ("macer", "margin", "inf"),
        ("macer", "deferred", "-0.5"),
        ("consistency", "copies", "-2"),
        ("consistency", "weight", "nan"),
        ("consistency", "entropy", "-0.5"),
        ("smoothmix", "copies", "0"),
        ("smoothmix", "steps", "0"),
        ("smoothmix", "step_size", "inf"),
        ("smoothmix", "weight", "-5"),
        ("smoothmix", "warmup", "-1"),
        ("cat-rs", "copies", "0"),
        ("cat-rs", "steps", "0"),
        ("cat-rs", "radius", "inf"),
        ("cat-rs", "weight", "-1"),
        ("denoiser", "mse", "-1"),
        ("denoiser", "stability", "nan"),
    ],
)
def test_refuses_values_out_of_range_and_names_the_setting(name, setting, value):
    with pytest.raises(ConfigError, match=f"Expected `{setting}` to be"):
        RECIPES.parse(f"{name}:{setting}={value}")


def test_refuses_an_unknown_attack_or_target_from_the_api_too():
    with pytest.raises(ConfigError, match="Expected `attack` to be pgd or ddn, got 'fgsm'"):
        SmoothAdv(attack="fgsm")
    with pytest.raises(ConfigError, match="Expected `target` to be answer or label, got 'votes'"):
        CatRs(target="votes")
