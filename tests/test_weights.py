"""Log-weights of several factors, by parameter name, and the sum they feed, done by hand."""

import math

import pytest
import torch

from fedbook import FedbookError
from fedbook.rounds.weights import WeightedSum, Weights, add, by_name, normalise

A = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
B = torch.tensor([3.0, 5.0, 7.0], dtype=torch.float64)
C = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)


def test_plain_factors_add_up():
    assert isinstance(add(A, B), torch.Tensor)
    assert add(A, B).tolist() == [3.0, 6.0, 9.0]


def test_a_named_parameter_gets_the_others_rest():
    """first: "" and "w"; second: "" and "v". Every name of either has both factors."""
    total = add({"": A, "w": B}, {"": C, "v": B})
    assert {name: t.tolist() for name, t in total.items()} == {
        "": (A + C).tolist(),
        "w": (B + C).tolist(),
        "v": (A + B).tolist(),
    }
    assert add(A, {"": B, "w": C})["w"].tolist() == (A + C).tolist()
    assert add({"": B, "w": C}, A)[""].tolist() == (A + B).tolist()


def test_names_need_a_rest():
    assert by_name(A) == {"": A}
    with pytest.raises(FedbookError, match="entry '' for all other parameters"):
        by_name({"w": A})
    with pytest.raises(FedbookError, match="entry ''"):
        add({"w": A}, B)


def test_normalised_by_hand():
    half = math.log(2)
    assert normalise([half, 0.0, 0.0], [7, 8, 9]) == pytest.approx([0.5, 0.25, 0.25])
    assert sum(normalise(A, [0, 1, 2])) == pytest.approx(1.0, abs=1e-12)
    with pytest.raises(FedbookError, match="client 9 is NaN"):
        normalise([0.0, 0.0, math.nan], [7, 8, 9])
    with pytest.raises(FedbookError, match="client 8 is infinite"):
        normalise([0.0, math.inf, -math.inf], [7, 8, 9])
    with pytest.raises(FedbookError, match="3 participants need 3 scores"):
        normalise([0.0, 0.0], [7, 8, 9])
    assert normalise([-math.inf, 0.0, -math.inf], [7, 8, 9]) == [0.0, 1.0, 0.0]


def three(named=None):
    log = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log()
    return Weights({"": log, **(named or {})} if named else log, [4, 5, 6])


def test_three_clients_one_after_the_other():
    """(1 * 8 + 2 * 16 + 5 * 32) / 8 = 25; counters are the first client's."""
    for named in (None, {"other": torch.zeros(3, dtype=torch.float64)}):
        like = {"w": torch.tensor([9.0]), "other": torch.tensor([9.0]), "n": torch.tensor(0)}
        total = WeightedSum(like, three(named))
        for value, count in ((8.0, 11), (16.0, 12), (32.0, 13)):
            upload = {"w": torch.tensor([value]), "other": torch.tensor([value])}
            total.add(upload | {"n": torch.tensor(count)})
        mean = total.result()
        assert float(mean["w"]) == pytest.approx(25.0) and int(mean["n"]) == 11
        assert float(mean["other"]) == pytest.approx(56 / 3 if named else 25.0)
        assert total.count == 3 and int(like["n"]) == 0


def test_what_nobody_trained_is_kept():
    nobody = torch.full((3,), -math.inf, dtype=torch.float64)
    weights = three({"w": nobody})
    assert weights.kept("w") and not weights.kept("v") and weights.ids == [4, 5, 6]
    assert [weights.of("w", k) for k in range(3)] == [0.0] * 3
    assert [weights.of("v", k) for k in range(3)] == pytest.approx([0.125, 0.25, 0.625])
    server = {"w": torch.tensor([7.0])}
    total = WeightedSum(server, weights)
    total.add({"w": torch.tensor([1.0])})
    assert float(total.result()["w"]) == 7.0
    with pytest.raises(FedbookError, match="every participant has weight zero"):
        Weights(nobody, [4, 5, 6])
