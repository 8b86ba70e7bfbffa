"""Which other method is worth a look for a set like this one: advice from settings that a recipe chose, drawn from measured sets
(docs/methods.md).

It decides nothing, looks at no image and costs nothing.
"""

from sfumato.methods import METHODS
from sfumato.recipe.stage_costs import trains_privately
from sfumato.settings import Settings

FEW_EPSILON = 1.0
"""Up to this epsilon class moments alone were as near as private steps after them, or nearer, on X-rays, photographs and digits."""
ALONE = "moments"
WHERE = "docs/methods.md#which-method"


def advice(settings: Settings) -> str:
    """A sentence that names another method; empty where what is planned is what would be named, or nothing is known to be better."""
    if not settings.recipe.choices:
        return ""
    if METHODS[settings.method.name].embeds and settings.latent.linear:
        return f"of images in colour a generator on mean embeddings drew patterns or specks; class moments alone ({ALONE}) came far nearer: {WHERE}"
    if not trains_privately(settings):
        return ""
    if settings.matching.share > 0:
        return f"class moments alone ({ALONE}) drew the better digits of MNIST, a CNN learnt more from them, and they take less time: {WHERE}"
    if settings.alignment.kind == "moments" and settings.latent.linear:
        return f"class moments alone ({ALONE}) taught a CNN as much of photographs in colour, or more, and take less time: {WHERE}"
    if settings.alignment.kind == "moments" and settings.privacy.epsilon <= FEW_EPSILON:
        return f"at so small an epsilon class moments alone ({ALONE}) were as near or nearer on X-rays, photographs and digits, and take less time: {WHERE}"
    return ""
