"""A stage is given the part that it reads: what else differs keeps nobody from reusing its result, and what it reads does."""

import pytest

from artifacts.references import PublicModel
from sfumato.marks import JUDGE_TRAINING, PROTOTYPES
from sfumato.methods.plan import Facts
from sfumato.privacy.accounting.events import SubsampledGaussian
from sfumato.privacy.door import PrivateSet
from sfumato.settings import resolve
from tasks import distillation, embedding, evolution, private, public, rates
from tasks.inputs import Inputs, PublicParts
from tasks.runtime.caching import Stage, marks
from tasks.runtime.narrowing import Narrowed, narrowed, sections, seen_by
from tasks.terms import FreeOrder, Order, SharedOrder, Terms

FACTS = Facts(records=100, classes=("a", "b"), public_classes=3, shape=(1, 8, 8))
EVENT = SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=10)
MODEL = PublicModel(digest="0" * 64, label="PUBLIC")


def inputs_of(*changes: str) -> Inputs:
    settings = resolve("rapid", "digits", changes)
    return Inputs(settings=settings, facts=FACTS, public=PublicParts(model=MODEL))


def order_of(**terms) -> Order:
    whole = Terms(relation="add_remove", delta=1e-5, **terms)
    settings = resolve("rapid", "digits")
    return Order(private=PrivateSet(name="digits", source="digits"), terms=whole, machine=settings.machine)


def key_of(*changes: str) -> str:
    return private.fine_tune.given(order_of(), EVENT, inputs_of(*changes)).key


def test_what_a_stage_does_not_read_keeps_its_key_and_what_it_reads_gives_another():
    assert key_of("generation.images=70", "seed=3", "judge.use=relabel", "release.licence=MIT") == key_of()
    assert len({key_of(), key_of("fine_tuning.clip=7"), key_of("network.width=99"), key_of("method.k=0.77")}) == 4


def test_an_order_whose_result_is_shared_has_no_claim_and_a_free_one_serves_comparisons_too():
    order = order_of(claim={"epsilon": 3.0}, comparison=True)
    (_, *shared), (_, *free) = SharedOrder.__metadata__, FreeOrder.__metadata__
    assert narrowed(order, (SharedOrder.__metadata__[0], *shared)).terms == order_of(comparison=True).terms
    assert narrowed(order, (FreeOrder.__metadata__[0], *free)).terms == order_of().terms
    assert narrowed(order, ("some other mark",)) is order


def test_work_sees_of_sections_what_it_depends_on():
    settings = resolve("rapid", "digits", ["judge.use=relabel", "generation.images=70", "generation.eta=0.3"])
    assert narrowed(settings.judge, (seen_by(JUDGE_TRAINING),)).use == "none"
    drawn = narrowed(inputs_of("generation.images=70", "generation.eta=0.3"), evolution_marks()).settings
    assert (drawn.generation.images, drawn.generation.eta) == (2000, 0.3)
    alone = narrowed(settings, (sections("generation"),))
    assert alone.generation.images == 70 and alone.judge.use == "none"
    assert narrowed(settings, (sections("generation", work=PROTOTYPES),)).generation.images == 2000


def evolution_marks():
    return marks(evolution.populate.fn)["inputs"]


@pytest.mark.parametrize(
    "module", [private, embedding, evolution, rates, distillation, public], ids=lambda one: one.__name__
)
def test_a_part_of_a_part_is_the_same(module):
    """A helping process is given what was narrowed before, and must find the same key."""
    whole = {
        "inputs": inputs_of("generation.images=70", "judge.use=relabel"),
        "order": order_of(claim={"epsilon": 3.0}),
    }
    stages = [one for one in vars(module).values() if isinstance(one, Stage)]
    checked = 0
    for stage in stages:
        for name, marked in marks(stage.fn).items():
            if name in whole and any(isinstance(mark, Narrowed) for mark in marked):
                part = narrowed(whole[name], marked)
                assert part != whole[name] and narrowed(part, marked) == part
                checked += 1
    assert checked or module is public
