"""The degenerate matrix: every loss x every degenerate batch x every precision.

What is expected stands in `degenerate_cases` and `degenerate_errors`; what the values are, where
all pairs are equally similar, in `equal_similarities`. `docs/degenerate.md` is the same table for
readers.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from degenerate_cases import SAME, VALUES, frame
from degenerate_errors import ERRORS
from equal_similarities import bounds, slope
from every_loss import FAMILIES, one_of

import drometric as dm

TABLE = Path(__file__).parents[1] / "docs" / "degenerate.md"
DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "autocast": torch.float32,
}
ALSO_REFUSED_IN = {"top-8", "lifted"}  # every precision; the other families in fp32 only
MATRIX = [
    pytest.param(case, family, precision, id=f"{case}-{family}-{precision}")
    for cases in (VALUES, ERRORS)
    for case in cases
    for family in FAMILIES
    for precision in DTYPES
    if cases is VALUES or precision == "fp32" or family in ALSO_REFUSED_IN
]


@pytest.mark.parametrize(("case", "family", "precision"), MATRIX)
def test_a_degenerate_batch_gives_what_the_table_says(case, family, precision):
    make = VALUES.get(case) or ERRORS[case]
    losses = FAMILIES[family] if case in VALUES else {"": partial(one_of, family)}
    for name, build in losses.items():
        try:
            check(make(DTYPES[precision]), family, build, precision)
        except (Exception, pytest.fail.Exception) as failure:
            failure.add_note(f"with {family} {name}")
            raise


def check(case, family, build, precision):
    sources = {
        name: x.requires_grad_()
        for name, x in case.call.items()
        if name in ("embeddings", "reference") and torch.is_tensor(x) and x.is_floating_point()
    }
    loss = build(len(case.call["embeddings"]), **dict(case.options))
    error = expected_error(case, family, build)
    with autocast(precision):
        if error is not None:
            with pytest.raises(ValueError, match=error):
                loss(**case.call)
            return
        value = loss(**case.call)
    value.backward()
    value = value.detach()

    double = torch.float64 in {source.dtype for source in sources.values()}
    assert value.dtype == (torch.float64 if double else torch.float32)
    assert value.isfinite()
    for source in sources.values():
        assert source.grad.shape == source.shape
        assert source.grad.dtype == source.dtype
        assert source.grad.isfinite().all()
    if case.alike is not None:
        least, most = bounds(loss, case.alike)
        tolerance = 1e-9 if double else 1e-6
        assert least - tolerance * (1 + abs(least)) <= float(value)
        assert float(value) <= most + tolerance * (1 + abs(most))
    check_gradient(case, loss, sources)


def autocast(precision):
    wanted = precision == "autocast"
    return torch.autocast("cpu", torch.bfloat16) if wanted else nullcontext()


def expected_error(case, family, build):
    """How the error reads that is expected; None for a value."""
    if case.error is not None:
        return case.error
    x, normalize = case.call["embeddings"], dict(case.options).get("normalize", True)
    if family.endswith("+distance") and (x.shape[1] < 2 or not normalize):
        return (
            "embeddings must be normalised and have at least 2 columns for DistanceWeighted; "
            rf"got d = {x.shape[1]}, normalize={normalize}"
        )
    if case.gradient == "overflow" and x.dtype != torch.float64:
        # What float64 embeddings give may be more than the float32 of the others can hold.
        value = build(len(x), normalize=False)(**{**case.call, "embeddings": x.detach().double()})
        if float(value) > torch.finfo(torch.float32).max:
            return r"^the loss .*torch.float32: make the embeddings .* smaller"
    return None


def check_gradient(case, loss, sources):
    gradient = sources["embeddings"].grad.double()
    dtype = sources["embeddings"].dtype
    if case.gradient == "zero":
        # Not left out but zero; at s = 1 up to the rounding of the unit vectors.
        for source in sources.values():
            assert source.grad.double().abs().sum() < 1e-12
    # A zero vector has no direction that could change.
    assert not gradient[~sources["embeddings"].detach().any(1)].any()
    if case.gradient not in ("slope", "clamped") or len({*bounds(loss, case.alike)}) > 1:
        return
    # In a frame all similarities rise together with the first column, by 1/2.
    rise, wanted = float(gradient[:, 0].sum()) * case.scale, slope(loss, case.alike) / 2
    if case.gradient == "slope":
        room = 4 * torch.finfo(dtype).eps * float(gradient[:, 0].abs().sum()) * case.scale
        assert rise == pytest.approx(wanted, abs=room + 1e-7)
    elif abs(wanted) > 1e-7:
        assert rise * wanted > 0


def test_the_table_in_the_docs_has_the_cases_of_the_matrix():
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [case for case, _ in rows[1:]] == [*VALUES, *ERRORS]
    for case, value in rows[1:]:
        assert value.startswith("`ValueError`") == (case in ERRORS)


def test_a_case_that_says_value_would_notice_a_wrong_value():
    # The formulas are only worth something if they tell losses apart and see every count.
    seen = {
        tuple(bounds(one_of(family, 5), VALUES[case](torch.float64).alike))
        for family in ("uniform", "top-8", "kl", "ms", "lifted", "n-pair")
        for case in ("no positives", "no negatives", "scale 1e-30", "37 of 40 in one class")
    }
    assert len(seen) > 10


def ordinary(rows=6, width=4):
    generator = torch.Generator().manual_seed(11)
    return torch.randn(rows, width, generator=generator), torch.arange(rows) // 2


LAYOUTS = {
    "columns first": lambda x: x.T.contiguous().T,
    "every second row": lambda x: x.repeat_interleave(2, 0)[::2],
    "a slice of a wider matrix": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_changes_nothing(family, layout):
    x, labels = ordinary()
    plain, strided = x.clone().requires_grad_(), x.clone().requires_grad_()
    one_of(family)(plain, labels).backward()
    one_of(family)(LAYOUTS[layout](strided), labels).backward()
    assert torch.equal(plain.grad, strided.grad)


@pytest.mark.parametrize("family", FAMILIES)
def test_expanded_rows_are_identical_vectors(family):
    # Stride 0: six times the same memory, which must be neither written to nor counted wrongly.
    row = torch.tensor([[0.5, 0.5, 0.5, 0.5]], requires_grad=True)
    value = one_of(family)(row.expand(6, 4), torch.arange(6) // 2)
    value.backward()
    alike = VALUES["identical vectors"](torch.float32).alike
    least, most = bounds(one_of(family), alike)
    assert least - 1e-5 <= float(value.detach()) <= most + 1e-5
    assert row.grad.abs().max() < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("parameter", [False, True])
def test_without_gradients_the_value_is_the_same(family, mode, parameter):
    x, labels = ordinary()
    wanted = float(one_of(family)(x, labels))
    x = torch.nn.Parameter(x) if parameter else x
    with mode():
        value = one_of(family)(x, labels)
        inside = one_of(family)(x * 1, labels)  # a tensor made in that mode
        weights = one_of(family).weights(x, labels)
    assert not value.requires_grad
    assert float(value) == float(inside) == wanted
    assert weights.weight.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "uint32"])
def test_labels_of_any_integer_dtype_mean_the_same(family, dtype):
    x, labels = ordinary()
    narrow = labels.to(getattr(torch, dtype))
    wanted = one_of(family)(x, labels)
    assert float(one_of(family)(x, narrow)) == float(wanted)
    # ... also of two dtypes at once.
    across = {"reference": x.flip(0), "reference_labels": labels.flip(0)}
    wanted = one_of(family)(x, labels, **across)
    assert float(one_of(family)(x, narrow, **across)) == float(wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_under_autocast_gets_its_gradient(family):
    x, labels = ordinary(width=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = torch.nn.Linear(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = layer(x)
        value = one_of(family)(embeddings, labels)
    assert embeddings.dtype == torch.bfloat16
    assert value.dtype == torch.float32
    value.backward()
    # Autocast decides what the layer computes in, nothing inside of the loss.
    leaf = embeddings.detach().requires_grad_()
    alone = one_of(family)(leaf, labels)
    alone.backward()
    assert alone.detach() == value.detach()
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(layer.bias.grad, leaf.grad.float().sum(0), atol=0.02, rtol=0.02)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("factor", [2.0**16, 2.0**-26])
def test_a_scaled_loss_scales_what_float16_can_hold(family, factor):
    # A gradient scaler multiplies the loss by 2^16 so that small gradients survive float16: the
    # factor itself may be beyond float16, the gradient must neither pass through it nor be
    # rounded before it is scaled.
    x, labels = ordinary()
    half = (x * (2.0**13 if factor > 1 else 2.0**-12)).half().requires_grad_()
    single = half.detach().float().requires_grad_()
    (one_of(family)(half, labels) * factor).backward()
    (one_of(family)(single, labels) * factor).backward()
    torch.testing.assert_close(half.grad, single.grad.half(), rtol=2e-3, atol=2e-7)


def test_no_pair_left_has_empty_weights_and_an_empty_report():
    for family in FAMILIES:
        loss, x = one_of(family, 5), frame(5, torch.float32)
        everything = torch.ones(5, 5).bool()
        assert len(loss.weights(x, SAME, ignore=everything).weight) == 0
        assert loss.report(x, SAME, ignore=everything) == type(loss.report(x, SAME))(
            0, 0, 0, 0, 0.0, 0.0, 0.0
        )


def test_one_absent_sign_leaves_its_share_to_the_other():
    # The definitions, one by one, rather than by formulas: in batches of one sign the balanced
    # sets are what they are made of.
    x, _ = ordinary()
    labels, pair_loss = torch.zeros(6, dtype=torch.int64), dm.Margin()
    for balanced, simple in (
        (dm.BalancedTopK(k=5), dm.TopK(k=2)),
        (dm.BalancedKL(0.3, 0.1), dm.KL(0.3)),
    ):
        loss, of_one_sign = (dm.RobustPairLoss(pair_loss, u) for u in (balanced, simple))
        assert float(loss(x, labels)) == float(of_one_sign(x, labels))


def test_a_strength_however_small_singles_out_the_hardest():
    # 1/γ is beyond any dtype: the limit is the maximum, not a loss without pairs.
    x, labels = ordinary()
    for of_gamma in (
        lambda gamma: dm.HAP2S(gamma),
        lambda gamma: dm.RobustPairLoss(dm.Margin(), dm.KL(gamma)),
        lambda gamma: dm.RobustPairLoss(dm.Margin(), dm.BalancedKL(gamma, gamma)),
        lambda gamma: dm.RobustPairLoss(dm.Margin(), dm.PerAnchorKL(gamma, gamma, slack=True)),
    ):
        wanted = float(of_gamma(1e-12)(x, labels))
        assert float(of_gamma(1e-309)(x, labels)) == pytest.approx(wanted, rel=1e-6)
