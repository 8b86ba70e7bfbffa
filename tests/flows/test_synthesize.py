"""The order of the flow, without Prefect: what is asked of the stages, and that nothing happens before the checks."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from PIL import Image, ImageFile

from artifacts import gate
from artifacts.references import (
    PublicAutoencoder,
    PublicClassifier,
    PublicImages,
    PublicModel,
)
from flows import rehearse
from flows import synthesize as flow
from flows.private_half import BASELINE
from flows.public_half import encode, load_images, prepare
from flows.synthesize import PUBLIC_ONLY, SYNTHETIC, UNMATCHED, run_plan
from sfumato import sources
from sfumato.config import Matching
from sfumato.errors import BadInput, Refused
from sfumato.methods import METHODS
from sfumato.privacy.ledger.chain import is_there
from tasks import checks, evaluation, generation, planning, private, public, rehearsal, selection
from tasks.inputs import PrivateParts, PublicParts
from tasks.planning import Wishes, plan_run
from tasks.record import BASELINE_METHOD
from tasks.runtime.caching import Stage, canonical
from tasks.runtime.environment import configure, where
from tests.examples import home_at, write_classes
from tests.flows.journal import Book, made, planned, stages
from tests.sfumato.sources.writing import write_mnist_like


def test_the_private_images_are_checked_before_any_stage_but_the_reading_of_the_public_ones(book, monkeypatch):
    def fail(*_):
        raise BadInput("the image '/scans/well/004.png' is corrupt")

    monkeypatch.setattr(checks, "check_private", fail)
    with pytest.raises(BadInput, match=r"004\.png"):
        run_plan(planned())
    assert stages(book) == ["load-public"]


def test_the_private_images_are_compared_with_the_public_ones_of_this_run(book, monkeypatch):
    given = []
    monkeypatch.setattr(checks, "check_private", lambda order, *others: given.extend(others) or order.private)
    run_plan(planned(), Wishes(new_version=True))
    assert given[1:] == [PublicImages(digest=f"{1:064d}", label="PUBLIC"), True, planned().plan.facts.whole]
    (trained,) = book.of(public.pretrain)
    assert trained.given.public.images == given[1]


def test_the_private_images_are_compared_with_public_ones_before_their_noise(book, monkeypatch):
    given = []
    monkeypatch.setattr(checks, "check_private", lambda order, *others: given.extend(others) or order.private)
    run_plan(planned("rapid", "data.public_noise=0.1"))
    noised, result = book.of(public.load_public)
    assert (noised.given.data.public_noise, result.given.data.public_noise) == (0.1, 0)
    assert given[1].digest == made(book, result) and book.of(public.pretrain)[0].given.public.images.digest == made(
        book, noised
    )


def test_the_flow_reads_like_the_paper(book):
    assert run_plan(planned()) == "record"
    assert stages(book) == [
        "load-public",
        "check",
        "pretrain",
        "train-extractor",
        "build-knowledge-base",
        "train-classifier",
        "rehearse",
        "take-votes",
        "fine-tune",
        "generate",
        "generate",
        "fine-tune",
        "generate",
        "find-nearest",
        "evaluate",
        "check-copies",
    ]


def test_a_method_without_retrieval_has_no_knowledge_base_and_no_baseline_but_itself(book):
    run_plan(planned(BASELINE_METHOD))
    assert stages(book) == [
        "load-public",
        "check",
        "pretrain",
        "train-classifier",
        "rehearse",
        "fine-tune",
        "generate",
        "generate",
        "find-nearest",
        "evaluate",
        "check-copies",
    ]


def test_votes_of_a_method_without_a_base_compare_with_the_images_which_no_drawing_is_given(book):
    run_plan(planned(BASELINE_METHOD, "method.votes=true"))
    (loaded,), (requested,) = (book.of(stage) for stage in (public.load_public, private.take_votes))
    assert loaded and requested.given.inputs.public.images == PublicImages(digest=f"{1:064d}", label="PUBLIC")
    own, *_ = book.of(generation.generate)
    assert own.given.inputs.public.images is None and own.given.inputs.votes


def test_without_a_query_nothing_learns_features(book):
    run_plan(planned("rapid", "method.neighbour=random"))
    (base,) = book.of(public.build_knowledge_base)
    assert base.given.extractor is None and not book.of(public.train_extractor)


def test_times_to_measure_are_given_to_the_stage_that_chooses_and_no_paid_stage_depends_on_more_than_its_base(book):
    run_plan(planned("rapid", "method.times=[0.8,0.5]"))
    (base,), (tuned, _) = book.of(public.build_knowledge_base), book.of(private.fine_tune)
    assert base.given.retrieval.times == (800, 500)
    assert tuned.given.inputs.public.base.digest == f"{stages(book).index('build-knowledge-base') + 1:064d}"


def test_a_perceptual_term_alone_asks_for_the_backbone(book):
    run_plan(planned("dp-sgd", "latent.kind=kl", "latent.perceptual=.1"))
    begun = stages(book)
    assert begun.index("train-backbone") < begun.index("train-autoencoder")
    (coded,) = book.of(public.train_autoencoder)
    assert coded.given.backbone.digest == f"{begun.index('train-backbone') + 1:064d}"


@pytest.mark.parametrize("method", METHODS)
def test_in_latents_every_stage_is_given_the_autoencoder(book, method):
    """It is trained on the public images alone, before the denoiser; without latents there is none."""
    run_plan(planned(method, "latent.kind=kl"))
    begun = [name for name in stages(book) if not name.startswith("check")]
    assert begun[:3] == ["load-public", "train-autoencoder", "pretrain"]
    (coded,) = book.of(public.train_autoencoder)
    images = coded.given.images
    assert isinstance(images, PublicImages) and coded.given.latent.kind == "kl" and coded.given.backbone is None
    coder = PublicAutoencoder(digest=f"{stages(book).index('train-autoencoder') + 1:064d}", label="PUBLIC")
    for stage in (public.pretrain, public.train_extractor, public.build_knowledge_base):
        assert all((one.given.public.images, one.given.public.autoencoder) == (images, coder) for one in book.of(stage))
    for stage in (private.take_votes, private.fine_tune, private.train_member, generation.generate):
        assert all(one.given.inputs.public.autoencoder == coder for one in book.of(stage))


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.corrupt])
def test_only_the_release_is_paid_and_the_comparison_is_a_look(book, method):
    run = planned(method)
    plan = run.plan
    run_plan(run)
    tuned = [one for stage in (private.train_plainly, private.fine_tune) for one in book.of(stage)]
    own = [True] if plan.fine_tuning or plan.plain else []
    assert [one.paid for one in tuned] == [*own, False][: len(tuned)]
    assert [one.given.order.terms.comparison for one in tuned] == [*([False] * len(own)), True][: len(tuned)]
    assert all(one.given.event == plan.spends[-1].event for one in tuned[: len(own)])
    first, *others = book.of(generation.generate_privately) + book.of(generation.generate)
    assert first.paid and not any(one.paid for one in others)


def test_prototypes_are_paid_for_whatever_is_drawn_from_them(book):
    """Neither the number of images nor the way they are drawn again reaches what the prototypes are kept under."""
    requested = []
    for images in (50, 500):
        again = ["method.members=3", "method.key=two", "method.prototypes=2", f"generation.images={images}"]
        run_plan(planned("dp-ensemble", *again, f"generation.redraw={images / 1000}"))
        (first,) = book.of(generation.generate_privately)
        from_them, public_alone = book.of(generation.generate)
        assert first.paid and first.given.prototypes is True and first.given.wanted.images == 20
        assert from_them.given.inputs.prototypes is not None and from_them.given.images == images and from_them.paid
        assert public_alone.given.inputs.prototypes is None
        requested.append([canonical(vars(first.given)[name]) for name in ("events", "wanted", "order", "inputs")])
        book.calls.clear()
    assert requested[0] == requested[1]


def test_what_is_drawn_from_prototypes_moves_and_they_do_not(book):
    """An image that is drawn besides, so that its class can move together, would be paid for too."""
    several = ["method.members=3", "method.prototypes=2", "matching.share=0.2", "matching.frequencies=50"]
    run_plan(planned("dp-ensemble", "method.key=two", "method.radius=0.01", *several))
    (first,), (drawn, *others) = book.of(generation.generate_privately), book.of(generation.generate)
    assert first.given.inputs.matching is None and first.given.inputs.settings.matching == Matching()
    assert drawn.given.inputs.matching is not None and drawn.given.inputs.settings.matching.share == 0.2
    assert not any(one.given.inputs.matching for one in others)
    unmoved = next(one.given.inputs for one in others if one.given.inputs.prototypes)
    assert unmoved == drawn.given.inputs.model_copy(update={"matching": None}), "the same points, not moved"
    (scored,) = book.of(evaluation.evaluate)
    assert list(scored.given.judged.sets)[:2] == [SYNTHETIC, UNMATCHED]


def test_points_of_paid_trajectories_are_kept_whatever_branches_from_them(book):
    """Neither the number of images nor how far they go back reaches what the points are kept under, and no public image goes on with them."""
    given = []
    for images, branch in ((50, 50), (500, 60)):
        again = ["method.pay=class", "method.trajectories=2", f"generation.images={images}", f"method.branch={branch}"]
        run_plan(planned("empirical-denoiser", *again))
        (first,) = book.of(generation.generate_privately)
        from_them = book.of(generation.generate)[0].given
        assert first.paid and first.given.prototypes is True and first.given.wanted.images == 20
        assert first.given.inputs.public.images is not None and from_them.inputs.public.images is None
        assert from_them.inputs.settings.method.branch == branch and from_them.images == images
        given.append([canonical(vars(first.given)[name]) for name in ("events", "wanted", "order", "inputs")])
        book.calls.clear()
    assert given[0] == given[1]


def test_everything_judged_is_named_and_judged_once(book):
    run_plan(planned())
    (scored,) = book.of(evaluation.evaluate)
    assert list(scored.given.judged.sets) == [SYNTHETIC, PUBLIC_ONLY, BASELINE]
    assert len({ref.digest for ref in scored.given.judged.sets.values()}) == 3
    assert scored.given.order.terms.comparison


def test_the_eyes_learn_from_public_images_and_are_no_part_of_what_is_paid_for(book):
    run_plan(planned())
    (trained,) = book.of(public.train_classifier)
    assert isinstance(trained.given.images, PublicImages) and trained.given.source == "glyphs"
    (scored,) = book.of(evaluation.evaluate)
    eyes = scored.given.eyes.classifier
    assert isinstance(eyes, PublicClassifier)
    for stage in (private.take_votes, private.fine_tune, generation.generate):
        assert all(eyes.digest not in repr(one.given) for one in book.of(stage))


def test_with_inceptions_features_the_eyes_serve_the_rehearsal_alone(book):
    run = planned()
    inception = run.settings.evaluation.model_copy(update={"features": "inception"})
    run_plan(replace(run, settings=run.settings.model_copy(update={"evaluation": inception})))
    assert len(book.of(public.train_classifier)) == 1 and book.of(evaluation.evaluate)[0].given.eyes.classifier is None


def test_without_a_baseline_none_is_trained(book):
    run_plan(planned("rapid", "evaluation.baseline=false"))
    assert len(book.of(private.fine_tune)) == 1
    assert list(book.of(evaluation.evaluate)[0].given.judged.sets) == [SYNTHETIC, PUBLIC_ONLY]


def test_where_no_public_model_learns_none_is_judged(book):
    run_plan(planned("dp-sgd", "pretraining.steps=0", "evaluation.baseline=false"))
    assert list(book.of(evaluation.evaluate)[0].given.judged.sets) == [SYNTHETIC]


def test_public_stages_know_nothing_of_the_private_images(book):
    run_plan(planned("rapid", "data.name=secret-name", "latent.kind=kl"))
    train = (public.train_autoencoder, public.pretrain, public.train_extractor, public.build_knowledge_base)
    train = (*train, public.train_classifier, public.rehearse)
    for stage in (public.load_public, *train):
        for one in book.of(stage):
            assert "secret-name" not in repr(one.given) and "'digits'" not in repr(one.given)


@pytest.mark.parametrize(
    ("height", "width", "changes", "expected"),
    [(8, 8, [], (8, 8)), (8, 12, [], (8, 12)), (12, 8, [], (12, 8)), (8, 12, ["data.size=10"], (10, 10))],
)
def test_public_images_get_the_shape_of_the_private_ones(tmp_path, height, width, changes, expected):
    for name in ("scans", "open"):
        write_classes(tmp_path / name, {"a": 3, "b": 3}, height=height, width=width)
    there = [f"data.private={tmp_path / 'scans'}", f"data.public={tmp_path / 'open'}", "method.votes=false"]
    run = planned("rapid", *there, *changes)
    settings, plan = run.settings, run.plan
    book = Book()
    load_images(settings, plan, book)
    (read,) = book.of(public.load_public)
    data, size, seed = read.given.data, read.given.size, read.given.seed
    result = sources.load(data.public, sources.Reading(part="all", size=size, channels=data.channels, seed=seed))
    assert result.pixels.shape[1:] == plan.facts.shape == (1, *expected)


@pytest.mark.parametrize("changes", [[], ["data.size=10"]])
def test_glyphs_are_drawn_at_the_side_of_the_private_images(changes):
    run = planned("rapid", *changes)
    settings, plan = run.settings, run.plan
    book = Book()
    parts = prepare(settings, plan, encode(settings, load_images(settings, plan, book), book), book)
    (read,) = book.of(public.load_public)
    assert read.given.size == plan.facts.shape[1] == (10 if changes else 8)
    assert isinstance(parts.model, PublicModel) and parts.base is not None


def test_other_images_under_the_same_name_are_loaded_anew(tmp_path):
    write_classes(tmp_path / "scans", {"a": 3, "b": 3}, height=6, width=6)
    there = [f"data.private={tmp_path / 'scans'}", "data.public=mnist", f"data.folder={tmp_path / 'data'}"]
    keys = []
    for seed in (0, 0, 1):
        if seed or not keys:  # as many bytes under the same names
            write_mnist_like(tmp_path / "data" / "mnist", end="", seed=seed)
        run = planned("dp-sgd", *there)
        settings, plan = run.settings, run.plan
        book = Book()
        load_images(settings, plan, book)
        (read,) = book.of(public.load_public)
        keys.append(public.load_public.given(**vars(read.given)).key)
    assert keys[0] == keys[1] != keys[2]


def test_public_pictures_of_two_sizes_are_brought_to_that_of_the_private_ones(tmp_path):
    for name in ("scans", "open"):
        write_classes(tmp_path / name, {"a": 3, "b": 3})
    write_classes(tmp_path / "open" / "b", {".": 1}, height=9)
    there = [f"data.private={tmp_path / 'scans'}", f"data.public={tmp_path / 'open'}", "method.votes=false"]
    run = planned("rapid", *there)
    settings, plan = run.settings, run.plan
    book = Book()
    load_images(settings, plan, book)
    (read,) = book.of(public.load_public)
    data, size = read.given.data, read.given.size
    result = sources.load(data.public, sources.Reading(part="all", size=size, channels=data.channels))
    assert result.pixels.shape[1:] == plan.facts.shape == (1, 8, 8) and len(result) == 6


def test_the_books_stages_return_what_they_say():
    """The stand-in above makes references by the stages' own annotations."""
    assert isinstance(Book().stage(public.load_public)(None, 8, 0, ""), PublicImages)


def test_a_drawing_that_pays_is_asked_with_its_price_and_the_public_images_that_it_needs(book):
    run = planned("empirical-denoiser", "evaluation.baseline=false")
    settings, plan = run.settings, run.plan
    run_plan(run)
    assert stages(book)[:3] == ["load-public", "check", "pretrain"]
    assert stages(book)[5:7] == ["generate-privately", "generate"]
    (drawn,) = book.of(generation.generate_privately)
    assert drawn.given.events == tuple(spend.event for spend in plan.spends) and drawn.paid
    inputs = drawn.given.inputs
    assert isinstance(inputs.public.images, PublicImages) and inputs.refs() == inputs.public.refs()
    (alone,) = book.of(generation.generate)
    assert alone.given.inputs.public.images is None, "what the public model alone gives is found by other methods"
    assert drawn.given.wanted.images == plan.certificate.images == settings.generation.images


def test_what_the_budget_does_not_bear_may_only_be_found(book, monkeypatch):
    seen, parts = [], PublicParts(model=PublicModel(digest="0" * 64, label="PUBLIC"))
    monkeypatch.setattr(checks, "over_budget", lambda secret, events, terms: f"{len(events)} events are too many")
    carried_out = type(book).run
    noted = lambda self, call, **how: seen.append((call.stage.name, self.refusal)) or carried_out(self, call, **how)  # noqa: E731
    monkeypatch.setattr(type(book), "run", noted)
    monkeypatch.setattr(flow, "pay", lambda *_: seen.append(("pay", book.refusal)) or PrivateParts())
    monkeypatch.setattr(flow, "prepare", lambda *_: seen.append(("prepare", book.refusal)) or parts)
    monkeypatch.setattr(flow, "compare", lambda *_: {})
    run_plan(planned())
    refused = [(name, "2 events are too many") for name in ("prepare", "train-classifier", "rehearse", "pay")]
    assert seen[:6] == [("load-public", ""), *refused, ("generate", "")]


def test_what_comes_after_a_run_is_asked_of_the_ledger_with_it(book, monkeypatch):
    requested = []
    monkeypatch.setattr(checks, "over_budget", lambda secret, events, terms: requested.append(list(events)) or "")
    run = planned("dp-sgd")
    plan = run.plan
    own = [spend.event for spend in plan.spends]
    run_plan(run, Wishes(following=(*own, *own)))
    assert requested == [own * 3]


@pytest.mark.parametrize("coded", [False, True])
def test_the_public_denoiser_learns_from_the_classes_with_votes_and_is_rehearsed_before_anything_else_is_paid(
    book, monkeypatch, coded
):
    monkeypatch.setattr(generation, "comparable", lambda samples: False)
    more = ["latent.kind=kl"] if coded else []
    run = planned("rapid", "selection.classes=8", "judge.use=weigh", "judge.share=0.2", *more)
    run_plan(run)
    plan, begun = run.plan, stages(book)
    (voted,), (chosen,), (learnt,) = book.of(selection.vote), book.of(selection.choose), book.of(public.pretrain)
    order = [
        "train-backbone",
        "vote",
        "choose",
        "pretrain",
        "train-extractor",
        "train-judge",
        "take-votes",
        "fine-tune",
    ]
    assert sorted(order, key=begun.index) == order
    assert voted.paid and voted.given.order.terms.claim is None and voted.given.event == plan.event("selection")
    assert voted.given.order.terms.following == tuple(spend.event for spend in plan.spends[1:])
    assert not {*plan.events("selection")} & {*book.of(private.train_judge)[0].given.order.terms.following}
    assert (voted.given.options, chosen.given.count, plan.facts.learnt_classes) == (52, 8, 8)
    every = PublicImages(digest=f"{1:064d}", label="PUBLIC")
    assert learnt.given.public.images.digest == made(book, chosen) and learnt.given.public.whole == every
    assert {one.given.images.digest for one in book.of(public.train_autoencoder)} <= {every.digest}
    *before, last = book.of(public.rehearse)
    assert len(before) == coded and last.given.model and last.given.public.images.digest == made(book, chosen)
    if coded:
        assert before[0].given.model is None and begun.index("rehearse") < begun.index("vote")
        assert before[0].given.classifier != last.given.classifier, "chosen classes have new numbers"
    assert book.of(evaluation.find_nearest)[0].given.images == every


def test_private_records_may_choose_a_source_of_a_mixture_in_the_place_of_classes(book):
    run = planned("dp-sgd", "data.public=glyphs+shapes", "selection.sources=1")
    run_plan(run)
    (voted,), (chosen,) = book.of(selection.vote_for_sources), book.of(selection.choose_sources)
    (learnt,) = book.of(public.pretrain)
    assert not book.of(selection.vote) and not book.of(selection.choose)
    assert voted.paid and voted.given.event == run.plan.event("selection")
    assert voted.given.of == chosen.given.of == run.plan.facts.sources == (0,) * 52 + (1,) * 8
    assert (chosen.given.count, run.plan.facts.learnt_classes) == (1, 8)
    assert learnt.given.public.images.digest == made(book, chosen)


def test_private_records_may_choose_clusters_of_public_images_in_the_place_of_classes(book):
    run = planned("rapid", "selection.clusters=40", "selection.threshold=3", "selection.candidates=9000")
    run_plan(run)
    (parted,), (voted,) = book.of(selection.find_clusters), book.of(selection.vote_for_clusters)
    (chosen,), (learnt,) = book.of(selection.choose_clusters), book.of(public.pretrain)
    assert not book.of(selection.vote) and voted.paid and not parted.paid
    event, begun = run.plan.event("selection"), stages(book)
    assert voted.given.event == event and voted.given.count == parted.given.count == 40
    assert voted.given.order.terms.following == tuple(spend.event for spend in run.plan.spends[1:])
    assert begun.index("find-clusters") < begun.index("vote-for-clusters") < begun.index("choose-clusters")
    search = chosen.given.search
    assert (search.noise, search.threshold, search.candidates) == (event.noise_multiplier, 3, 9000)
    assert search.votes.digest == made(book, voted) and search.clusters.digest == made(book, parted)
    assert search.kinds == run.plan.facts.learnt_classes == 8 and chosen.given.size == 8
    assert learnt.given.public.images.digest == made(book, chosen)


def test_a_public_half_of_chosen_classes_that_fails_stops_the_run_after_the_votes_alone(book, monkeypatch):
    monkeypatch.setattr(rehearsal, "show", lambda ref, wanted, picture: ("too far",))
    with pytest.raises(Refused, match="and the votes for what is public alone were spent: too far"):
        run_plan(planned("rapid", "selection.classes=8"))
    assert stages(book)[-1] == "rehearse" and book.of(selection.vote)
    book.calls.clear()
    with pytest.raises(Refused, match="and nothing was spent: too far"):
        run_plan(planned("rapid", "selection.classes=8", "latent.kind=kl"))
    assert stages(book)[-1] == "rehearse" and not book.of(selection.vote)


def test_prototypes_and_the_public_model_know_nothing_of_the_classes(book):
    """So that they are found again whatever the classes are; what is drawn from prototypes follows the counts."""
    seen = []
    for classes in ("uniform", "queried"):
        more = ["method.members=2", "method.key=two", "method.prototypes=2", f"generation.classes={classes}"]
        run_plan(planned("dp-ensemble", *more, "method.radius=0.01"))
        (first,), (drawn, plain, *_) = book.of(generation.generate_privately), book.of(generation.generate)
        seen.append((first.given.inputs.settings, plain.given.inputs.settings, first.given.wanted, first.given.events))
        assert (drawn.given.counts is not None) == (classes == "queried") and first.given.wanted.counts is None
        book.calls.clear()
    assert seen[0] == seen[1]


def test_declared_classes_open_no_door(book):
    run_plan(planned("rapid", "generation.classes=declared", "generation.shares={0: 1}"))
    assert not book.of(private.count_classes)
    recipe = book.of(generation.generate)[0].given.inputs.settings
    assert recipe.generation.shares["0"] == 1.0 and len(recipe.generation.shares) == 10


def test_a_rehearsal_that_fails_stops_the_run_before_anything_is_paid(book, monkeypatch):
    book.worse = ("public samples lie 2.20 of the way",)
    with pytest.raises(
        Refused, match="nothing was spent: public samples lie 2.20 of the way.*rehearsal.png; sfumato run ... --go-on"
    ):
        run_plan(planned())
    assert stages(book)[-1] == "rehearse"


@pytest.mark.parametrize("name", ["", "Grace Hopper"])
def test_whoever_goes_on_stands_in_the_ledger_before_anything_is_paid(book, tmp_path, monkeypatch, name):
    """By the name that was given for it, never by that of the account, since the ledger's words reach every card."""
    monkeypatch.setenv("LOGNAME", "login-of-grace")
    monkeypatch.setenv("SFUMATO_PERSON", name)
    book.worse = ("public samples lie 2.20 of the way",)
    with home_at(tmp_path / "home"):
        configure()
        assert run_plan(planned(), Wishes(go_on=True)) == "record"
        with where().ledger() as ledger:
            (entry,) = ledger.entries()
            reported = gate.went_on([entry], "digits", entry.body["artifact"])
            assert ledger.total("digits").spends == 0
    assert entry.kind == "override" and entry.body["missing"] == book.worse[0]
    assert "went on with --go-on" in reported[0].reason and reported[0].kind == "rehearsal"
    assert reported[0].reason.startswith(name or "whoever ran it") and "login-of-grace" not in json.dumps(
        entry.public()
    )
    assert gate.went_on([entry], "another set", entry.body["artifact"]) == ()
    assert "fine-tune" in stages(book)


@pytest.mark.parametrize("method", ["rapid", "moments"])
def test_a_rehearsal_decodes_no_private_image_and_is_the_same_for_others_of_the_same_constants(
    method, monkeypatch, tmp_path
):
    decoded, requested = [], []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: (decoded.append(self.filename), load(self))[1])
    monkeypatch.setattr(rehearse, "call_run", lambda name: None)
    monkeypatch.setattr(rehearsal, "show", lambda *_: ())
    declared = ["data.records=60", "data.classes=[ill,well]", "data.name=scans", "data.public=glyphs"]
    with home_at(tmp_path / "home"):
        configure()
        for name, counts in (("one", {"ill": 30, "well": 30}), ("other", {"ill": 3, "well": 50})):
            folder, book = write_classes(tmp_path / name / "scans", counts, height=16, width=16), Book()
            if name == "other":
                for path in folder.rglob("*.png"):
                    Image.new("L", (16, 16), 7).save(path)
            monkeypatch.setattr(rehearse, "Journal", lambda *_, book=book: book)
            rehearse.rehearse_public(plan_run(method, changes=[f"data.private={folder}", *declared]), "rehearse-1")
            reported = [(one.stage.name, canonical(vars(one.given))) for one in book.calls]
            assert reported[-1][0] == "rehearse" and str(folder) not in repr(reported) and "scans" not in repr(reported)
            requested.append(reported)
        assert not is_there(where().ledger_url), "not even a ledger is made"
    assert requested[0] == requested[1] and not [path for path in decoded if "scans" in str(path)]


@pytest.mark.parametrize(
    "changes",
    [[], ["judge.use=relabel"], ["latent.kind=kl"], ["latent.kind=kl", "latent.perceptual=.1", "judge.use=weigh"]],
)
def test_the_run_after_a_rehearsal_makes_nothing_public_that_the_rehearsal_did_not(
    book, monkeypatch, tmp_path, changes
):
    monkeypatch.setattr(generation, "comparable", lambda samples: False)
    run_plan(planned("rapid", *changes))
    before = Book()
    monkeypatch.setattr(rehearse, "Journal", lambda *_: before)
    monkeypatch.setattr(rehearse, "call_run", lambda name: None)
    with home_at(tmp_path / "home"):
        rehearse.rehearse_public(planned("rapid", *changes), "rehearse-1")

    def learnt(retained):
        return {
            one.stage.name
            for one in retained.calls
            if isinstance(one.stage, Stage) and one.stage.fn.__module__ == "tasks.public"
        }

    assert learnt(book) == learnt(before) and "pretrain" in learnt(book)
    assert ("train-backbone" in learnt(book)) is any("judge" in one or "perceptual" in one for one in changes)


def test_what_would_not_be_published_is_refused_before_anything_is_made(book):
    for to in (".", "out", "s3://bucket/out"):
        with pytest.raises(Refused, match=r"nothing was begun .* --accept-claim"):
            run_plan(planned("dppm"), Wishes(to))
    assert book.calls == []
    assert run_plan(planned("dppm")) == "record"


@pytest.mark.parametrize(
    ("method", "changes", "there"),
    [("rapid", [], True), ("dp-sgd", ["pretraining.steps=0"], False), ("dppm", [], False)],
)
def test_without_a_public_model_the_rehearsal_is_told_so(book, method, changes, there):
    run_plan(planned(method, *changes))
    (rehearsed,) = book.of(public.rehearse)
    assert (rehearsed.given.model is not None) is there and (rehearsed.given.base is not None) is (method == "rapid")
    images = planned(method).settings.rehearsal.images
    assert rehearsed.given.generation.images == images, "more images or another edition rehearse nothing anew"


def test_a_script_that_imports_the_flow_keeps_results_in_the_home(tmp_path):
    """As the command does, which else would make and pay everything again."""
    program = "from flows.synthesize import synthesize\nimport prefect.settings as s\nprint(s.PREFECT_LOCAL_STORAGE_PATH.value())"
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "SFUMATO_"))}
    there = {**usual, "SFUMATO_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=there, timeout=120)
    assert done.stdout.strip() == str(tmp_path / "home" / "results"), done.stderr
    assert not (tmp_path / ".prefect").exists()


def test_a_planned_run_is_carried_out_without_planning_anything_again(book, monkeypatch):
    run = planned("rapid", "evaluation.baseline=false")
    monkeypatch.setattr(planning, "plan_for", lambda *_: pytest.fail("planned again"))
    assert run_plan(run) == "record"
