"""Stages that try to break a finished run, and the check for copies that every run makes. All results are INTERNAL."""

import math
from typing import Annotated, TypeVar

from artifacts import serialization
from artifacts.certify import certificate_of, spends_of
from artifacts.labels import Label
from artifacts.record import RunRecord, load_record, run_folder
from artifacts.references import (
    CanaryImages,
    ChosenImages,
    ChosenModel,
    ClassMoments,
    Copies,
    FeatureExtractor,
    Findings,
    Games,
    PublicAutoencoder,
    PublicImages,
    PublicModel,
    PublicMoments,
    PublicStart,
    Ref,
    Samples,
    Trajectories,
    TunedModel,
)
from artifacts.reports.audit import AUDIT_PICTURE, AUDIT_REPORT, audit_page, draw_audit
from artifacts.reports.in_short import COPIES_PICTURE
from artifacts.reports.page import in_html, inside
from artifacts.store import write_text
from sfumato import __version__
from sfumato.config import NOT_HASHED, Judge, Machine, Section
from sfumato.evaluation.attack_results import CopyCheck
from sfumato.evaluation.membership import Models
from sfumato.images import pairs_picture, save_png
from sfumato.methods import METHODS
from sfumato.methods.algorithm import begun, worst_pair
from sfumato.methods.parts import planned
from sfumato.methods.plan import (
    STAGE_CENTRAL,
    STAGE_COUNTS,
    STAGE_EMBEDDING,
    STAGE_JUDGE,
    STAGE_MATCHING,
    STAGE_MOMENTS,
    STAGE_PHASE_ONE,
    STAGE_RATES,
    STAGE_SELECTION,
    STAGE_VOTES,
    Facts,
)
from sfumato.privacy.accounting.events import AnyEvent, SubsampledGaussian
from sfumato.privacy.auditing import canaries, games, looks, query_games, white_box
from sfumato.privacy.auditing.findings import AGAINST_QUERIES, AGAINST_SAMPLER, Audit
from sfumato.privacy.ledger.ledger import Check
from tasks.inputs import Inputs, PrivateParts, PublicParts, load_parts
from tasks.release import model_name
from tasks.reporting import show_run, telling, write_up
from tasks.runtime.artifact import RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.environment import where
from tasks.runtime.narrowing import sections
from tasks.terms import Order, Terms

Kind = TypeVar("Kind", bound=Ref)

VOTED = (STAGE_SELECTION, STAGE_VOTES, STAGE_RATES)
"""Stages in which records vote."""


class Released(Section):
    """References to the artifacts that a finished run released, and to their ancestors."""

    public: PublicParts
    samples: Samples
    tuned: TunedModel | None = None
    moments: ClassMoments | None = None


def released(record: RunRecord) -> Released:
    """The ancestors of a run's samples, by kind; `Damaged` where one is missing from the store."""
    by_kind = {m["kind"]: (digest, m["label"]) for digest, m in where().store().ancestry(record.samples_artifact)}

    def ref(kind: type[Kind]) -> Kind | None:
        return (
            kind(digest=by_kind[kind.__name__][0], label=by_kind[kind.__name__][1])
            if kind.__name__ in by_kind
            else None
        )

    model = ref(PublicModel)
    samples = Samples(digest=record.samples_artifact, label=by_kind["Samples"][1])  # prototypes are of this kind, too
    if model is None:
        raise ValueError(f"the samples of run {record.run} do not stand on a public model")
    public = PublicParts(
        model=model,
        autoencoder=ref(PublicAutoencoder),
        extractor=ref(FeatureExtractor),
        base=ref(Trajectories),
        moments=ref(PublicMoments),
        own=ref(PublicStart),
        images=(ref(ChosenImages) or ref(PublicImages)) if record.plan.images_of_ballot else None,
    )
    return Released(
        public=public, samples=samples, tuned=ref(ChosenModel) or ref(TunedModel), moments=ref(ClassMoments)
    )


@stage
def check_copies(context: RunContext, order: Order, samples: Samples) -> Copies:
    """Compare every sample with the training and the held-out records, and save the closest pairs as a picture."""
    with draft_of(Copies, "copy check (INTERNAL)", context, parents=[samples]) as draft, where().ledger() as ledger:
        code = code_version(check_copies.fn)
        copied = looks.copied(
            order.access(ledger, context, stage="copies", purpose="copy check", code=code, parents=[samples]),
            serialization.load_images(draft.open(samples)),
        )
        tensors = {"to_train": copied.to_train, "to_test": copied.to_test}
        serialization.save(draft.folder, tensors, copied.check.model_dump(mode="json"))
        save_png(draft.folder / COPIES_PICTURE, pairs_picture(copied.pairs))
        draft.files, draft.entries = [draft.folder / COPIES_PICTURE], copied.entries
        draft.metrics = {"copies": copied.check.copies, "unexplained_copies": copied.check.unexplained}
    note_check(order.private.name, "copies", samples.digest, draft.ref, copied.check.passed, context.run)
    return draft.ref


def note_check(dataset: str, what: Check, samples: str, finding: Ref, passed: bool, run: str) -> None:
    """Write the verdict of a check of samples into the ledger, where publishing looks for it."""
    place = where()
    with place.ledger() as ledger:
        spends = spends_of(place.store(), ledger, samples)
        ledger.check(
            dataset,
            what=what,
            artifact=samples,
            finding=finding.digest,
            passed=passed,
            spends=spends,
            run=run,
            code_version=__version__,
        )


@stage
def make_canaries(context: RunContext, audit_name: str, count: int, facts: Facts) -> CanaryImages:
    """Make up canaries and toss their coins; `audit_name` sets them apart from those of every other audit."""
    with draft_of(CanaryImages, "canaries", context, params={"audit": audit_name, "count": count}) as draft:
        each = canaries.images_each(facts.records, facts.images) if facts.unit else 1
        canary_images = canaries.make_canaries(count, shape=facts.shape, classes=len(facts.classes), each=each)
        serialization.save_canaries(draft.folder, canary_images, facts.classes)
        draft.metrics = {"canaries": count}
    return draft.ref


class Mechanisms(Section):
    """The mechanisms that a run paid for."""

    tuning: SubsampledGaussian | None
    """For DP-SGD."""
    drawing: tuple[AnyEvent, ...]
    """For a sampler whose own noise hides the records."""
    queried: dict[str, tuple[AnyEvent, ...]]
    """By stage, for the stages that query the records once."""
    judge: Judge | None
    """Settings of the paid judge."""


@stage
def play(
    context: RunContext,
    audit_name: str,
    inputs: Annotated[Inputs, sections("schedule", "network", "method", "fine_tuning", "generation", "seed")],
    paid: Mechanisms,
    terms: Terms,
    machine: Annotated[Machine, NOT_HASHED],
) -> Games:
    """Play the mechanisms that a run paid for, as its entries price them, on made-up records; no private image is touched.

    `audit_name` sets one audit's games apart from every other's.
    """
    params, settings, facts = {"audit": audit_name}, inputs.settings, inputs.facts
    tuning, drawing, queried = paid.tuning, paid.drawing, paid.queried
    with draft_of(Games, "white-box test", context, parents=inputs.refs(), params=params) as draft:
        parts, method = load_parts(draft, inputs, machine), METHODS[settings.method.name]
        fits, bound = [], None
        if tuning:
            fits.append(
                white_box.play_training(
                    begun(method, settings, parts)[0],
                    facts.shape,
                    planned(method.corrupt)(settings, parts),
                    settings.fine_tuning,
                    tuning,
                    delta=terms.delta,
                    relation=terms.relation,
                    physical_batch=machine.physical_batch,
                    device=device_of(machine),
                    codec=parts.codec,
                    each=settings.fine_tuning.images_per_group if facts.unit else 0,
                )
            )
        if drawing:
            fit, bound = games.play_drawing(
                worst_pair(method, settings, parts, drawing),
                drawing,
                numbers=math.prod(parts.shape),
                delta=terms.delta,
                relation=terms.relation,
            )
            fits.append(fit)
        played = AGAINST_SAMPLER
        if queries := query_games.queries_of(
            queried.get(STAGE_COUNTS, ()),
            (*(event for name in VOTED for event in queried.get(name, ())), *drawing),
            queried.get(STAGE_MOMENTS, ()),
            queried.get(STAGE_JUDGE, ()),
            paid.judge,
            each=canaries.images_each(facts.records, facts.images) if facts.unit else 1,
            central=queried.get(STAGE_CENTRAL, ()),
            embedding=(*queried.get(STAGE_EMBEDDING, ()), *queried.get(STAGE_MATCHING, ())),
            copies=queried.get(STAGE_PHASE_ONE, ()),
        ):
            query_fits, shown = query_games.play_queries(queries, delta=terms.delta, relation=terms.relation)
            fits += query_fits
            bound, played = (bound, played) if bound else (shown, AGAINST_QUERIES)
        results = {"fits": [fit.model_dump(mode="json") for fit in fits], "played": played}
        serialization.save(draft.folder, {}, results | {"bound": bound.model_dump(mode="json") if bound else None})
        draft.metrics = {"faults": sum(len(fit.faults) for fit in fits)}
    return draft.ref


class Trial(Section):
    """The models trained again with canaries among the records."""

    canaries: CanaryImages
    trained: PrivateParts


@stage
def attack(
    context: RunContext,
    order: Order,
    inputs: Annotated[Inputs, sections("schedule", "network", "method", "fine_tuning", "seed")],
    samples: Samples,
    played: Games,
    trial: Trial | None,
) -> Findings:
    """Guess the coins from the denoiser trained with canaries, where there are any, and attack the released model and images of `inputs`."""
    again = trial.trained if trial else PrivateParts()
    seen = [again.votes, again.tuned, again.moments, trial.canaries] if trial else []
    parents = [*inputs.refs(), played, samples, *(ref for ref in seen if ref)]
    settings, device = inputs.settings, device_of(order.machine)
    method, code = METHODS[settings.method.name], code_version(attack.fn)
    with draft_of(Findings, "attacks (INTERNAL)", context, parents=parents) as draft, where().ledger() as ledger:
        facts, results = inputs.facts, serialization.load(draft.open(played))[1]
        if trial:
            retrained = {"votes": again.votes, "tuned": again.tuned, "moments": again.moments}
            parts = load_parts(draft, inputs.model_copy(update=retrained), order.machine)
            corrupt, (start, _) = planned(method.corrupt)(settings, parts), begun(method, settings, parts)
            coins, _ = serialization.load_canaries(draft.open(trial.canaries))
            bound, guesses = looks.guessed(
                corrupt,
                start.to(device),
                planned(parts.tuned),
                coins,
                delta=order.terms.delta,
                maps=parts.alignment,
                seed=settings.seed,
                device=device,
                codec=parts.codec,
            )
            results |= {
                "bound": bound.model_dump(mode="json"),
                "canary": f"one {facts.unit} with {coins.each} made-up images" if facts.unit else "",
                "canary_attack": guesses.model_dump(mode="json"),
            }
            draft.metrics = {"epsilon_lower_bound": bound.epsilon, "canary_auc": guesses.auc}
        model = load_parts(draft, inputs, order.machine)
        memberships, draft.entries = looks.attacked(
            order.access(ledger, context, stage="audit", purpose="audit", code=code, parents=parents),
            serialization.load_images(draft.open(samples)),
            # A network of the method's own cannot be compared with the public denoiser, loss by loss.
            Models(model.schedule, model.public, model.tuned) if model.tuned and not method.blueprint else None,
            maps=model.alignment,
            progress=draft.show,
            seed=settings.seed,
            device=device,
            codec=model.codec,
        )
        serialization.save(
            draft.folder, {}, results | {"memberships": [one.model_dump(mode="json") for one in memberships]}
        )
    return draft.ref


def conclude(record: RunRecord, findings: Findings, copies: Copies) -> RunRecord:
    """Write the audit beside the run: its report, its picture, its place in the record and in MLflow."""
    place = where()
    store, folder = place.store(), run_folder(record)
    results, (distances, copied) = (
        serialization.load(store.folder(findings))[1],
        serialization.load(store.folder(copies)),
    )
    with place.ledger() as ledger:
        certificate, promise = None, certificate_of(store, ledger, record.samples_artifact)
        if promise:  # the coins add or remove a record, so they can refute the price under add_remove
            certificate = ledger.price_of(store.entries(record.samples_artifact), promise.delta, "add_remove")
            if not math.isfinite(certificate):  # a release that shows how many records there are: then an exchange
                certificate = promise.epsilon
    result = Audit(
        run=record.run,
        certificate=certificate,
        claim=record.claim.epsilon,
        delta=record.plan.privacy.delta,
        copies=CopyCheck.model_validate(copied),
        **results,
    )
    dataset, samples = record.settings["data"]["name"], record.samples_artifact
    note_check(dataset, "audit", samples, findings, not result.refuted, record.run)
    draw_audit(folder / AUDIT_PICTURE, result, distances["to_train"], distances["to_test"])
    write_text(folder / AUDIT_REPORT, in_html(audit_page(result), inside(folder)))
    record = load_record(place.runs, record.run).model_copy(
        update={"audit": result}
    )  # it may have been published since
    write_up(record)
    with telling(record):
        if result.refuted:
            place.tracker().withdraw(model_name(record), run=record.tracking[Label.DP])
        show_run(record)
        place.tracker().log(
            record.run,
            label=Label.INTERNAL,
            run=record.tracking[Label.INTERNAL],
            metrics={"audit/refuted": float(result.refuted)}
            | ({"audit/epsilon_lower_bound": result.bound.epsilon} if result.bound else {}),
            files=[folder / AUDIT_REPORT],
        )
    return record
