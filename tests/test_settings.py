"""What losses, sets and miners are made with: a wrong setting is refused at once, by its name.

Every error says which argument it was, what was given and what it should be; and what is made can
be copied, pickled, moved and shown like any other module.
"""

from __future__ import annotations

import copy
import math
import pickle
import re

import numpy as np
import pytest
import torch
from every_loss import FAMILIES, one_of

import drometric as dm

NO_NUMBERS = [None, True, "0.2", "high", [0.2], 1j, math.nan, {}, torch.tensor([0.1, 0.2]), 10**400]
FINITE, ANY, POSITIVE, NOT_BELOW_ZERO = (
    ("a finite number", [math.inf, -math.inf]),
    ("a number", []),
    ("a finite number above 0.0", [0, -0.1, math.inf]),
    ("a number of at least 0.0", [-1e-9, -math.inf]),
)
NUMBERS = [
    (dm.Margin, "margin", FINITE),
    (dm.Margin, "threshold", FINITE),
    (dm.Contrastive, "threshold", FINITE),
    (dm.Binomial, "scale_positive", POSITIVE),
    (dm.Binomial, "scale_negative", POSITIVE),
    (dm.Binomial, "threshold", FINITE),
    (dm.TopK, "per_example", POSITIVE),
    (dm.BalancedTopK, "per_example", POSITIVE),
    (dm.KL, "gamma", NOT_BELOW_ZERO),
    (dm.BalancedKL, "gamma_positive", NOT_BELOW_ZERO),
    (dm.BalancedKL, "gamma_negative", NOT_BELOW_ZERO),
    (dm.PerAnchorKL, "gamma_positive", NOT_BELOW_ZERO),
    (dm.PerAnchorKL, "gamma_negative", NOT_BELOW_ZERO),
    (dm.ChiSquare, "rho", NOT_BELOW_ZERO),
    (dm.LiftedStructure, "margin", FINITE),
    (dm.MultiSimilarity, "alpha", POSITIVE),
    (dm.MultiSimilarity, "beta", POSITIVE),
    (dm.MultiSimilarity, "threshold", FINITE),
    (dm.HAP2S, "gamma", POSITIVE),
    (dm.HAP2S, "margin", FINITE),
    (dm.Triplet, "margin", FINITE),
    (dm.SemiHard, "margin", POSITIVE),
    (dm.SemiHard, "threshold", FINITE),
    (dm.DistanceWeighted, "cutoff", POSITIVE),
    (dm.DistanceWeighted, "nonzero_loss_cutoff", POSITIVE),
    (dm.MultiSimilarityMiner, "epsilon", FINITE),
    (dm.ThresholdMiner, "margin", FINITE),
    (dm.ThresholdMiner, "threshold", FINITE),
]
WHOLE = [
    (dm.TopK, "k"),
    (dm.BalancedTopK, "k"),
    (dm.KL, "sample"),
    (dm.SemiHard, "per_positive"),
]
NO_SETTING = {"per_example", "sample", "per_positive", "k"}  # None leaves these out


def shown(value):
    """The value at the end of a message. Long ones may be shown in short."""
    return re.escape(f"{value!r}")[:60]


@pytest.mark.parametrize(
    ("kind", "name", "wanted", "value"),
    [
        pytest.param(kind, name, wanted, value, id=f"{kind.__name__}-{name}-{str(value)[:20]}")
        for kind, name, (wanted, beyond) in NUMBERS
        for value in [*NO_NUMBERS, *beyond]
        if not (value is None and name in NO_SETTING)
        and not (torch.is_tensor(value) and kind is dm.PerAnchorKL)  # one γ per anchor
    ],
)
def test_a_number_that_is_none_or_out_of_range_is_refused(kind, name, wanted, value):
    if kind is dm.PerAnchorKL:
        wanted = "a number"  # ... or a vector
    with pytest.raises(ValueError, match=rf"(?s)^{name} must be {wanted}.*; got .*{shown(value)}"):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        pytest.param(kind, name, value, id=f"{kind.__name__}-{name}-{str(value)[:20]}")
        for kind, name in WHOLE
        for value in [0, -3, 2.5, True, "3", [3], math.nan, math.inf, 1j]
    ],
)
def test_a_count_that_is_no_whole_number_is_refused(kind, name, value):
    wanted = rf"^{name} must be a whole number of at least 1; got {shown(value)}"
    with pytest.raises(ValueError, match=wanted):
        kind(**{name: value})


def value_of(uncertainty, margin=0.2):
    torch.manual_seed(0)
    loss = dm.RobustPairLoss(dm.Margin(margin), uncertainty)
    return float(loss(torch.eye(4) + 0.3, torch.tensor([0, 0, 1, 1])))


@pytest.mark.parametrize("number", [2, 2.0, np.int64(2), np.float32(2)])
def test_a_number_of_any_type_means_the_same(number):
    # Configuration files and NumPy give numbers of many types.
    for kind in (dm.KL, dm.BalancedKL, dm.PerAnchorKL, dm.ChiSquare):
        assert value_of(kind(number), margin=number) == value_of(kind(2), margin=2)
    assert value_of(dm.TopK(per_example=number)) == value_of(dm.TopK(per_example=2))


def test_a_whole_number_of_any_type_means_the_same():
    for kind in (dm.TopK, dm.BalancedTopK):
        assert value_of(kind(np.int64(2))) == value_of(kind(2))
    assert value_of(dm.KL(0.1, sample=np.int64(2))) == value_of(dm.KL(0.1, sample=2))


@pytest.mark.parametrize("count", [2.0, np.float32(2), torch.tensor(2), "2"])
def test_a_count_is_not_a_number_that_happens_to_be_whole(count):
    with pytest.raises(ValueError, match=r"^k must be a whole number of at least 1; got "):
        dm.TopK(k=count)


@pytest.mark.parametrize("kind", [dm.TopK, dm.BalancedTopK])
@pytest.mark.parametrize("both", [{}, {"k": 1, "per_example": 1}])
def test_k_is_given_in_exactly_one_way(kind, both):
    got = f"got k={both.get('k')} and per_example={both.get('per_example')}"
    with pytest.raises(ValueError, match=rf"^give either k= or per_example=; {got}$"):
        kind(**both)


@pytest.mark.parametrize("kind", [dm.TopK, dm.BalancedTopK])
def test_a_k_of_any_size_takes_all_pairs(kind):
    x, labels = torch.eye(4) + 0.3, torch.tensor([0, 0, 1, 1])
    every = float(dm.RobustPairLoss(dm.Margin(), kind(k=12))(x, labels))
    for huge in (kind(k=10**30), kind(per_example=1e30), kind(per_example=1e308)):
        assert float(dm.RobustPairLoss(dm.Margin(), huge)(x, labels)) == every


CHOICES = [
    (lambda value: dm.HAP2S(weighting=value), "weighting", ["exponential", "polynomial"]),
    (
        lambda value: dm.Triplet(triplets=value),
        "triplets",
        ["all", "hard", "semi-hard", "hardest"],
    ),
    (
        lambda value: dm.RobustPairLoss(dm.Margin(), dm.Uniform(), zero_loss=value),
        "zero_loss",
        ["keep", "drop"],
    ),
    (lambda value: dm.PerAnchorKL(reduction=value), "reduction", ["mean", "sum"]),
    (lambda value: dm.LiftedStructure(reduction=value), "reduction", ["mean", "sum"]),
    (lambda value: dm.MultiSimilarity(reduction=value), "reduction", ["mean", "sum"]),
    (lambda value: dm.HAP2S(reduction=value), "reduction", ["mean", "sum"]),
]


@pytest.mark.parametrize("value", ["none", "ALL", "", None, True, 0, ["mean"], "mea"])
@pytest.mark.parametrize(("make", "name", "choices"), CHOICES)
def test_an_unknown_name_is_answered_with_the_known_ones(make, name, choices, value):
    listed = ", ".join(repr(choice) for choice in choices)
    with pytest.raises(ValueError, match=rf"^{name} must be one of {listed}; got {shown(value)}$"):
        make(value)


@pytest.mark.parametrize(("make", "name", "choices"), CHOICES)
def test_the_known_names_are_taken(make, name, choices):
    assert [getattr(make(choice), name) for choice in choices] == choices


MISPLACED = [
    ("pair_loss", "Margin()", lambda it: dm.RobustPairLoss(it, dm.Uniform())),
    ("pair_loss", "Margin()", lambda it: dm.MinedPairLoss(it, dm.SemiHard())),
    ("uncertainty", "TopK(k=160)", lambda it: dm.RobustPairLoss(dm.Margin(), it)),
    ("miner", "SemiHard()", lambda it: dm.MinedPairLoss(dm.Margin(), it)),
    ("miner", "SemiHard()", lambda it: dm.LiftedStructure(miner=it)),
    ("miner", "SemiHard()", lambda it: dm.MultiSimilarity(miner=it)),
]


@pytest.mark.parametrize(("name", "such_as", "make"), MISPLACED)
def test_a_class_a_name_or_the_wrong_part_is_refused(name, such_as, make):
    parts = {
        "pair_loss": [dm.Margin, dm.Margin()],
        "uncertainty": [dm.TopK, dm.Uniform()],
        "miner": [dm.SemiHard, dm.SemiHard()],
    }
    wrong = ["margin", 3, dm.NPair(), lambda pairs: pairs]
    wrong += [part for part_of, some in parts.items() for part in some if part_of != name]
    for it in [*wrong, parts[name][0]]:
        with pytest.raises(ValueError, match=rf"^{name} must be an object .* such as .*; got "):
            make(it)
    with pytest.raises(ValueError, match=rf"such as {re.escape(such_as)}; got {shown(dm.TopK)}"):
        make(dm.TopK)
    make(parts[name][1])


@pytest.mark.parametrize("value", ["no", None, 2])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("normalize", lambda value: dm.NPair(normalize=value)),
        ("slack", lambda value: dm.PerAnchorKL(slack=value)),
    ],
    ids=["normalize", "slack"],
)
def test_a_switch_is_true_or_false(name, make, value):
    # "no" would be taken for yes.
    with pytest.raises(ValueError, match=rf"^{name} must be True or False; got {shown(value)}$"):
        make(value)


@pytest.mark.parametrize("kind", [dm.KL, dm.SemiHard, dm.DistanceWeighted])
def test_a_seed_is_no_generator(kind):
    with pytest.raises(ValueError, match=r"^generator must be a torch.Generator.*; got 42$"):
        kind(generator=42)


X, LABELS = torch.eye(4) + 0.3, torch.tensor([0, 0, 1, 1])


def test_gamma_has_one_entry_per_anchor_or_is_refused():
    for name in ("gamma_positive", "gamma_negative"):
        loss = dm.RobustPairLoss(dm.Margin(), dm.PerAnchorKL(**{name: torch.ones(3)}))
        wanted = rf"^{name} must be a number or have one entry per anchor \(4\); got 3 entries$"
        with pytest.raises(ValueError, match=wanted):
            loss(X, LABELS)
        for bad in (torch.ones(2, 2), torch.tensor([1, 2]), torch.tensor([1.0, -1.0])):
            wanted = rf"^{name} must be a number or a floating-point vector .*; got .*tensor"
            with pytest.raises(ValueError, match=wanted):
                dm.PerAnchorKL(**{name: bad})
        with pytest.raises(ValueError, match=rf"^{name} must be a number or a .*vector"):
            dm.PerAnchorKL(**{name: torch.tensor([1.0, math.nan])})
        # A list is most likely meant to be one γ per anchor: the error says how.
        with pytest.raises(ValueError, match=rf"^{name} must be a number or .* vector .*; got "):
            dm.PerAnchorKL(**{name: [0.1, 0.2]})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loss_can_be_copied_pickled_moved_and_shown(family):
    loss = one_of(family, len(X))
    wanted = float(one_of(family, len(X))(X, LABELS))
    copies = [copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))]
    assert [float(each(X, LABELS)) for each in copies] == [wanted, wanted]
    # No parameters, no buffers: nothing to save, nothing that a change of dtype would change.
    assert loss.state_dict() == {}
    loss.load_state_dict({})
    assert float(loss.to(torch.float64).half()(X, LABELS)) == wanted
    assert type(loss).__name__ in repr(loss)


@pytest.mark.parametrize(
    "loss",
    [
        dm.RobustPairLoss(dm.Binomial(3.0), dm.ChiSquare(0.25), zero_loss="drop"),
        dm.RobustPairLoss(dm.Margin(0.3), dm.PerAnchorKL(0.7, slack=True), normalize=False),
        dm.MultiSimilarity(3.0, 41.0, 0.6, dm.MultiSimilarityMiner(0.15), reduction="sum"),
        dm.LiftedStructure(0.9, dm.ThresholdMiner(0.25), normalize=False),
        dm.HAP2S(0.3, 0.2, "polynomial"),
        dm.Triplet(0.3, "semi-hard"),
        dm.MinedPairLoss(dm.Contrastive(0.35), dm.SemiHard(0.25)),
        dm.NPair(normalize=False),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_the_text_of_a_loss_tells_it_from_another(loss):
    # Every setting, as it would be read in a log; what is at its default may be left out.
    shown = repr(loss).replace("'", "")
    assert shown.startswith(type(loss).__name__)
    for name, value in vars(loss).items():
        if not name.startswith("_") and name != "training" and value is not True:
            assert str(value).replace("'", "") in shown, f"{name}={value!r} is not in {shown}"
