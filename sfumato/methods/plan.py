"""What a method declares before any private image is opened: what is trained, what is paid, what that is worth.

A method is one file: a settings section `Method`, `plan(settings, facts) -> Plan`, the functions that its plan calls for, and
their list, an `Algorithm` (`sfumato.methods.algorithm`), which says what each is given.

Where we choose the class of each image, which is everywhere but with `Algorithm.labels`, the spends of a plan begin with
`shared_spends`, what any method may ask of the private records beside its own, so that all stands in the one certificate.

A plan is a frozen value; the flow branches on what it holds, never on the method's name.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import model_validator

from sfumato.config import (
    LATER,
    Alignment,
    Constants,
    Extractor,
    FineTuning,
    Generation,
    Judge,
    MethodSection,
    Network,
    Pretraining,
    Privacy,
    Relation,
    Section,
    SettingsOf,
    Training,
)
from sfumato.errors import BadInput
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import AnyEvent, DiscreteHistogram, Event, Gaussian

AnEvent = TypeVar("AnEvent", bound=Event)

STAGE_COUNTS, STAGE_VOTES, STAGE_PHASE_ONE, STAGE_TUNING = "class_counts", "votes", "phase_one", "fine_tuning"
STAGE_TRAINING, STAGE_DRAWING, STAGE_MOMENTS, STAGE_JUDGE = "training", "drawing", "moments", "judge"
"""Names of the stages that spend."""
ANY_NUMBER: Literal["any"] = "any"
"""Images covered by a certificate when a released model may draw as many as it likes."""
ONE_IMAGE = "one image with its label"
"""The unit of privacy where images have no groups."""


class Facts(Section):
    """What is known without opening a private image."""

    records: int
    """Number of private training records, or of groups where they have some; treated as public knowledge."""
    classes: tuple[str, ...]
    """Names of the private classes; treated as public knowledge."""
    public_classes: int
    """Number of public classes."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    unit: str = ""
    """What a group of private images is, such as `person`; empty where each image stands for itself."""
    images: int = 0
    """Private training images, where they have groups."""
    whole: Annotated[Constants | None, LATER] = None
    """The constants that these follow from; None in plans of earlier versions."""

    @property
    def private(self) -> str:
        """How many there are, for a person."""
        return (
            f"{self.records} {self.unit}s with {self.images} images" if self.unit else f"{self.records} private records"
        )


class BroughtModel(Section):
    """Weights from elsewhere, for which a person answers."""

    setting: str
    """Which setting brought them."""
    folder: str
    """Last part of its name."""
    kind: str
    """Class of the model in diffusers."""
    digest: str
    """SHA-256 over its settings and weights."""
    because: str
    """Why it counts as public, in the words of whoever brought it."""

    def sentence(self) -> str:
        """What it is, and who answers."""
        return f'{self.setting}={self.folder} ({self.kind}, SHA-256 {self.digest}) counts as public because: "{self.because}"'


class Blueprint(Section):
    """What it takes to build a network again before its weights are read."""

    network: Network
    shape: tuple[int, int, int]
    """Channels, height and width of its input."""
    classes: int


class Claim(Section):
    """The epsilon that a paper's own analysis gives for these settings. Never a certificate."""

    epsilon: float
    source: str
    """The paper's statement, with what it leaves out."""


def _up(value: float, decimals: int) -> float:
    """The next number up with so many decimals; what is that number but for rounding noise stays."""
    return round(math.ceil(value * 10.0**decimals * (1 - 1e-12)) / 10.0**decimals, decimals)


def in_full(unit: str) -> str:
    """What is protected as a whole, where a group of images is a `unit`; an empty one stands for single images."""
    return f"one {unit} with all images and labels" if unit else ONE_IMAGE


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
    """What the relation adds, removes or exchanges: a record, or a whole group."""
    entries: tuple[int, ...] = ()
    """The ledger entries of all spends that it covers; none in a plan."""

    @property
    def shown_epsilon(self) -> str:
        """With three decimals, never less than it is."""
        return f"{_up(self.epsilon, 3):.3f}"

    @property
    def shown_delta(self) -> str:
        """With three significant digits, never less than it is."""
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
        """The same for groups that are a `unit` each; an empty one stands for single images."""
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
    """k, the time of the knowledge base's keys; the ballot itself compares clean images."""


class Retrieval(Section):
    """The trajectory knowledge base that the method needs."""

    extractor: Extractor
    time: int
    """k, the time of the keys."""
    by_class: bool
    """One index per public class."""
    reference: float
    """Share of the public images kept out of pretraining for the base."""
    trajectories: int = 0
    """The most that the base holds; 0: all of that share."""


class PhaseOne(Section):
    """Training at the large diffusion times, before DP-SGD: all parameters, no labels, no clipping, no noise on gradients."""

    boundary: int
    """S: the images are noised to this time or a larger one."""
    noised_once: bool
    """On a copy of each image that is noised to S once and for all, and priced; otherwise on the images themselves, noised
    afresh at each step, which has no certificate."""
    training: Training


class Members(Section):
    """Denoisers trained plainly, each on its own shard of the private records; INTERNAL, used by a priced drawing alone."""

    count: int
    """Number of shards, and of models."""
    key: str
    """Key of the hash that deals records to shards."""
    training: Pretraining


class Spend(Section):
    """One planned access to private data and what it costs; a stage may have several."""

    stage: str
    what: str
    event: AnyEvent


def counting(generation: Generation) -> list[Spend]:
    """What the number of images of each class costs: one histogram where it is queried, otherwise nothing."""
    if generation.classes != "queried":
        return []
    event = DiscreteHistogram(noise_multiplier=generation.count_noise)
    return [Spend(stage=STAGE_COUNTS, what="number of private records of each class, with noise", event=event)]


def judging(judge: Judge, privacy: Privacy) -> list[Spend]:
    """What a judge costs that labels, chooses or guides what is drawn: its share of the target epsilon, where it is used."""
    if judge.use == "none":
        return []
    noise = _noise_of_judge(judge.share * privacy.epsilon, privacy.delta, privacy.relation, judge.steps)
    event = Gaussian(noise_multiplier=noise, count=judge.steps)
    return [
        Spend(stage=STAGE_JUDGE, what="judge: full-batch gradients of a linear head on public features", event=event)
    ]


@functools.lru_cache
def _noise_of_judge(epsilon: float, delta: float, relation: Relation, steps: int) -> float:
    """The noise with which so many steps cost `epsilon` by themselves."""
    return accountant.calibrate(epsilon, delta, lambda noise: [Gaussian(noise_multiplier=noise, count=steps)], relation)


def shared_spends(settings: SettingsOf[MethodSection]) -> list[Spend]:
    """What resolved settings ask of the private records whatever the method: how many there are of each class, their moments, and
    what a judge of drawn images learns.

    A plan works them out once, not for each noise that a calibration tries.
    """
    counts, judge = counting(settings.generation), judging(settings.judge, settings.privacy)
    others = tuple(spend.event for spend in (*counts, *judge))
    return [*counts, *aligning(settings.alignment, settings.privacy, others), *judge]


@functools.lru_cache(maxsize=64)
def aligning(alignment: Alignment, privacy: Privacy, beside: tuple[AnyEvent, ...] = ()) -> tuple[Spend, ...]:
    """What the moments of the classes cost, where they are taken: their share of the target, or with a share of 1 all that it has
    left `beside` other events."""
    if alignment.kind == "none":
        return ()

    def events(noise: float) -> list[AnyEvent]:
        count, mean, second = (noise * part for part in alignment.proportions)
        return [
            DiscreteHistogram(noise_multiplier=count),
            Gaussian(noise_multiplier=mean),
            Gaussian(noise_multiplier=second),
        ]

    others = beside if alignment.share == 1 else ()
    target = alignment.share * privacy.epsilon
    noise = accountant.calibrate(target, privacy.delta, lambda z: [*others, *events(z)], privacy.relation)
    return tuple(
        Spend(stage=STAGE_MOMENTS, what=f"{what} of each class", event=event)
        for what, event in zip(("count", "mean", "covariance"), events(noise), strict=True)
    )


SHARED_STAGES = (STAGE_COUNTS, STAGE_MOMENTS, STAGE_JUDGE)
"""The stages of `shared_spends`."""


class Plan(Section):
    """What a run will do and cost."""

    method: str
    facts: Facts
    retrieval: Retrieval | None = None
    moments: Annotated[Alignment | None, LATER] = None
    """Where the classes are aligned with the public images, how."""
    votes: Votes | None = None
    phase_one: PhaseOne | None = None
    members: Members | None = None
    prototypes: int = 0
    """Images that a priced drawing makes for `draw` to draw any number from; 0 where it makes the images themselves."""
    plain: Training | None = None
    """Training on private records without clipping or noise, which has no certificate."""
    fine_tuning: FineTuning | None = None
    """None where nothing is trained by DP-SGD."""
    public_images: bool = False
    """The drawing needs the public images themselves, beside the network trained on them."""
    noise_multiplier: float | None = None
    """DP-SGD noise, calibrated so that all spends together meet the target (by the claim, where nothing can be certified)."""
    judge: Judge | None = None
    """Where one learns from private records what labels, chooses or guides the drawn images."""
    generation: Generation
    evaluations: int
    """Network evaluations per image during sampling, guidance counted."""
    comparisons: int = 0
    """Private records that each image is compared with while it is drawn, summed over its steps."""
    spends: tuple[Spend, ...]
    privacy: Privacy
    """The target, and the terms in which all is paid: delta and relation."""
    certificate: Certificate | None
    """None where one of the spends cannot be certified."""
    claim: Claim
    warnings: tuple[str, ...] = ()
    """What a person should know of the promise before agreeing to it; said by screen, report and card alike."""
    brought: tuple[BroughtModel, ...] = ()
    """Public models that were not trained here."""

    @property
    def reason(self) -> str:
        """What a person answers for, as every entry of the ledger says it."""
        return "; ".join(filter(None, (self.privacy.reason, *(one.sentence() for one in self.brought))))

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_runs(cls, fields: Any) -> Any:
        """Plans once held their terms in the certificate alone, which all of them had; such runs can still be published."""
        if not isinstance(fields, dict) or "privacy" in fields or not fields.get("certificate"):
            return fields
        terms = {name: dict(fields["certificate"])[name] for name in ("epsilon", "delta", "relation")}
        return {**fields, "privacy": terms}

    def event(self, stage: str) -> AnyEvent:
        """What `stage` may spend, where it has one price."""
        return self.events(stage)[0]

    def events(self, stage: str) -> tuple[AnyEvent, ...]:
        """Everything that `stage` may spend; empty where the plan has no such stage."""
        return tuple(spend.event for spend in self.spends if spend.stage == stage)

    def events_of(self, kind: type[AnEvent], stage: str) -> tuple[AnEvent, ...]:
        """What `stage` may spend of one kind of event."""
        return tuple(event for event in self.events(stage) if isinstance(event, kind))

    def event_of(self, kind: type[AnEvent], stage: str) -> AnEvent:
        """What `stage` may spend, where it has one price of that kind."""
        (event,) = self.events_of(kind, stage)
        return event

    @property
    def unit(self) -> str:
        """What is protected as a whole."""
        return in_full(self.facts.unit)

    @property
    def lacking(self) -> str:
        """Why there is no certificate; empty where there is one."""
        reasons = [spend.event.uncertified(self.privacy.relation) for spend in self.spends]
        return "; ".join(filter(None, reasons))

    def __str__(self) -> str:
        """What is paid, drawn and promised, a line each."""
        shape, paid = "x".join(map(str, self.facts.shape)), list(dict.fromkeys(spend.what for spend in self.spends))
        promise = self.certificate.sentence() if self.certificate else f"none, the images stay INTERNAL: {self.lacking}"
        rows = [
            ("method", self.method),
            ("private", f"{self.facts.private}, {len(self.facts.classes)} classes, {shape}"),
            ("public", f"{self.facts.public_classes} classes"),
            ("paid", "; ".join(paid)),
            ("drawn", f"{self.generation.images} images, {self.evaluations} network evaluations each"),
            ("claim", f"epsilon {self.claim.epsilon:.3f}: {self.claim.source}"),
            *(("warning", warning) for warning in self.warnings),
            ("certificate", promise),
        ]
        return "\n".join(f"{name:12}{text}" for name, text in rows)


def protecting_groups(plan: Plan) -> Plan:
    """The plan of private images that have groups; `BadInput` where one of its stages can bound single images alone."""
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


def calibrated(privacy: Privacy, spends: Callable[[float], Sequence[Spend]]) -> tuple[float, Certificate]:
    """The least noise with which all of `spends(noise)` together meet the target, and the certificate that this earns."""

    def events(noise: float) -> list[AnyEvent]:
        return [spend.event for spend in spends(noise)]

    noise = accountant.calibrate(privacy.epsilon, privacy.delta, events, privacy.relation)
    return noise, Certificate(
        **accountant.priced(events(noise), privacy.delta, privacy.relation)._asdict(),
        delta=privacy.delta,
        relation=privacy.relation,
    )
