"""Declared facts of a set, and the settings that the recipe makes of them."""

from sfumato.methods.plan import Facts
from sfumato.recipe.auto import follow
from sfumato.settings import resolve


def facts(shape=(1, 28, 28), records=10_000, classes=10, public_classes=52, **more):
    return Facts(
        records=records,
        classes=tuple(f"c{n}" for n in range(classes)),
        public_classes=public_classes,
        shape=shape,
        **more,
    )


def recipe(*changes, method="dp-sgd", images=60_000, **reported):
    return follow(resolve(method, "auto", changes), facts(**reported), images)
