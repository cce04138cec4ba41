"""First derivatives are right for every loss, second ones are refused, and autograd is obeyed."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.autograd import forward_ad

import drometric as dm

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2])
OTHERS = torch.tensor([0, 1, 2, 0, 1])
PAIR_LOSSES = [dm.Margin(), dm.Binomial(), dm.Contrastive()]
SETS = [
    dm.Uniform(),
    dm.Simplex(),
    dm.TopK(k=4),
    dm.BalancedTopK(k=5),
    dm.KL(0.2),
    dm.BalancedKL(0.2, 0.4),
    dm.PerAnchorKL(0.2, 0.4),
    dm.PerAnchorKL(0.0, 0.4, slack=True, reduction="sum"),
    dm.ChiSquare(0.5),
    dm.ChiSquare(12.0),
]
ROBUST = {
    f"{type(p).__name__}, {u}": lambda p=p, u=u, **how: dm.RobustPairLoss(p, u, **how)
    for p, u in itertools.product(PAIR_LOSSES, SETS)
}


def baseline(make, *given, **settings):
    return lambda **how: make(*given, **settings, **how)


BASELINES = {
    "ms": baseline(dm.MultiSimilarity, 2.0, 10.0),
    "ms, mined": baseline(dm.MultiSimilarity, miner=dm.MultiSimilarityMiner(), reduction="sum"),
    "ls": baseline(dm.LiftedStructure),
    "ls, mined": baseline(dm.LiftedStructure, miner=dm.ThresholdMiner(), reduction="sum"),
    "n-pair": baseline(dm.NPair),
    "triplet, all": baseline(dm.Triplet, 0.3),
    "triplet, hard": baseline(dm.Triplet, 0.3, "hard"),
    "triplet, semi-hard": baseline(dm.Triplet, 0.6, "semi-hard"),
    "batch-hard": baseline(dm.Triplet, 0.3, "hardest"),
    "semi-hard pairs": baseline(dm.MinedPairLoss, dm.Binomial(), dm.SemiHard(0.6)),
    "mined pairs": baseline(dm.MinedPairLoss, dm.Margin(), dm.MultiSimilarityMiner()),
}
DETACHED = {
    "hap2s-e": baseline(dm.HAP2S, 0.3, 0.5),
    "hap2s-p": baseline(dm.HAP2S, 0.3, 0.5, "polynomial"),
}
DIFFERENTIABLE, EVERY = ROBUST | BASELINES, ROBUST | BASELINES | DETACHED


def data(seed=4):
    generator = torch.Generator().manual_seed(seed)
    sizes = len(LABELS), len(OTHERS)
    return [
        torch.randn(n, 3, dtype=torch.float64, generator=generator).requires_grad_() for n in sizes
    ]


def functions(make, normalize):
    loss = make(normalize=normalize)

    def within(x):
        return loss(x, LABELS)

    def across(x, y):
        return loss(x, LABELS, reference=y, reference_labels=OTHERS)

    return within, across


@pytest.mark.parametrize("normalize", [True, False], ids=["unit rows", "rows as they are"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradcheck(name, normalize):
    within, across = functions(DIFFERENTIABLE[name], normalize)
    x, y = data()
    for function, inputs in ((within, (x,)), (across, (x, y))):
        # A loss without slope would pass whatever its gradient is.
        for gradient in torch.autograd.grad(function(*inputs), inputs):
            assert gradient.abs().max() > 1e-3
        assert torch.autograd.gradcheck(function, inputs, atol=1e-7, rtol=1e-5)


def frozen_hap2s(x, y, x_now, y_now, *, polynomial):
    """HAP2S between two sets with its weights taken at x_now, y_now: gamma 0.3, margin 0.5."""
    unit = torch.nn.functional.normalize
    now, s = unit(x_now) @ unit(y_now).T, unit(x) @ unit(y).T
    positive = LABELS[:, None] == OTHERS
    distance = (2 - 2 * now).clamp(min=0).sqrt()
    if polynomial:
        weights = (distance + 1) ** 10, (distance + 1) ** -20
    else:
        weights = (-now / 0.3).exp(), (now / 0.3).exp()
    near, far = (
        (w * mask * s).sum(1) / (w * mask).sum(1)
        for w, mask in zip(weights, (positive, ~positive), strict=True)
    )
    return (far - near + 0.5).relu().sum() / len(x)


@pytest.mark.parametrize("name", DETACHED)
def test_hap2s_has_the_gradient_of_its_form_with_frozen_weights(name):
    _, across = functions(DETACHED[name], normalize=True)
    x, y = data()
    value, now = across(x, y), (x.detach(), y.detach())
    polynomial = name == "hap2s-p"
    gradients = torch.autograd.grad(value, (x, y))
    assert value.item() == pytest.approx(frozen_hap2s(*now, *now, polynomial=polynomial).item())
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        steps = [1e-6 * torch.randn(z.shape, dtype=z.dtype, generator=generator) for z in now]
        ends = [
            frozen_hap2s(x + sign * steps[0], y + sign * steps[1], *now, polynomial=polynomial)
            for sign in (1, -1)
        ]
        expected = sum((g * step).sum().item() for g, step in zip(gradients, steps, strict=True))
        assert ((ends[0] - ends[1]) / 2).item() == pytest.approx(expected, abs=1e-14)
        free = (across(*[z + s for z, s in zip(now, steps, strict=True)]) - value).item()
        assert abs(free - expected) > 1e-9  # the weights do move: freezing them is not idle


def test_drawn_pairs_have_the_gradient_of_their_mean():
    # Drawn anew from the same state, the pairs stay the same while x moves a little.
    def loss(x):
        generator = torch.Generator().manual_seed(5)
        return dm.RobustPairLoss(dm.Margin(), dm.KL(0.3, sample=6, generator=generator))(x, LABELS)

    assert torch.autograd.gradcheck(loss, data()[:1], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_second_derivatives_are_refused(name):
    within, across = functions(EVERY[name], normalize=True)
    x, y = data()
    for inputs, function in (((x,), within), ((x, y), across)):
        gradients = torch.autograd.grad(function(*inputs), inputs, create_graph=True)
        plain = torch.autograd.grad(function(*inputs), inputs)
        for got, expected in zip(gradients, plain, strict=True):
            assert torch.equal(got, expected)
            with pytest.raises(RuntimeError, match="first derivatives"):
                got.square().sum().backward()
    with pytest.raises(RuntimeError, match="first derivatives"):
        torch.autograd.gradgradcheck(within, (x,))
    with pytest.raises(RuntimeError, match="first derivatives"):
        torch.autograd.functional.hessian(within, x.detach())


@pytest.mark.parametrize("name", EVERY)
def test_a_mixed_second_derivative_is_refused_too(name):
    # The gradient in the embeddings depends on the reference, even if only one of them wants one.
    _, across = functions(EVERY[name], normalize=True)
    x, y = data()
    (by_x,) = torch.autograd.grad(across(x, y), x, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives"):
        torch.autograd.grad(by_x.sum(), y)


@pytest.mark.parametrize("name", EVERY)
def test_torch_func_gives_the_same_gradient(name):
    within, across = functions(EVERY[name], normalize=True)
    x, y = data()
    (expected,) = torch.autograd.grad(within(x), x)
    torch.testing.assert_close(torch.func.grad(within)(x.detach()), expected, rtol=0, atol=0)
    got, value = torch.func.grad_and_value(across, argnums=(0, 1))(x.detach(), y.detach())
    assert value.item() == across(x, y).item()
    for ours, theirs in zip(got, torch.autograd.grad(across(x, y), (x, y)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("name", EVERY)
def test_upstream_factors_and_repeated_passes(name):
    within, _ = functions(EVERY[name], normalize=True)
    x, _ = data()
    value = within(x)
    (gradient,) = torch.autograd.grad(value, x, retain_graph=True)
    (again,) = torch.autograd.grad(value, x, retain_graph=True)
    assert torch.equal(gradient, again)
    (scaled,) = torch.autograd.grad(value.square() + 3 * value, x)
    torch.testing.assert_close(scaled, (2 * value.item() + 3) * gradient, rtol=1e-13, atol=1e-15)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, x)
    # Through a network: the chain rule goes on below the embeddings.
    weight = torch.eye(3, dtype=torch.float64).requires_grad_()
    within(x.detach() @ weight).backward()
    torch.testing.assert_close(weight.grad, x.detach().T @ gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_tracked_that_was_not_asked_for(name):
    within, across = functions(EVERY[name], normalize=True)
    x, y = data()
    assert not within(x.detach()).requires_grad
    with torch.no_grad():
        assert not within(x).requires_grad
    both = torch.autograd.grad(across(x, y), (x, y))
    for wanted in (0, 1):
        inputs = [z if place == wanted else z.detach() for place, z in enumerate((x, y))]
        (gradient,) = torch.autograd.grad(across(*inputs), inputs[wanted])
        assert torch.equal(gradient, both[wanted])
    value = across(x.detach(), y)
    value.backward()
    assert x.grad is None
    assert torch.equal(y.grad, both[1])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # in torch's own jvp
@pytest.mark.parametrize("name", EVERY)
def test_forward_mode_is_refused(name):
    # Nothing here follows a tangent: the derivative would silently be 0.
    within, across = functions(EVERY[name], normalize=True)
    x, y = (z.detach() for z in data())
    x_tangent, y_tangent = torch.ones_like(x), torch.ones_like(y)
    forward = [
        lambda: torch.func.jvp(within, (x,), (x_tangent,)),
        lambda: torch.func.jvp(lambda y: across(x, y), (y,), (y_tangent,)),
        lambda: torch.func.jacfwd(within)(x),
        lambda: torch.func.jvp(torch.func.grad(within), (x,), (x_tangent,)),
        lambda: torch.func.hessian(within)(x),
    ]
    for derivative in forward:
        with pytest.raises(RuntimeError, match="reverse mode only"):
            derivative()
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="reverse mode only"):
        within(forward_ad.make_dual(x.requires_grad_(), x_tangent))
