"""Checks before work starts and before any private image is decoded.

They use names, headers and listings alone: the shape of both collections, the number of records, the class names. This file fetches
missing data sets by name, fills in open settings (delta, sample rate, feature extractor) and collects warnings. Class names, image
size and the number of private records count as public knowledge.

Not covered: public images that are copies of private ones, which only the door can find (`sfumato.privacy.door.check_in`).
"""

import difflib
import functools
import json
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sfumato import sources
from sfumato.backbone import LEAST_CLASSES
from sfumato.class_shares import with_shares
from sfumato.clusters import FEWEST, clusters_for, kinds_of
from sfumato.config import AUTO, FEWEST_JUDGED, Constants, Data, Latent, Network, Privacy, Schedule
from sfumato.costs import denoiser_work
from sfumato.data_settings import FEWEST_PIXELS, MOST_PIXELS
from sfumato.default_public import SHAPES, drawn_beside, drawn_warning, unnamed
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.evaluation.extractors import INCEPTION, chosen, cnn_name, only_extractor
from sfumato.methods import METHODS
from sfumato.methods.parts import planned
from sfumato.methods.plan import (
    SHARED_STAGES,
    STAGE_CENTRAL,
    STAGE_MATCHING,
    STAGE_MOMENTS,
    Facts,
    Plan,
    noise_of_votes,
    protecting_groups,
    shared_spends,
    with_numbers,
)
from sfumato.networks.autoencoder import latent_shape
from sfumato.networks.build import build
from sfumato.networks.denoiser import parameters_by_group
from sfumato.networks.low_rank import adapted
from sfumato.networks.miniature import miniature
from sfumato.own_releases import drawn_from_others, refuse_own, sets_behind
from sfumato.pretrained import brought, with_pretrained
from sfumato.privacy.door import PrivateSet
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.privacy.engine.validation import CROWDS, refuse_clip, survey
from sfumato.recipe.auto import follow
from sfumato.recipe.paid_judge import ENOUGH_RECORDS
from sfumato.recipe.representation import SMALL, nearest_side
from sfumato.recipe.stage_costs import has_public_model, target_epsilon, trains_privately
from sfumato.selection import fewest, sources_of
from sfumato.settings import Settings
from sfumato.turns import training_name
from sfumato.unfit_settings import refuse_selection, refuse_unfit, refuse_unfit_plan

LEAST_SHARE = 0.001
"""Smallest share of the records that is advised in place of a limit."""
MOST_NETWORKS = 64
"""Size of the cache of networks that have been validated."""
SURVEYED_NUMBERS = 1e8
"""Most numbers (of 4 bytes) that the validation of a network as it is may hold."""
SURVEYED, SURVEYED_WEIGHTS = 16, 5
"""What it holds in units of the numbers that linear layers and convolutions put out, and of the weights: 1.7 GB for a U-Net of 1.5 million weights at 28x28."""
Known = Callable[[str], Constants | None]
"""From the name of a private set to its constants in the ledger."""
Agreed = Callable[[str], float | None]
"""From the name of a private set to the delta of the budget that binds it, if any."""


class Preflight(NamedTuple):
    """What is settled about a run before any stage."""

    settings: Settings
    """Complete: nothing is left open that data or a ledger decide."""
    facts: Facts
    """Sizes and names of both collections, which count as public."""
    warnings: list[str]
    """What a person should know, a sentence each."""


def preflight(
    settings: Settings, data_folder: str = "", known: Known = lambda name: None, agreed: Agreed = lambda name: None
) -> Preflight:
    """Complete settings, the facts, and warnings; `BadInput` for settings or data that cannot work.

    `data_folder` is where data sets by name lie if the settings do not say. `known` tells the constants that stand in the ledger
    for the private set of a name: the number of records and the class list are taken from the settings, else from there, and
    where neither has them, this once, from the source. `agreed` tells the delta that `privacy.delta=auto` takes where a budget has one.
    """
    for side, source in (("private", settings.data.private), ("public", settings.data.public)):
        if not source:
            raise BadInput(
                f"data.{side} names no images: give a folder, a table, a file or a data set, such as --set data.{side}=PATH"
            )
        sources.must_exist(source, f"the {side} data (data.{side})")
    settings = settings.model_copy(update={"data": placed(settings.data, data_folder)})
    data = _chosen(settings.data)
    settings = with_pretrained(settings.model_copy(update={"data": data}))
    before = known(named(data).name)
    if before and data.private_classes and not set(before.classes) <= set(data.private_classes):
        before = None  # of another choice of classes, which the door takes for another version
    classes = data.classes or (before.classes if before else ())
    _refuse_same(data)
    refuse_own(settings, [named(data).name])
    reading = private_of(data.model_copy(update={"classes": classes})).reading("train")
    private = sources.unnamed(
        data.private,
        f"the private data (data.private) {data.private!r}",
        lambda: sources.describe(data.private, reading),
    )
    whole = _constants(data, planned(private.whole), before)
    _refuse_limit(data, whole)
    _refuse_single_slices(data, private)
    _refuse_one_source_with_groups(data, private)
    shape = private.channels, private.height, private.width
    size, channels = brought_to(shape)
    records, images = (
        whole.expected(count, held_out=data.held_out, share=data.share) for count in (whole.records, whole.images)
    )
    drawn = bool(size) and unnamed(data)  # images that are not square are refused below
    if drawn:
        settings = drawn_beside(settings.model_copy(update={"data": data}), channels, records, len(whole.classes))
        data = settings.data
        _refuse_same(data)
    public = sources.describe(data.public, replace(sources.public_reading(data, size), channels=channels))
    if (public.height, public.width) != shape[1:]:
        nearest = min(max(min(shape[1:]), FEWEST_PIXELS), MOST_PIXELS)
        if settings.recipe.kind == "auto" and nearest > SMALL:
            nearest = nearest_side(nearest, settings.recipe.device)
        public_ones = (
            "images drawn beside them are square"
            if unnamed(data)
            else f"public ones ({data.public!r}) cannot be brought to that by themselves"
        )
        raise BadInput(
            f"private images ({data.private!r}) are {shape[1]} pixels high and {shape[2]} wide, and {public_ones}: "
            f"make all square with --set data.size={nearest}, and data.crop=centre to keep proportions"
        )
    grouped = private.groups is not None
    group = (data.group or private.grouping) if grouped else sources.NO_GROUPS
    # Nobody has said that a volume is all that there is of a person.
    unit = sources.VOLUME if group == sources.VOLUME and "unit" not in data.model_fields_set else data.unit
    settings = _with_clusters(settings, records, public.records)
    voted = (
        sources_of(public.classes, sources.prefixes(sources.parts_of(data.public)))
        if settings.selection.sources
        else ()
    )
    facts = Facts(
        records=records,
        classes=whole.classes,
        public_classes=len(public.classes),
        shape=shape,
        whole=whole,
        unit=unit if grouped else "",
        images=images if grouped else 0,
        selected=settings.selection.classes
        or settings.selection.sources * fewest(voted)
        or kinds_of(settings.selection.clusters),
        clusters=settings.selection.clusters,
        sources=voted,
    )
    refuse_selection(settings, facts, public.records)
    fields = {"group": group, "unit": unit, "records": whole.records, "classes": whole.classes}
    settings = follow(settings.model_copy(update={"data": data.model_copy(update=fields)}), facts, public.records)
    settings = filled(settings, facts, agreed(named(data).name) if settings.privacy.delta == AUTO else None)
    tuning, shape = settings.fine_tuning, latent_shape(settings.latent, facts.shape)
    refuse_clip(tuning.clip)
    if settings.evaluation.baseline or not METHODS[settings.method.name].blueprint:
        _refuse_network(settings.network, settings.schedule, shape, facts.learnt_classes, tuning.trainable, tuning.rank)
    warnings = [
        *weaknesses(settings.privacy, facts),
        *few_in_a_class(settings.privacy, facts),
        *drawn_from_others(settings),
        *enlarged(data.public, public.stored, size),
        *colourless(data.public, public.colours, facts.shape[0]),
        *swollen(settings.latent, facts.shape),
        *untaught(settings),
        *([drawn_warning(settings)] if drawn else []),
        *_patients_unused(data, private),
        *_unlabelled(data, private, public),
    ]
    return Preflight(settings, facts, warnings)


def _with_clusters(settings: Settings, records: int, images: int) -> Settings:
    """The settings with as many clusters of so many public images as the records can tell apart, where they leave that open."""
    selection = settings.selection
    if selection.clusters != AUTO:
        return settings
    numbers = with_numbers(settings.privacy, target_epsilon(settings), records)
    noise = noise_of_votes(selection.share * numbers.epsilon, numbers.delta, numbers.relation)
    if not (count := clusters_for(records, noise, images)):
        raise BadInput(
            f"selection.clusters=auto: votes of {records} records with noise of {noise:.3g}, for {images} public images, tell fewer than {FEWEST} clusters apart: "
            f"raise selection.share={selection.share:g}, or use selection.clusters=0"
        )
    return settings.model_copy(update={"selection": selection.model_copy(update={"clusters": count})})


@functools.lru_cache(maxsize=MOST_NETWORKS)
def _refuse_network(
    network: Network,
    schedule: Schedule,
    shape: tuple[int, int, int],
    classes: int,
    trainable: tuple[str, ...],
    rank: int,
) -> None:
    """`BadInput` for a network that cannot be trained privately with these settings; one that passed is not validated again.

    Of a large one the miniature is validated; itself it is in training, before its first private step.
    """
    work = denoiser_work(network, shape, classes)
    if SURVEYED * work.numbers * CROWDS[-1] + SURVEYED_WEIGHTS * work.weights > SURVEYED_NUMBERS:
        network, shape = miniature(network, shape)
    model = build(network, shape, classes, alpha_bar=make_schedule(schedule).alpha_bar)
    groups = parameters_by_group(model)
    if not set(groups) & set(trainable):
        raise BadInput(
            f"fine_tuning.trainable={list(trainable)} names nothing that this network has: "
            f"choose from {', '.join(groups)}"
        )
    if rank:
        adapted(model, trainable, rank)
        if "frozen" not in parameters_by_group(model):
            raise BadInput(
                f"fine_tuning.rank={rank} finds no linear layer in "
                f"fine_tuning.trainable={list(trainable)}: add film or attention, or leave rank at 0"
            )
    survey(model, trainable_parameters(model, trainable), shape)


def _chosen(data: Data) -> Data:
    """The data section with the chosen classes by their names."""
    if data.public_classes and data.public_without:
        raise BadInput(
            "data.public_classes names the classes that are used, data.public_without those that are not: use one of the two"
        )
    reading = private_of(data).reading("all")
    private = sources.unnamed(
        data.private,
        f"the private data (data.private) {data.private!r}",
        lambda: sources.resolve_classes(data.private, data.private_classes, "data.private_classes", reading),
    )
    reading = sources.public_reading(data, 0)
    used, without = (
        sources.resolve_classes(data.public, getattr(data, name), f"data.{name}", reading) if data.public else ()
        for name in ("public_classes", "public_without")
    )
    return data.model_copy(update={"private_classes": private, "public_classes": used, "public_without": without})


def _refuse_same(data: Data) -> None:
    """`BadInput` where public images come from the private collection, of which the classes not chosen are no part."""
    if not sources.same_source(data.private, data.public, folder=data.folder):
        return
    one = sources.absolute(data.private) == sources.absolute(data.public) and len(sources.parts_of(data.private)) == 1
    if not one or not data.private_classes:
        hint = "; one source may be both by data.private_classes=[...] and data.public_without=[...]" if one else ""
        raise BadInput(
            f"data.public={data.public!r} is, holds or lies in the private data {data.private!r}: public images must not come "
            f"from the private collection{hint}"
        )
    private, used = set(data.private_classes), data.public_classes
    both = [name for name in used if name in private] if used else sorted(private - set(data.public_without))
    if both:
        way = shlex.quote(f"data.public_without={json.dumps(data.private_classes, ensure_ascii=False)}")
        raise BadInput(
            f"the class {both[0]!r} of {data.private!r} would be on both sides: public images must not come from the private collection; "
            f"leave all private classes out with --set {way}"
        )


def _refuse_single_slices(data: Data, private: sources.SourceFacts) -> None:
    """`BadInput` where slices of one volume would count as so many persons."""
    if private.grouping == sources.VOLUME and private.groups is None:
        raise BadInput(
            f"data.slices.count={data.slices.count} takes several slices of one {data.unit}'s volume, which data.group=none would protect one "
            "by one: leave data.group empty, or use data.slices.count=1"
        )


def _patients_unused(data: Data, private: sources.SourceFacts) -> tuple[str, ...]:
    """A warning where DICOM files, or a column of a table, name the patients and the settings ignore them."""
    if data.group or private.groups is not None:
        return ()
    if private.grouping == sources.PATIENT:
        column, who = sources.PATIENT, "the DICOM files name their patients"
    else:
        column = "" if data.private in sources.NAMES else sources.column_of_persons(data.private, data.columns)
        who = f"the table has a column {column!r}"
    way = f"--set {shlex.quote(f'data.group={column}')} protects a patient with all images (data.group=none says that one image is meant)"
    return (f"{who}, and each image stands for itself: {way}",) if column else ()


def _unlabelled(data: Data, private: sources.SourceFacts, public: sources.SourceFacts) -> tuple[str, ...]:
    """A warning where a side has no labels and nobody said so."""
    sides = {"private": private, "public": public}
    bare = [side for side, facts in sides.items() if facts.classes == (sources.UNLABELLED,)]
    return tuple(
        f"the {side} images have no labels, so all are one class: sort them into one folder per class, name a column by data.columns.label, or "
        f"say that it is meant by data.unlabelled={side}"
        for side in bare
        if data.unlabelled not in (side, "both")
    )


def _refuse_one_source_with_groups(data: Data, private: sources.SourceFacts) -> None:
    if private.groups is not None and sources.same_source(data.private, data.public, folder=data.folder):
        raise BadInput(
            f"{data.private!r} is on both sides and has groups: a {data.unit} may have images in private classes and in public ones, and no "
            f"promise to it would hold; use another source for one side (data.group=none protects single images instead)"
        )


def _constants(data: Data, there: Constants, before: Constants | None) -> Constants:
    """The public constants of a set: declared, else as counted `before`, else as they are `there` now."""
    if before and before.parts == there.parts:
        there = before
    records = data.records or there.records
    images = round(there.images * records / there.records) if there.records else records
    return there.model_copy(update={"records": records, "images": images, "classes": data.classes or there.classes})


def _refuse_limit(data: Data, whole: Constants) -> None:
    if data.limit:
        images = whole.expected(whole.images, held_out=data.held_out, share=1.0)
        share = min(1.0, data.limit / max(1, images))
        raise BadInput(
            f"data.limit={data.limit} takes the first records, so that removing one would pull another in, which no price covers: use "
            f"--set data.share={max(share, LEAST_SHARE):.3g}, which takes about as many, each by a hash of itself"
        )


def for_profile(settings: Settings, data_folder: str = "") -> tuple[Settings, tuple[str, ...]]:
    """Settings with a complete data section, for a profile of the data, which needs no public side; and warnings.

    `BadInput` for a side without images.
    """
    data = _chosen(placed(settings.data, data_folder))
    private = sources.describe(data.private, replace(private_of(data).reading("all"), forgiving=True))
    warnings: tuple[str, ...] = ()
    if data.public:
        _refuse_same(data)
        _refuse_one_source_with_groups(data, private)
        size = data.size or min(private.height, private.width)
        reading = replace(sources.public_reading(data, size), shares=(), forgiving=True)
        public = sources.describe(data.public, reading)
        warnings = (
            *enlarged(data.public, public.stored, size),
            *colourless(data.public, public.colours, private.channels),
        )
    return settings.model_copy(update={"data": named(data)}), warnings


MOST_ENLARGED, CLEARLY_ENLARGED = 2.0, 1.25
"""Largest enlargement of public images, and the largest one without a warning."""


def enlarged(public: str, stored: int, size: int) -> tuple[str, ...]:
    """A warning where public images, whose smaller side is `stored`, are much enlarged to `size`; `BadInput` beyond `MOST_ENLARGED`."""
    times = size / max(1, stored)
    if times <= CLEARLY_ENLARGED:
        return ()
    if times > MOST_ENLARGED:
        raise BadInput(
            f"public images ({public!r}) of {stored} pixels would be enlarged {times:.2g} times to the {size} of the private ones, and "
            f"there is little to learn from blur: choose larger public images, or bring both sides down with --set data.size={2 * stored}"
        )
    return (
        f"public images ({public!r}) of {stored} pixels are enlarged {times:.2g} times to {size}: larger ones, or --set "
        f"data.size={stored} for both sides, teach sharper edges",
    )


def colourless(public: str, colours: int, channels: int) -> tuple[str, ...]:
    """A warning where public images are grey, and private ones in colour."""
    if channels == 1 or colours > 1:
        return ()
    return (
        f"public images ({public!r}) are grey and the private ones in colour: what is trained on them knows no colours. Choose public images in "
        f"colour, --set data.public={SHAPES} if you have none, or make both sides grey with --set data.channels=1",
    )


def swollen(latent: Latent, image: tuple[int, int, int]) -> tuple[str, ...]:
    """A warning where an autoencoder makes more numbers of an image than it has."""
    shape = latent_shape(latent, image)
    if latent.kind == "none" or math.prod(shape) < math.prod(image):
        return ()
    return (
        f"latent.channels={latent.channels} makes {math.prod(shape):,} numbers of an image of {math.prod(image):,}, so that the autoencoder only adds its error: "
        "use fewer channels, or latent.kind=none",
    )


def untaught(settings: Settings) -> tuple[str, ...]:
    """A warning where a private training starts from random weights."""
    if not trains_privately(settings) or METHODS[settings.method.name].blueprint or has_public_model(settings):
        return ()
    return (
        "pretraining.steps=0: the denoiser learns from private records alone, under noise, and no rehearsal can tell before they are paid for whether "
        "images will be more than noise; public steps help (--set pretraining.steps=3000)",
    )


def placed(data: Data, data_folder: str) -> Data:
    """The data section with the absolute folder of data sets by name, or none where no side names one."""
    folder = data.folder or data_folder
    needed = folder and sources.needs_folder(data.private, data.public)
    return data.model_copy(update={"folder": str(Path(folder).resolve()) if needed else ""})


def brought_to(shape: tuple[int, int, int]) -> tuple[int, Literal[1, 3]]:
    """Side and channels that public images are brought to beside private ones of this shape (channels, height, width).

    The side is 0, which keeps them as they are, where private images are not square.
    """
    channels, height, width = shape
    return (height if height == width else 0), (3 if channels == 3 else 1)


def filled(settings: Settings, facts: Facts, agreed: float | None) -> Settings:
    """The settings with what the facts decide: delta (`agreed` where a budget has one), sample rate, shares of classes; `BadInput` for what they forbid."""
    privacy, tuning = settings.privacy, settings.fine_tuning
    if facts.records < 2:
        raise BadInput(
            f"{facts.records} private training {facts.unit or 'record'}s of {settings.data.private!r} are too few for any promise: add images, or "
            f"change data.held_out={settings.data.held_out} or data.share={settings.data.share:g}"
        )
    refuse_few_images(settings)
    evaluation = settings.evaluation.model_copy(update={"features": chosen(settings.evaluation.features)})
    if settings.generation.refine and not (settings.pretraining.steps or settings.network.from_):
        raise BadInput(
            f"generation.refine={settings.generation.refine:g} asks the public model to denoise what was drawn, and pretraining.steps=0 leaves "
            "none: train one, or set generation.refine=0"
        )
    if tuning.batch > facts.records:
        raise BadInput(
            f"fine_tuning.batch={tuning.batch} records are expected in a batch, but the private set has only {facts.records}: "
            f"use --set fine_tuning.batch={max(1, facts.records // 2)} or less"
        )
    if tuning.batch:
        tuning = tuning.model_copy(update={"sample_rate": tuning.batch / facts.records, "batch": 0})
    decays = [tuning.ema_decay, *tuning.averages]
    if len(set(decays)) < len(decays):
        raise BadInput(
            f"fine_tuning.averages={list(tuning.averages)} beside fine_tuning.ema_decay={tuning.ema_decay:g} names a decay twice: name each once"
        )
    if privacy.delta == AUTO:
        privacy = privacy.model_copy(update={"delta": agreed or facts.records**privacy.delta_exponent})
    if privacy.epsilon > NEEDS_REASON and not privacy.reason.strip():
        raise BadInput(
            f"privacy.epsilon={privacy.epsilon:g} is above {NEEDS_REASON:g}, which protects hardly anyone: ask for less, or say in "
            "privacy.reason why it is wanted"
        )
    update = {"privacy": privacy, "fine_tuning": tuning, "data": named(settings.data), "evaluation": evaluation}
    update["generation"] = with_shares(settings.generation, facts.classes)
    if len(facts.classes) < LEAST_CLASSES:  # without a class to lean to, guidance only asks the network twice
        update["generation"] = update["generation"].model_copy(update={"guidance": 0.0})
    if METHODS[settings.method.name].needs_moments:
        update["alignment"] = settings.alignment.model_copy(update={"kind": "moments", "share": 1.0})
    return settings.model_copy(update=update)


def few_in_a_class(privacy: Privacy, facts: Facts) -> tuple[str, ...]:
    """A warning where the classes have so few records that noise may hide what tells them apart; of resolved settings."""
    each = facts.records / len(facts.classes)
    if each >= ENOUGH_RECORDS or len(facts.classes) < LEAST_CLASSES or math.isinf(privacy.epsilon):
        return ()
    return (
        f"{each:.0f} private records in a class are few: at epsilon {privacy.epsilon:g} the noise may hide what tells {len(facts.classes)} classes apart. "
        "More records, or fewer and coarser classes, help more than time",
    )


def weaknesses(privacy: Privacy, facts: Facts) -> tuple[str, ...]:
    """Warnings about a promise whose numbers say little, a line each; of resolved settings.

    Screen, report and card show the same lines.
    """
    warnings = []
    if privacy.delta >= 1 / facts.records:
        warnings.append(
            f"privacy.delta={privacy.delta:.4g} is not below 1/records = {1 / facts.records:.3g}: a mechanism could publish a whole "
            "record and still keep this promise"
        )
    if privacy.delta > LARGE_DELTA:
        warnings.append(
            f"privacy.delta={privacy.delta:.4g} is above {LARGE_DELTA:g}: with so large a probability everything may come out about any of the "
            f"{facts.private}"
        )
    if privacy.epsilon > WEAK_EPSILON:
        why = f"; the reason given: {privacy.reason}" if privacy.reason.strip() else ""
        warnings.append(
            f"privacy.epsilon={privacy.epsilon:g} is above {WEAK_EPSILON:g}: whoever sees the images may tell whether a record was "
            f"among the private ones{why}"
        )
    return tuple(warnings)


LARGE_DELTA = 0.01
"""Delta above which a plan warns, however few the records are."""
WEAK_EPSILON, NEEDS_REASON = 20.0, 50.0
"""Target epsilons above which a plan warns, and above which it needs a reason."""


def public_name(data: Data) -> str:
    """The name of the public images in scores: names of sources, without their places."""
    return "+".join(Path(part).name for part in sources.parts_of(data.public))


def one_extractor(runs: Iterable[tuple[Settings, Facts]]) -> str:
    """The feature extractor that will measure all these runs; `BadInput` where their scores could not stand in one table."""
    return only_extractor(
        cnn_name(*training_name(public_name(settings.data), facts.public_classes, facts.shape))
        if settings.evaluation.features == "cnn"
        else INCEPTION
        for settings, facts in runs
    )


def named(data: Data) -> Data:
    """The data section with the private set's ledger name and absolute paths filled in."""
    private, public = (source and sources.absolute(source) for source in (data.private, data.public))
    return data.model_copy(update={"private": private, "public": public, "name": data.name or name_of(private)})


def name_of(source: str) -> str:
    """The ledger's name of a private source without `data.name`."""
    return Path(sources.absolute(source)).name


def set_named(text: str, known: Sequence[str]) -> str:
    """The private set that a person means by `text`: one of the ledger's `known` names, or a source, by the name that a run on it would
    use; `BadInput` for anything else, with near names, since a budget on an unknown name would bind nothing."""
    if text in known:
        if sources.is_there(text) and (other := name_of(text)) != text:
            raise BadInput(
                f"{text!r} is a set of the ledger, and here also a link to images that it calls {other!r}: give the name {other!r}, or a path"
            )
        return text
    if sources.is_there(text):
        return name_of(text)
    near = difflib.get_close_matches(text, [*known, *sources.NAMES], n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise BadInput(
        f"the ledger knows no private set {text!r} (known: {', '.join(known) or 'none'}): {hint}give the path of the images, or "
        "the source, for a set of which there is no run yet"
    )


def plan_for(settings: Settings, facts: Facts) -> Plan:
    """The method's plan for resolved settings; `BadInput` where it cannot protect the images' groups, or cannot draw the requested
    classes."""
    refuse_unfit(settings, facts)
    plan = METHODS[settings.method.name].plan(settings, facts)
    if [spend for spend in plan.spends if spend.stage in SHARED_STAGES] != shared_spends(settings):
        raise ValueError(f"the plan of {plan.method} does not price what the settings ask for: see `shared_spends`")
    judge = settings.judge if settings.judge.use != "none" else None
    aligned: dict[str, Any] = {"moments": settings.alignment} if plan.events(STAGE_MOMENTS) else {}
    if plan.events(STAGE_CENTRAL):
        aligned["central"] = settings.central
    if plan.events(STAGE_MATCHING):
        aligned["matching"] = settings.matching
    stated = {
        "warnings": (*weaknesses(plan.privacy, facts), *drawn_from_others(settings)),
        "sets_behind": sets_behind(settings),
        "brought": brought(settings),
    }
    plan = plan.model_copy(update={**stated, "judge": judge, **aligned})
    refuse_unfit_plan(settings, plan)
    return protecting_groups(plan) if facts.unit else plan


def refuse_few_images(settings: Settings) -> None:
    """`BadInput` for fewer images than can be judged."""
    judged = min(settings.generation.images, settings.evaluation.images)
    if judged < FEWEST_JUDGED:
        raise BadInput(
            f"generation.images={settings.generation.images} with evaluation.images={settings.evaluation.images} leaves {judged} to "
            f"judge: ask for {FEWEST_JUDGED} or more"
        )


def left_out(data: Data) -> tuple[str, ...]:
    """Lines on what lies in the folders of either side and is not read, for the person who runs this: they count private files."""
    sides = {
        "data.private": (data.private, private_of(data).reading("all")),
        "data.public": (data.public, sources.public_reading(data, 0)),
    }
    texts = {name: sources.left_out(source, reading) for name, (source, reading) in sides.items() if source}
    return tuple(f"{name}: {text}: left out{_of_tables(name, text)}" for name, text in texts.items() if text)


def _of_tables(name: str, text: str) -> str:
    """How a table among the files that are left out would be read; empty where none is among them."""
    ends = sources.tables_among(text)
    return (
        f"; a table that lists the images and their labels is read where {name} is the path of its {ends[0]}"
        if ends
        else ""
    )


def private_set(settings: Settings) -> PrivateSet:
    """The private set of resolved settings: its name, and how it is read."""
    return private_of(settings.data)


def private_of(data: Data) -> PrivateSet:
    """The same of a data section."""
    return PrivateSet(
        name=data.name,
        source=data.private,
        size=data.size,
        channels=data.channels,
        crop=data.crop,
        invert=data.invert in ("private", "both"),
        held_out=data.held_out,
        folder=data.folder,
        share=data.share,
        columns=data.columns,
        decoding=data.decoding("private"),
        classes=data.classes,
        group=data.group,
        only=data.private_classes,
        unit="" if data.group == sources.NO_GROUPS else data.unit,
    )
