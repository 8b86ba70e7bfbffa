"""The plan of a method, made before any private image is opened: its training, its spends, its certificate.

A method is one file: a settings section `Method`, `plan(settings, facts) -> Plan`, the functions that its plan calls for, and
their list, an `Algorithm` (`sfumato.methods.algorithm`), which gives the arguments of each.

Where we choose the class of each image, which is everywhere but with `Algorithm.labels`, the spends of a plan begin with
`shared_spends`, the queries that any method may make beside its own, so that one certificate covers them all.

A plan is a frozen value; the flow branches on what it holds, never on the method's name.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import model_validator

from sfumato.class_shares import number_of_classes
from sfumato.config import (
    AUTO,
    LATER,
    Alignment,
    Central,
    Constants,
    FineTuning,
    Generation,
    Judge,
    Matching,
    MethodSection,
    Network,
    ParameterGroup,
    Pretraining,
    Privacy,
    Relation,
    Section,
    Selection,
    SettingsOf,
    Training,
)
from sfumato.errors import BadInput, OutOfReach
from sfumato.marks import EXTRACTOR, SUMMING, not_for
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import (
    AnyEvent,
    DiscreteHistogram,
    Event,
    Gaussian,
    MomentEvents,
    SubsampledGaussian,
)
from sfumato.retrieval.settings import Extractor, QuerySettings

AnEvent = TypeVar("AnEvent", bound=Event)

STAGE_COUNTS, STAGE_VOTES, STAGE_PHASE_ONE, STAGE_TUNING = "class_counts", "votes", "phase_one", "fine_tuning"
STAGE_TRAINING, STAGE_DRAWING, STAGE_MOMENTS, STAGE_JUDGE = "training", "drawing", "moments", "judge"
STAGE_CENTRAL, STAGE_SELECTION, STAGE_EMBEDDING, STAGE_RATES = "central", "selection", "embedding", "rates"
STAGE_MATCHING = "matching"
"""Names of the stages that spend."""
ANY_NUMBER: Literal["any"] = "any"
"""Images covered by a certificate when a released model may draw as many as it likes."""
ONE_IMAGE = "one image with its label"
"""The unit of privacy where images have no groups."""


class Facts(Section):
    """Public facts about the private set, known without opening an image."""

    records: int
    """Number of private training records, or of groups where they have some; treated as public knowledge."""
    classes: tuple[str, ...]
    """Names of the private classes; treated as public knowledge."""
    public_classes: int
    """Number of public classes."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    unit: str = ""
    """Name of a group of private images, such as `person`; empty where each image stands for itself."""
    images: int = 0
    """Private training images, where they have groups."""
    whole: Annotated[Constants | None, LATER] = None
    """The constants that these follow from; None in plans of earlier versions."""
    selected: Annotated[int, LATER] = 0
    """Public classes that the public denoiser learns from, of the private records' own choice; 0 where it learns from all."""
    clusters: Annotated[int, LATER] = 0
    """Clusters of public images that private records choose among; else 0."""
    sources: Annotated[tuple[int, ...], LATER] = ()
    """The source of each public class, a position in the mixture, where private records choose among sources; else empty."""

    @property
    def learnt_classes(self) -> int:
        """Number of public classes that the public denoiser knows."""
        return self.selected or self.public_classes

    @property
    def public_side(self) -> str:
        """The number of public classes, in words."""
        known = number_of_classes(self.public_classes)
        if self.clusters:
            return f"{known}; the denoiser learns from images of those of {self.clusters} clusters that private records vote for, as {self.selected} classes"
        if self.sources:
            return f"{known} of {len(set(self.sources))} sources; the denoiser learns from those that private records vote for, as {self.selected} classes"
        if self.selected:
            return f"{known}; the denoiser learns from the {self.selected} that private records vote for"
        return known

    @property
    def private(self) -> str:
        """The number of records, in words. That of a group's images is no part of it: it may tell how many one group has."""
        return f"{self.records} {self.unit}s" if self.unit else f"{self.records} private records"


class BroughtModel(Section):
    """Weights from elsewhere, for which a person answers."""

    setting: str
    """The setting that brought them."""
    folder: str
    """Last part of its name."""
    kind: str
    """Class of the model in diffusers."""
    digest: str
    """SHA-256 over its settings and weights."""
    because: str
    """The reason why it counts as public, in a person's words."""

    def sentence(self) -> str:
        """The model and the person's reason, in a sentence."""
        return f'{self.setting}={self.folder} ({self.kind}, SHA-256 {self.digest}) counts as public because: "{self.because}"'


class Blueprint(Section):
    """The arguments for building a network again before its weights are read."""

    network: Network
    shape: tuple[int, int, int]
    """Channels, height and width of its input."""
    classes: int


class OwnStart(Section):
    """A network of the method's own that learns from public images with the rows of their labels, before private training goes on with it."""

    blueprint: Blueprint
    training: Pretraining
    rows: int
    """Rows of an image that hold its label."""
    before: int
    """Codes that the private classes have; those of the public classes come after them."""
    classes: int
    """Public classes."""


class Claim(Section):
    """The epsilon that a paper's own analysis gives for these settings. Never a certificate."""

    epsilon: float
    """Infinite where a run has no noise and nothing is claimed for it."""
    source: str
    """The paper's statement, with what it leaves out."""


ROUNDING = 1e-12
"""Share of a number that may be rounding noise."""
SHOWN_DECIMALS = 3
"""Decimals of an epsilon that is shown."""


def _up(value: float, decimals: int) -> float:
    """Round up to a number of decimals; a value that equals such a number but for rounding noise stays."""
    return round(math.ceil(value * 10.0**decimals * (1 - ROUNDING)) / 10.0**decimals, decimals)


def in_full(unit: str) -> str:
    """The unit of privacy in words, where a group of images is a `unit`; an empty one stands for single images."""
    return f"one {unit} with all images and labels" if unit else ONE_IMAGE


UNCLAIMED = Claim(epsilon=math.inf, source="a run without noise, to compare with; no paper claims privacy for it")
"""The claim where `privacy.epsilon` is infinite."""


class Certificate(Section):
    """The epsilon that a sound numerical accountant gives for what the code does."""

    epsilon: float
    delta: float
    relation: Relation
    accountant: str
    images: int | str = ANY_NUMBER
    """Images covered: a number, or `any`."""
    unit: str = ONE_IMAGE
    neighbour: str = "record"
    """The unit that the relation adds, removes or exchanges: a record, or a whole group."""
    entries: tuple[int, ...] = ()
    """The ledger entries of all spends that it covers; none in a plan."""

    @property
    def shown_epsilon(self) -> str:
        """Epsilon with `SHOWN_DECIMALS`, rounded up."""
        return f"{_up(self.epsilon, SHOWN_DECIMALS):.{SHOWN_DECIMALS}f}"

    @property
    def shown_delta(self) -> str:
        """Delta with three significant digits, rounded up."""
        return f"{_up(self.delta, 2 - math.floor(math.log10(self.delta))):.3g}"

    def sentence(self) -> str:
        """The statement that travels with every shared image."""
        covered = "any number of images" if self.images == ANY_NUMBER else f"{self.images} images"
        neighbours = {
            "add_remove": f"adding or removing one {self.neighbour}",
            "replace_one": f"exchanging one {self.neighbour} for another",
        }[self.relation]
        return (
            f"({self.shown_epsilon}, {self.shown_delta})-differential privacy for {self.unit}, under {neighbours} "
            f"({self.relation}), covering {covered}; accountant: {self.accountant}{self._spends()}."
        )

    def protecting(self, unit: str) -> "Certificate":
        """The same certificate for groups that are a `unit` each; an empty one stands for single images."""
        usual = type(self).model_fields["neighbour"].default
        return self.model_copy(update={"unit": in_full(unit), "neighbour": unit or usual})

    def _spends(self) -> str:
        if not self.entries:
            return ""
        return f"; ledger entr{'y' if len(self.entries) == 1 else 'ies'} {', '.join(map(str, self.entries))}"


class Votes(Section):
    """A priced query: each private record votes, in its own class, for the public class it resembles most."""

    noise_multiplier: float
    """Standard deviation of the noise on each count; one record changes one count by 1."""
    time: int
    """k, the time of the knowledge base's keys, 0 without; the ballot itself compares clean images."""


class Retrieval(Section):
    """The trajectory knowledge base that the method needs."""

    extractor: Extractor
    time: int
    """k, the time of the keys; 0 where trajectories are taken at random, without keys."""
    times: Annotated[tuple[int, ...], LATER] = ()
    """Times to measure in place of `time`, largest first; empty where that is fixed."""
    query: Annotated[QuerySettings, LATER, not_for(EXTRACTOR)] = QuerySettings()
    """How keys are made."""
    conditional: Annotated[bool, LATER] = False
    """Whether one-step images are asked for their class, by h too."""
    by_class: Annotated[bool, not_for(EXTRACTOR, at=False)]
    """One index per public class."""
    reference: float
    """Share of the public images kept out of pretraining for the base."""
    trajectories: Annotated[int, not_for(EXTRACTOR)] = 0
    """Largest number of trajectories in the base; 0: all of that share."""

    @property
    def measured_times(self) -> tuple[int, ...]:
        """All times for which keys are made."""
        return self.times or (self.time,)

    def sentence(self) -> str:
        """How a trajectory is found, where that is not by a fixed k."""
        at_random = "a public trajectory is taken at random, and drawing begins with it, without the walk from T to k"
        if not self.time:
            return f"none: {at_random}"
        if not self.times:
            return ""
        shown = ", ".join(map(str, self.times))
        return f"k is measured on held-out public images, at times {shown}; where retrieval works at none, {at_random}"


class PhaseOne(Section):
    """Training at the large diffusion times, before DP-SGD: no labels, no clipping, no noise on gradients."""

    boundary: int
    """S: the images are noised to this time or a larger one."""
    noised_once: bool
    """On a copy of each image that is noised to S once, and priced; otherwise on the images themselves, noised again at each step,
    which has no certificate."""
    training: Training
    fixed: Annotated[tuple[ParameterGroup, ...], LATER] = ()
    """Groups that stay as they are."""


class Members(Section):
    """Denoisers trained plainly, each on its own shard of the private records; INTERNAL, used by a priced drawing alone."""

    count: int
    """Number of shards, and of models."""
    key: str
    """Key of the hash that deals records to shards."""
    training: Pretraining
    adapters: Annotated[int, LATER] = 0
    """Hidden numbers of members that are heads on the public denoiser's features; 0 where each is a whole denoiser."""
    scratch: Annotated[bool, LATER] = False
    """Whole denoisers begin at random weights, and not as the public one."""


class Evolution(Section):
    """What private records vote for, and what a denoiser learns from the candidates with votes."""

    candidates: int
    """Images that are voted for in a round, of all classes together."""
    features: Literal["backbone", "pixels"]
    """In which features the nearest candidate is found."""
    directions: int
    """Directions of the backbone's features."""
    threshold: float
    """Deviations of the noise up to which votes count as none."""
    largest: float
    """Most votes that count, in means of those that its class gave to candidates whose votes count."""
    variation: float
    """Part of all times that a candidate is noised to for a variation."""
    training: Pretraining


class Embedding(Section):
    """Features whose sums private records pay for, and what a generator learns from them."""

    features: Literal["fourier", "perceptual"]
    """Which features: random ones of a kernel, or those of the public classifier."""
    frequencies: int = 0
    """Random frequencies of the kernel; each gives two features."""
    length_scales: tuple[float, ...] = ()
    """Widths of the kernels whose mean the features stand for, in units of the root of the numbers of an image."""
    squares: Annotated[float, LATER] = 0.0
    """Share of the squared norm of perceptual features that their squares have; 0 leaves these out."""
    cells: Annotated[int, LATER] = 0
    """Largest side of a layer's maps in perceptual features; larger ones are averaged over a grid of so many cells a side."""
    image: Annotated[float, LATER] = 0.0
    """Share of the squared norm of perceptual features that the image itself has."""
    count_share: float
    """Share of a record's squared norm that goes to the count of its class."""
    training: Annotated[Training, not_for(SUMMING)] = Training()
    """Of the generator; the sums do not depend on it."""


class Spend(Section):
    """One planned access to private data and its cost; a stage may have several."""

    stage: str
    what: str
    event: AnyEvent


def counting(generation: Generation) -> list[Spend]:
    """The spend for the number of images of each class: one histogram where it is queried, otherwise none."""
    if generation.classes != "queried":
        return []
    event = DiscreteHistogram(noise_multiplier=generation.count_noise)
    return [Spend(stage=STAGE_COUNTS, what="number of private records of each class, with noise", event=event)]


def judging(judge: Judge, privacy: Privacy) -> list[Spend]:
    """The spend for a judge that labels, chooses or guides drawn images, where it is used: its share of the target epsilon."""
    if judge.use == "none":
        return []
    noise = _noise_of_sums(judge.share * privacy.epsilon, privacy.delta, privacy.relation, judge.steps)
    event = Gaussian(noise_multiplier=noise, count=judge.steps)
    return [
        Spend(stage=STAGE_JUDGE, what="judge: full-batch gradients of a linear head on public features", event=event)
    ]


def with_numbers(privacy: Privacy, epsilon: float, records: int) -> Privacy:
    """The terms at this epsilon, with the delta of this number of records where none is set."""
    delta = records**privacy.delta_exponent if privacy.delta == AUTO else privacy.delta
    return privacy.model_copy(update={"epsilon": epsilon, "delta": delta})


def noise_in_gradient(judge: Judge, privacy: Privacy, records: int, classes: int) -> float:
    """The length of the noise in a judge's mean gradient, where that of a record has a length of 1 at most; of a delta that is a number."""
    noise = _noise_of_sums(judge.share * privacy.epsilon, privacy.delta, privacy.relation, judge.steps)
    return noise_of_mean(noise, records, (classes, judge.directions + 1))


def noise_of_mean(noise_multiplier: float, records: int, shape: tuple[int, ...]) -> float:
    """The length of the noise in the mean of so many records, each of length 1 at most, in an array of this shape."""
    return noise_multiplier / records * math.sqrt(math.prod(shape))


@functools.lru_cache
def _noise_of_sums(epsilon: float, delta: float, relation: Relation, count: int = 1) -> float:
    """The noise with which so many Gaussian releases of sums alone cost `epsilon`."""
    return least_noise(epsilon, delta, lambda noise: [Gaussian(noise_multiplier=noise, count=count)], relation)


def selecting(selection: Selection, privacy: Privacy) -> list[Spend]:
    """The spend for the choice of public classes, where there is one: its share of the target epsilon."""
    if not selection.takes_votes:
        return []
    event = DiscreteHistogram(
        noise_multiplier=noise_of_votes(selection.share * privacy.epsilon, privacy.delta, privacy.relation)
    )
    what = f"votes for the public {selection.options} to learn from"
    return [Spend(stage=STAGE_SELECTION, what=what, event=event)]


@functools.lru_cache
def noise_of_votes(epsilon: float, delta: float, relation: Relation) -> float:
    """The noise with which one histogram of votes alone costs `epsilon`."""
    return least_noise(epsilon, delta, lambda noise: [DiscreteHistogram(noise_multiplier=noise)], relation)


def tuning_spends(tuning: FineTuning, privacy: Privacy, what: str, noise: float) -> list[Spend]:
    """The spends of DP-SGD with this noise: of one training, or of one for each of `rates` and of the votes that choose among them."""
    steps = SubsampledGaussian(noise_multiplier=noise, sample_rate=tuning.sample_rate, steps=tuning.steps)
    if not tuning.rates:
        return [Spend(stage=STAGE_TUNING, what=what, event=steps)]
    event = DiscreteHistogram(
        noise_multiplier=noise_of_votes(tuning.rates_share * privacy.epsilon, privacy.delta, privacy.relation)
    )
    return [
        *(Spend(stage=STAGE_TUNING, what=f"{what}, at {rate:g} times the rates", event=steps) for rate in tuning.rates),
        Spend(stage=STAGE_RATES, what="votes for one of the trained models", event=event),
    ]


def centring(central: Central, privacy: Privacy) -> list[Spend]:
    """The spend for central images, where they are used: its share of the target epsilon."""
    if not central.images:
        return []
    event = _central_event(central, central.share * privacy.epsilon, privacy.delta, privacy.relation)
    whose = "cells" if central.of == "cells" else "Poisson samples"
    what = f"central images: sums of the images of each class in {central.images} {whose}, with noise"
    return [Spend(stage=STAGE_CENTRAL, what=what, event=event)]


@functools.lru_cache
def _central_event(central: Central, epsilon: float, delta: float, relation: Relation) -> Gaussian | SubsampledGaussian:
    """The query of central images with which it alone costs `epsilon`: cells have no record in common, samples do."""

    def event(noise: float) -> Gaussian | SubsampledGaussian:
        if central.of == "cells":
            return Gaussian(noise_multiplier=noise)
        return SubsampledGaussian(noise_multiplier=noise, sample_rate=central.sample_rate, steps=central.images)

    return event(least_noise(epsilon, delta, lambda noise: [event(noise)], relation))


def matching(settings: Matching, privacy: Privacy) -> list[Spend]:
    """The spend for the mean embeddings that drawn images are moved to, where they are: its share of the target epsilon."""
    if not settings.share:
        return []
    event = Gaussian(noise_multiplier=_noise_of_sums(settings.share * privacy.epsilon, privacy.delta, privacy.relation))
    return [Spend(stage=STAGE_MATCHING, what="mean embeddings: sums of random features of each class", event=event)]


def embedding_noise(how: Matching, records: float, noise_multiplier: float) -> float:
    """Length of the noise in the mean embedding of a class of so many records; that of images which are all alike has a length of 1."""
    return noise_multiplier * math.sqrt(2 * how.frequencies / (1 - how.count_share)) / max(1.0, records)


def shared_spends(settings: SettingsOf[MethodSection]) -> list[Spend]:
    """The spends of resolved settings for any method: votes for public classes to learn from, the number of records of each class, their
    moments, central images, mean embeddings to match, and the judge of drawn images.

    A plan computes them once, not for each noise that a calibration tries.
    """
    counts, judge = counting(settings.generation), judging(settings.judge, settings.privacy)
    central, selection = centring(settings.central, settings.privacy), selecting(settings.selection, settings.privacy)
    sums = matching(settings.matching, settings.privacy)
    others = tuple(spend.event for spend in (*selection, *counts, *central, *sums, *judge))
    return [*selection, *counts, *aligning(settings.alignment, settings.privacy, others), *central, *sums, *judge]


@functools.lru_cache(maxsize=64)
def aligning(alignment: Alignment, privacy: Privacy, beside: tuple[AnyEvent, ...] = ()) -> tuple[Spend, ...]:
    """The spends for the moments of the classes, where they are used: their share of the target, or with a share of 1 all of it that
    the events `beside` leave."""
    if alignment.kind == "none":
        return ()

    others = beside if alignment.share == 1 else ()
    target = alignment.share * privacy.epsilon
    noise = least_noise(target, privacy.delta, lambda z: [*others, *moment_events(alignment, z).paid], privacy.relation)
    events = moment_events(alignment, noise)
    words = {
        "count of each class": events.counts,
        "mean of each class": events.means,
        "distances from the means, in one histogram": events.distances,
        "covariance of each class": events.covariances,
        f"{alignment.rounds} rounds of k-means, {alignment.cells} cells of each class": events.rounds,
    }
    return tuple(Spend(stage=STAGE_MOMENTS, what=what, event=event) for what, event in words.items() if event)


def moment_events(alignment: Alignment, noise: float) -> MomentEvents:
    """The events of class moments with `noise` in the proportions of the settings."""
    count, mean, second = (noise * part for part in alignment.proportions)
    apart = noise * alignment.distances
    rounds = Gaussian(noise_multiplier=noise * alignment.refining, count=alignment.rounds)
    return MomentEvents(
        counts=DiscreteHistogram(noise_multiplier=count),
        means=Gaussian(noise_multiplier=mean),
        distances=DiscreteHistogram(noise_multiplier=apart) if alignment.distances else None,
        covariances=Gaussian(noise_multiplier=second),
        rounds=rounds if alignment.cells > 1 else None,
    )


SHARED_STAGES = (STAGE_SELECTION, STAGE_COUNTS, STAGE_JUDGE, STAGE_MATCHING, STAGE_MOMENTS, STAGE_CENTRAL)
"""The stages of `shared_spends`, in the order in which a run pays for them; those of the method follow."""


class Plan(Section):
    """All that a run will do, and its cost."""

    method: str
    facts: Facts
    retrieval: Retrieval | None = None
    moments: Annotated[Alignment | None, LATER] = None
    """How the classes are aligned with the public images; None where they are not."""
    central: Annotated[Central | None, LATER] = None
    """Central images, on which the denoiser warms up before DP-SGD; None without them."""
    matching: Annotated[Matching | None, LATER] = None
    """Mean embeddings that drawn images are moved to; None without them."""
    own_start: Annotated[OwnStart | None, LATER] = None
    """What a network of the method's own learns from public images; None where private training begins it afresh, or takes the denoiser."""
    votes: Votes | None = None
    evolution: Annotated[Evolution | None, LATER] = None
    embedding: Annotated[Embedding | None, LATER] = None
    phase_one: PhaseOne | None = None
    members: Members | None = None
    prototypes: int = 0
    """Images of a priced drawing from which `draw` draws any number; 0 where it draws the final images."""
    distillation: Annotated[Pretraining | None, LATER] = None
    """Training of the public denoiser on the prototypes; None where images are drawn from them as they are."""
    plain: Training | None = None
    """Training on private records without clipping or noise, which has no certificate."""
    fine_tuning: FineTuning | None = None
    """None where nothing is trained by DP-SGD."""
    public_images: bool = False
    """The drawing needs the public images themselves, beside the network trained on them."""
    noise_multiplier: float | None = None
    """DP-SGD noise, calibrated so that all spends together meet the target (by the claim, where nothing can be certified)."""
    judge: Judge | None = None
    """Settings of the judge that learns from private records and labels, chooses or guides the drawn images; None without one."""
    generation: Generation
    evaluations: int
    """Network evaluations per image during sampling, guidance counted; the most where k is still to be measured."""
    comparisons: int = 0
    """Private records that each image is compared with while it is drawn, summed over its steps."""
    spends: tuple[Spend, ...]
    privacy: Privacy
    """The target, and the terms of all spends: delta and relation."""
    certificate: Certificate | None
    """None where one of the spends cannot be certified."""
    claim: Claim
    warnings: tuple[str, ...] = ()
    """Warnings about the promise before a person agrees to it, shown by screen, report and card alike."""
    sets_behind: tuple[str, ...] = ()
    """The private sets that public images, or weights, were drawn from by earlier releases."""
    brought: tuple[BroughtModel, ...] = ()
    """Public models that were not trained here."""

    @property
    def measured(self) -> Alignment | None:
        """What is measured of the public images: for the maps of the classes, or for central images their mean, a bound and centroids."""
        if not self.central:
            return self.moments
        return Alignment(kind="moments", clusters=self.central.images if self.central.of == "cells" else 1)

    @property
    def reason(self) -> str:
        """A person's reasons, as every entry of the ledger holds them."""
        return "; ".join(filter(None, (self.privacy.reason, *(one.sentence() for one in self.brought))))

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_runs(cls, fields: Any) -> Any:
        """Read plans of earlier versions, which held their terms in the certificate alone; such runs can still be published."""
        if not isinstance(fields, dict) or "privacy" in fields or not fields.get("certificate"):
            return fields
        terms = {name: dict(fields["certificate"])[name] for name in ("epsilon", "delta", "relation")}
        return {**fields, "privacy": terms}

    def event(self, stage: str) -> AnyEvent:
        """The event that `stage` may spend, where it has one."""
        return self.events(stage)[0]

    def events(self, stage: str) -> tuple[AnyEvent, ...]:
        """All events that `stage` may spend; empty where the plan has no such stage."""
        return tuple(spend.event for spend in self.spends if spend.stage == stage)

    def events_of(self, kind: type[AnEvent], stage: str) -> tuple[AnEvent, ...]:
        """The events of one kind that `stage` may spend."""
        return tuple(event for event in self.events(stage) if isinstance(event, kind))

    def event_of(self, kind: type[AnEvent], stage: str) -> AnEvent:
        """The event of one kind that `stage` may spend, where it has one."""
        (event,) = self.events_of(kind, stage)
        return event

    @property
    def images_of_ballot(self) -> bool:
        """Whether votes compare with the public images themselves, because there is no knowledge base."""
        return self.votes is not None and self.retrieval is None

    @property
    def evaluations_in_words(self) -> str:
        """The number of network evaluations per image."""
        most = "at most " if self.retrieval and self.retrieval.times else ""
        return f"{most}{self.evaluations} network evaluations"

    @property
    def unit(self) -> str:
        """The unit of privacy in words."""
        return in_full(self.facts.unit)

    @property
    def lacking(self) -> str:
        """The reason why there is no certificate; empty where there is one."""
        reasons = [spend.event.uncertified(self.privacy.relation) for spend in self.spends]
        return "; ".join(dict.fromkeys(filter(None, reasons)))

    def __str__(self) -> str:
        """Spends, drawing and promise, a line each."""
        shape, paid = "x".join(map(str, self.facts.shape)), list(dict.fromkeys(spend.what for spend in self.spends))
        promise = self.certificate.sentence() if self.certificate else f"none, the images stay INTERNAL: {self.lacking}"
        rows = [
            ("method", self.method),
            ("private", f"{self.facts.private}, {number_of_classes(len(self.facts.classes))}, {shape}"),
            ("public", self.facts.public_side),
            ("paid", "; ".join(paid)),
            *(("retrieval", text) for text in [self.retrieval.sentence() if self.retrieval else ""] if text),
            ("drawn", f"{self.generation.images} images, {self.evaluations_in_words} each"),
            ("claim", f"epsilon {self.claim.epsilon:.3f}: {self.claim.source}"),
            *(("warning", warning) for warning in self.warnings),
            ("certificate", promise),
        ]
        return "\n".join(f"{name:12}{text}" for name, text in rows)


def protecting_groups(plan: Plan) -> Plan:
    """The plan for private images with groups; `BadInput` where one of its stages can bound single images alone."""
    facts = plan.facts
    alone = {
        "its first phase": plan.phase_one,
        "its training without clipping": plan.plain,
        "its drawing": plan.events(STAGE_DRAWING) and not plan.members,
    }
    for stage, there in alone.items():
        if there:
            raise BadInput(
                f"method.name={plan.method} protects single images, not each {facts.unit} with several ({stage} has no bound for a group): "
                "choose another method, or --set data.group=none"
            )
    claim = plan.claim.model_copy(update={"source": f"{plan.claim.source}; one {facts.unit} taken for one record"})
    certificate = plan.certificate and plan.certificate.protecting(facts.unit)
    return plan.model_copy(update={"certificate": certificate, "claim": claim})


def least_noise(
    epsilon: float, delta: float, events: Callable[[float], Sequence[AnyEvent]], relation: Relation
) -> float:
    """The least noise multiplier with which `events` cost at most `epsilon` together: none where that is infinite."""
    return 0.0 if epsilon == math.inf else accountant.calibrate(epsilon, delta, events, relation)


def refuse_infinite(privacy: Privacy, setting: str, why: str) -> None:
    """Raise `BadInput` at an infinite target, where a method has no form without noise."""
    if privacy.epsilon == math.inf:
        raise BadInput(f"privacy.epsilon=inf has no meaning with {setting}: {why}; choose a finite one")


def certified(privacy: Privacy, events: Sequence[AnyEvent]) -> Certificate | None:
    """The certificate of `events` together; None at an infinite target, which is a run to compare with, and INTERNAL."""
    if privacy.epsilon == math.inf:
        return None
    price = accountant.priced(events, privacy.delta, privacy.relation)
    return Certificate(**price._asdict(), delta=privacy.delta, relation=privacy.relation)


def calibrated(privacy: Privacy, spends: Callable[[float], Sequence[Spend]]) -> tuple[float, Certificate | None]:
    """The least noise with which all of `spends(noise)` together meet the target, and the certificate; 0 and None at an infinite one.

    `BadInput` where what costs the same at any noise costs more, which the message names.
    """

    def events(noise: float) -> list[AnyEvent]:
        return [spend.event for spend in spends(noise)]

    try:
        noise = least_noise(privacy.epsilon, privacy.delta, events, privacy.relation)
    except OutOfReach:
        fixed = [spend for spend, other in zip(spends(1.0), spends(2.0), strict=True) if spend == other]
        cost = accountant.priced([spend.event for spend in fixed], privacy.delta, privacy.relation).epsilon
        stages = {spend.stage: spend.what for spend in fixed}
        ways = [f"raise {NOISE_SETTINGS[stage]}" for stage in stages if stage in NOISE_SETTINGS]
        raise BadInput(
            f"privacy.epsilon = {privacy.epsilon:g} is out of reach: {'; '.join(stages.values())} cost {cost:.3f} at "
            f"delta {privacy.delta:g} before anything else is paid; {', '.join([*ways, 'leave them out'])}, or raise privacy.epsilon"
        ) from None
    return noise, certified(privacy, events(noise))


NOISE_SETTINGS = {STAGE_VOTES: "method.vote_noise", STAGE_COUNTS: "generation.count_noise"}
"""Stages whose noise is a setting and no share of the target -> that setting."""
