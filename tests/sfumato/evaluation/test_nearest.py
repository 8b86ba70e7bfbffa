"""Which public image lies nearest."""

import torch

from sfumato.evaluation import nearest as module
from sfumato.evaluation.nearest import nearest, searched


def test_a_public_image_is_nearest_to_itself_and_no_feature_outweighs_the_others():
    public = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 1, 1, 1000, 1, 0])
    assert nearest(public[[7, 3]] + 1e-4, public).tolist() == [7, 3]
    requested = public[:1].clone()
    requested[0, 3] += 100  # a tenth of that feature's spread
    assert nearest(requested, public).tolist() == [0]


def test_of_many_public_images_some_are_searched_from_first_to_last(monkeypatch):
    assert searched(30).tolist() == list(range(30))
    monkeypatch.setattr(module, "MOST_PUBLIC", 10)
    places = searched(100).tolist()
    assert len(places) == 10 and places[0] == 0 and places[-1] == 99
