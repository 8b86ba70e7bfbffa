"""Stages that look at drawn images beside others: the nearest public ones, and the private ones, whose scores are INTERNAL."""

from typing import Annotated, Any

from artifacts import classifiers, pictures, serialization
from artifacts.references import (
    Judgement,
    NearestPublic,
    PublicClassifier,
    PublicImages,
    Samples,
)
from artifacts.reports import run as report
from sfumato.config import NOT_HASHED, Evaluation, Machine, Section
from sfumato.evaluation import nearest
from sfumato.evaluation.extractors import FeatureReader, inception, small_cnn
from sfumato.evaluation.extractors import backbone as backbone_eyes
from sfumato.images import to_unit
from sfumato.methods.plan import Facts
from sfumato.privacy.auditing import looks
from tasks.inputs import FeatureSpaces
from tasks.runtime.artifact import Draft, RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.environment import where
from tasks.terms import Order


@stage
def find_nearest(
    context: RunContext,
    samples: Samples,
    images: PublicImages,
    eyes: FeatureSpaces,
    machine: Annotated[Machine, NOT_HASHED],
) -> NearestPublic:
    """Put some samples beside their nearest public images, in the features of the public backbone, or of the classifier without one."""
    parents = [ref for ref in (samples, images, eyes.backbone or eyes.classifier) if ref]
    with draft_of(NearestPublic, "nearest public images", context, parents=parents) as draft:
        shown = pictures.of_each(serialization.load_images(draft.open(samples)))
        known = serialization.load_images(draft.open(images))
        known = known.subset(nearest.searched(len(known)).numpy())
        if eyes.backbone:
            reader = serialization.load_backbone(draft.open(eyes.backbone), device_of(machine))
            read = backbone_eyes(reader.whitened, device_of(machine)).read
        else:
            read = extractor_of(draft, eyes.classifier, machine).features
        places = nearest.nearest(*(read(to_unit(one.pixels)) for one in (shown, known)))
        pictures.draw_pairs(draft.folder / report.NEAREST, shown, known.pixels[places.numpy()])
        draft.files = [draft.folder / report.NEAREST]
    return draft.ref


def extractor_of(draft: Draft[Any], classifier: PublicClassifier | None, machine: Machine) -> FeatureReader:
    """The extractor in whose features images are compared: the public classifier, or Inception without one."""
    device = device_of(machine)
    if classifier is None:
        return inception(device)
    return small_cnn(*classifiers.load_classifier(draft.open(classifier), device))


class JudgedSets(Section):
    """The sets that are judged side by side."""

    sets: dict[str, Samples]
    briefly: tuple[str, ...] = ()
    """Names of the sets that only the fast classifiers learn from."""


@stage
def evaluate(
    context: RunContext,
    order: Order,
    judged: JudgedSets,
    eyes: FeatureSpaces,
    facts: Facts,
    how: Evaluation,
    seed: int,
) -> Judgement:
    """Judge each named set against the private images, in the features of the public classifier, or of Inception without one.

    Also in the latents of the autoencoder and in the features of the backbone, where the run has them. INTERNAL, because it
    looks without noise.
    """
    parents, machine = [*judged.sets.values(), *eyes.refs()], order.machine
    autoencoder, backbone, code = eyes.autoencoder, eyes.backbone, code_version(evaluate.fn)
    with (
        draft_of(Judgement, "evaluation (INTERNAL)", context, parents=parents) as draft,
        where().ledger() as ledger,
    ):
        device = device_of(machine)
        known = draft.store.manifest(autoencoder)["parents"] if autoencoder else []
        scored = looks.judged(
            order.access(ledger, context, stage="evaluation", purpose="judge", code=code, parents=parents),
            {
                name: looks.tensors(serialization.load_images(draft.open(ref)), how.images)
                for name, ref in judged.sets.items()
            },
            classes=len(facts.classes),
            extractor=extractor_of(draft, eyes.classifier, machine),
            how=how,
            seed=seed,
            device=device,
            shown=pictures.MOST_COLUMNS,
            codec=serialization.load_codec(draft.open(autoencoder) if autoencoder else None, device, trained_on=known),
            backbone=serialization.load_backbone(draft.open(backbone), device) if backbone else None,
            progress=draft.show,
            briefly=judged.briefly,
        )
        rows, draft.entries = scored.rows, scored.entries
        serialization.save(draft.folder, {}, {name: row.model_dump(mode="json") for name, row in rows.items()})
        pictures.draw_images(draft.folder / report.REAL_PICTURE, scored.real, pictures.columns_of(scored.real))
        draft.files = [draft.folder / report.REAL_PICTURE]
        draft.metrics = {
            f"{name}/{key}".replace("+", "and"): value
            for name, row in rows.items()
            for key, value in row.numbers().items()
        }
    return draft.ref
