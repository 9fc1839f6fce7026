"""Quirks: what published code does otherwise, each a change of one method and of nothing else.

What they compute is tested with their methods.
"""

import json

import pytest

from fedbook import FedbookError, methods
from fedbook.methods import quirks

# what each changes: by slot, the settings that get another value (new ones come with their class)
CHANGES = {
    "late_beta": {"weigh.1": {"gamma"}},
    "quantised_loss": {"weigh.1": set()},
    "first_loss": {"weigh.1": set()},
    "weighted_cluster_loss": {"weigh.1": set()},
    "tiled_loss": {"weigh.1": {"loss"}},
    "three_batches": {"grouping": set()},
    "full_covariance": {"grouping": {"covariance", "starts", "floor", "normalise"}},
    "lambda_schedule": {"objective.1": {"weight"}, "objective.2": {"weight"}},
    "no_temperature": {"objective.2": {"tau"}},
    "older_z0": {"objective.2": {"lockstep"}},
    "noisy_references": {"objective.2": {"lockstep"}},
    "prompts_alone": {"objective.3": set()},
    "kept_moments": {"solve": set()},
    "parameter_groups": {"solve": {"param_groups"}},
    "q_ffl_as_coded": {"weigh.0": {"loss"}, "update": {"loss"}},
    "afl_stateless": {"weigh.0": {"loss"}},
    "term_training_loss": {"weigh.1": {"loss"}},
    "fedmix_as_coded": {"objective.0": set()},
    "feddyn_as_coded": {"objective.1": set()},
    "fedlc_as_printed": {"objective.0": set()},
}
# settings that are not the defaults, to see that a quirk leaves them
SETTINGS = {
    "fedgcr": {"clusters": 3, "q": 0.7, "delta": 0.3, "lam1": 0.2, "lam2": 0.3, "tau": 0.4},
    "q_ffl": {"q": 3.0, "lr": 0.02},
    "afl": {"eta_lam": 0.4},
    "term": {"t": 0.6},
    "fedmix": {"lam": 0.2, "mean_of": 7},
    "feddyn": {"alpha": 0.7, "dual": False},
    "fedlc": {"tau": 0.3, "absent": 1e-4},
}


def test_every_quirk_is_listed():
    assert set(CHANGES) == set(quirks.QUIRKS) and {q.of for q in quirks.QUIRKS.values()} == set(
        SETTINGS
    )
    assert all(q.says for q in quirks.QUIRKS.values())


@pytest.mark.parametrize("name", CHANGES)
def test_a_quirk_changes_its_stages_and_nothing_else(name):
    of = quirks.QUIRKS[name].of
    plain = methods.get(of, **SETTINGS[of])
    odd = methods.get(of, quirks=(name,), **SETTINGS[of])
    assert odd.describe() == quirks.QUIRKS[name].change(plain).describe()
    a, b = plain.describe(), odd.describe()
    assert {slot for slot in a | b if a.get(slot) != b.get(slot)} == set(CHANGES[name])
    for slot, settings in CHANGES[name].items():
        before, after = a.get(slot, {}), b[slot]
        kept = (before.keys() & after.keys()) - {"stage"}
        assert {s for s in kept if before[s] != after[s]} == settings


def test_quirks_differ_from_each_other():
    for of in SETTINGS:
        found = [methods.get(of, quirks=(n,)).describe() for n in quirks.names(of)]
        assert len({json.dumps(d) for d in found}) == len(found)


@pytest.mark.parametrize("of", SETTINGS)
def test_as_published_is_all_of_a_methods_quirks(of):
    published = methods.get(of, quirks=("as_published",))
    assert published.describe() == methods.get(of, quirks=quirks.names(of)).describe()
    assert published.describe() != methods.get(of).describe()


def test_unknown_quirks_are_named_with_those_there_are():
    with pytest.raises(FedbookError, match="term has no quirk 'late_beta'.*term_training_loss"):
        methods.get("term", quirks=("late_beta",))
    with pytest.raises(FedbookError, match="fedavg has no quirk 'tiling'.*known: none"):
        methods.get("fedavg", quirks=("tiling",))
    assert methods.get("fedavg", quirks=("as_published",)) == methods.get("fedavg")


def test_a_quirk_may_be_applied_by_hand_and_to_a_part_of_the_method():
    """A method without the stage a quirk changes is left as it is."""
    plain = methods.get("fedgcr")
    assert quirks.late_beta(plain) == methods.get("fedgcr", quirks=("late_beta",))
    without = methods.get("fedgcr", reweighting=False)
    assert quirks.late_beta(without) == without
    gr = methods.get("fedgcr", customization=False)
    assert quirks.older_z0(gr) == gr and quirks.no_temperature(gr) == gr


def test_quirks_add_up_in_any_order():
    names = quirks.names("fedgcr")
    forth, back = (methods.get("fedgcr", quirks=q).describe() for q in (names, names[::-1]))
    assert forth == back
