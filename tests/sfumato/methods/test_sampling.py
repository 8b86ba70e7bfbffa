"""Sampling that several methods share: the whole walk, and the same images from the same seed."""

from dataclasses import replace

import pytest
import torch

from sfumato.methods import dp_promise, dp_sgd, private_evolution
from sfumato.methods.sampling import draw, network_evaluations, walk
from sfumato.settings import resolve
from tests.sfumato.methods.conftest import untuned


def test_the_walk_goes_from_the_top_to_zero_in_at_most_so_many_steps():
    settings = resolve("dp-sgd", changes=["schedule.timesteps=50", "generation.steps=7"])
    assert (walk(settings)[0], walk(settings)[-1], len(walk(settings))) == (50, 0, 8)
    more = resolve("dp-sgd", changes=["schedule.timesteps=50", "generation.steps=99"])
    assert list(walk(more)) == list(range(50, -1, -1))


@pytest.mark.parametrize("solver", ["ddim", "dpm++", "ddpm", "pndm", "heun"])
@pytest.mark.parametrize("guidance", [0.0, 1.0])
def test_the_evaluations_reckoned_with_are_those_made(world, solver, guidance):
    tiny = world("dp-sgd")
    generation = tiny.settings.generation.model_copy(update={"solver": solver, "guidance": guidance, "steps": 9})
    settings = tiny.settings.model_copy(update={"generation": generation})
    parts, inputs = replace(tiny.parts, tuned=untuned(tiny.parts)), []
    handle = parts.tuned.register_forward_pre_hook(lambda _, given: inputs.append(len(given[0])))
    draw(settings, parts, torch.arange(4), torch.Generator().manual_seed(1))
    handle.remove()
    assert sum(inputs) == 4 * network_evaluations(settings)


def test_guidance_and_seed_decide_what_is_drawn(world):
    tiny = world("dp-sgd")
    parts, y = replace(tiny.parts, tuned=untuned(tiny.parts)), torch.arange(4)

    def drawn(weight, seed):
        generation = tiny.settings.generation.model_copy(update={"guidance": weight})
        return draw(
            tiny.settings.model_copy(update={"generation": generation}), parts, y, torch.Generator().manual_seed(seed)
        )

    assert drawn(0.5, 1).shape == (4, *tiny.parts.shape) and torch.equal(drawn(0.5, 1), drawn(0.5, 1))
    assert not torch.equal(drawn(0.5, 1), drawn(0.5, 2)) and not torch.equal(drawn(0.5, 1), drawn(0.0, 1))
    assert {method.ALGORITHM.draw for method in (dp_promise, dp_sgd, private_evolution)} == {draw}
