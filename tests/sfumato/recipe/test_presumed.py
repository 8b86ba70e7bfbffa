"""Settings that the recipe presumes: the methods that we have carry them, and one without them is planned all the same."""

from dataclasses import replace

import pytest

from sfumato.methods import METHODS
from sfumato.recipe import presumed
from sfumato.recipe.auto import follow
from sfumato.retrieval.settings import Extractor
from sfumato.settings import resolve
from tests.sfumato.recipe.making import facts


@pytest.mark.parametrize(
    ("known", "names"),
    [
        (presumed.retrieving, {"rapid"}),
        (presumed.ensemble, {"dp-ensemble"}),
        (presumed.averaging, {"empirical-denoiser"}),
    ],
)
def test_each_method_has_what_the_recipe_presumes_of_its_kind(known, names):
    assert {name for name in METHODS if known(resolve(name))} == names


@pytest.mark.parametrize(
    "capability",
    [
        {"retrieves": lambda _: Extractor()},
        {"has_members": True},
        {"draw_privately": lambda *_: None, "corrupt": None},
        {"blueprint": lambda *_: None, "corrupt": None},
    ],
    ids=["retrieves", "has_members", "draw_privately", "blueprint"],
)
def test_a_method_without_these_settings_keeps_its_own_defaults(monkeypatch, capability):
    method = replace(
        METHODS["dp-sgd"], **capability
    )  # whose settings say nothing of neighbours, members, pay or a network
    monkeypatch.setattr(type(METHODS), "__getitem__", lambda *_: method)
    planned = follow(resolve("dp-sgd", "auto"), facts(), 60_000)
    assert planned.latent.kind != "none" and planned.generation.images > 0
