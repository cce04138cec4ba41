"""The worked example of docs/extend.md: it is short, and it is what it says it is."""

import doctest
from pathlib import Path
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch

from drometric import Contrastive, Margin, RobustPairLoss
from drometric.uncertainty import UncertaintySet

PAGE = Path(__file__).parents[1] / "docs" / "extend.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page's examples define."""
    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8")):
        exec(compile(example.source, str(PAGE), "exec"), names)
    return names


def random_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(18, 4, dtype=torch.float64, generator=generator)
    return embeddings, torch.randint(5, (18,), generator=generator)


def worst_mixture(loss: np.ndarray, ends: np.ndarray, fraction: float) -> float:
    """The definition, as a linear program over the weights q of the classes."""
    classes = np.unique(ends)
    belongs = np.stack([(ends == c).mean(axis=1) for c in classes])  # classes x pairs
    uniform = belongs / belongs.sum(axis=1, keepdims=True)
    q = cvxpy.Variable(len(classes), nonneg=True)
    limit = 1 / (fraction * len(classes))
    problem = cvxpy.Problem(cvxpy.Maximize(q @ (uniform @ loss)), [cvxpy.sum(q) == 1, q <= limit])
    return float(problem.solve(solver=cvxpy.CLARABEL))


@pytest.mark.parametrize("fraction", [0.25, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_class_cvar_is_the_worst_mixture_of_classes(
    page: dict[str, Any], fraction: float, seed: int
) -> None:
    embeddings, labels = random_batch(seed)
    value = RobustPairLoss(Margin(), page["ClassCVaR"](fraction))(embeddings, labels)

    unit = torch.nn.functional.normalize(embeddings).numpy()
    i, j = np.triu_indices(len(unit), k=1)
    s, y = (unit[i] * unit[j]).sum(axis=1), labels.numpy()
    sign = np.where(y[i] == y[j], 1, -1)
    loss = np.maximum(0.2 + sign * (0.5 - s), 0)
    expected = worst_mixture(loss, np.stack([y[i], y[j]], axis=1), fraction)
    assert float(value) == pytest.approx(expected, abs=1e-7)


def test_class_cvar_has_the_gradient_of_its_value(page: dict[str, Any]) -> None:
    embeddings, labels = random_batch(7)
    loss = RobustPairLoss(Contrastive(threshold=-1.5), page["ClassCVaR"](0.3))
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


def test_class_cvar_weights_sum_up_to_one(page: dict[str, Any]) -> None:
    loss = RobustPairLoss(Margin(), page["ClassCVaR"](0.3), zero_loss="drop")
    assert float(loss.weights(*random_batch(1)).weight.sum()) == pytest.approx(1, abs=1e-14)


def test_class_cvar_works_across_two_sets(page: dict[str, Any]) -> None:
    rows, labels = random_batch(2)
    others, other_labels = random_batch(3)
    loss = RobustPairLoss(Margin(), page["ClassCVaR"](0.5))
    weight = loss.weights(rows, labels, reference=others, reference_labels=other_labels).weight
    assert float(weight.sum()) == pytest.approx(1, abs=1e-14)


def test_the_set_of_the_page_takes_at_most_thirty_lines(page: dict[str, Any]) -> None:
    assert isinstance(page["ClassCVaR"](), UncertaintySet)
    examples = doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8"))
    (source,) = [e.source for e in examples if "class ClassCVaR" in e.source]
    assert len(source.splitlines()) <= 30


def test_the_pair_loss_of_the_page_takes_at_most_ten_lines(page: dict[str, Any]) -> None:
    examples = doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8"))
    (source,) = [e.source for e in examples if "class Squared" in e.source]
    assert len([line for line in source.splitlines() if line.strip()]) <= 10
