"""Mirrored and shifted copies: each by itself, out of the picture's own pixels, and by a law that looks at none of them."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sfumato.diffusion.augmentation import augmented


def digits(count):
    return torch.from_numpy(load_digits().images[:count] / 8 - 1).float()[:, None]


def by(seed, x, mirror, shift):
    return augmented(x, mirror=mirror, shift=shift, generator=torch.Generator().manual_seed(seed))


def crops(picture, mirror, shift):
    """All pictures that one may become, by numpy's padding."""
    framed = np.pad(picture.numpy(), ((0, 0), (shift, shift), (shift, shift)), mode="symmetric")
    height, width = picture.shape[1:]
    for down in range(2 * shift + 1):
        for across in range(2 * shift + 1):
            crop = framed[:, down : down + height, across : across + width]
            yield crop
            if mirror:
                yield crop[:, :, ::-1]


@pytest.mark.parametrize(("mirror", "shift"), [(True, 0), (False, 2), (True, 2), (True, 7)])
def test_a_copy_is_a_crop_of_its_own_record_framed_by_its_mirror_image_and_every_crop_comes(mirror, shift):
    one, many = torch.cat([digits(1), digits(2)[1:] * 0.5], 1)[..., :7], 40 * (2 * shift + 1) ** 2
    copies = by(0, one.repeat(many, 1, 1, 1), mirror, shift)
    allowed = {crop.tobytes() for crop in map(np.ascontiguousarray, crops(one[0], mirror, shift))}
    assert {copy.numpy().tobytes() for copy in copies} == allowed


def test_half_of_the_copies_are_mirrored_and_shifts_are_even():
    column = torch.zeros(20_000, 1, 5, 5)
    column[:, :, :, 1] = 1
    mirrored = by(1, column, True, 0)[:, 0, 0].argmax(1)
    assert (torch.bincount(mirrored, minlength=5) / 20_000).tolist() == pytest.approx([0, 0.5, 0, 0.5, 0], abs=0.02)
    column = torch.arange(5.0).view(1, 1, 5, 1).expand(20_000, 1, 5, 5)
    shifted = by(2, column, False, 2)[:, 0, 2, 0].long()
    assert (torch.bincount(shifted, minlength=5) / 20_000).tolist() == pytest.approx([0.2] * 5, abs=0.02)


def test_what_happens_to_a_copy_depends_on_no_picture():
    x, other = digits(9), -digits(18)[9:]
    other[4] = x[4]
    assert torch.equal(by(3, x, True, 2)[4], by(3, other, True, 2)[4])


def test_off_it_leaves_pictures_and_generator_as_they_are():
    x, generator = digits(3), torch.Generator().manual_seed(4)
    assert augmented(x, mirror=False, shift=0, generator=generator) is x
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(4).get_state())


def test_no_copies_stay_none():
    assert by(5, digits(2)[:0], True, 1).shape == (0, 1, 8, 8)
