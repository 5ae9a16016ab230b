"""The sketch keeps inner products: linear, unbiased, of bounded variance, whole, however it is fed."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from behaviortrace.harness.sketch import Sketch, trainable_parameters

ROUNDING = 1e-5  # relative, of float32 sums of at most some ten thousand terms
VARIANCE_BAR = 1.1  # times (|x|²|y|² + <x, y>²)/K; the construction itself promises 1 + 1/64
STANDARD_ERRORS = 5  # of a mean, or of a count: false alarms once in 2 million
# The relative error of a sample variance is about sqrt(2/SEEDS) = 2 %, so the bar is 4 of them away.
SEEDS, SIDE, K = 4000, 48, 32
# Two one-hot vectors collide in 1/K of the seeds: relative error sqrt(K/SEEDS) = 2 %.
ONE_HOT_SEEDS, ONE_HOT_SIDE, ONE_HOT_K = 20_000, 6, 8

SIZES = {"embedding": 700, "norm": 3, "weight": 333, "one": 1}


def sketch_rows(sketch, name, rows):
    accumulator = sketch.accumulator(len(rows))
    sketch.add(accumulator, name, rows)
    return sketch.fold(accumulator)


def whole(seed, batch=None):
    generator = torch.Generator().manual_seed(seed)
    shape = () if batch is None else (batch,)
    return {name: torch.randn(*shape, size, generator=generator) for name, size in SIZES.items()}


def relative(measured, expected):
    return ((measured - expected).norm() / expected.norm()).item()


def inputs():
    """Vectors of SIDE × SIDE coordinates that break weaker sketches: structure in rows, columns, periods."""
    generator = torch.Generator().manual_seed(0)
    row, column = torch.randn(2, SIDE, generator=generator)
    first, second = torch.zeros(2, SIDE, SIDE)
    first[7], second[:, 5] = 1.0, 1.0
    coordinate = torch.arange(SIDE * SIDE)
    vectors = {
        "gaussian": torch.randn(SIDE * SIDE, generator=generator),
        "constant": torch.ones(SIDE * SIDE),
        "alternating": 1.0 - 2.0 * (coordinate % 2),
        "rank-one": torch.outer(row, column).flatten(),
        "rank-one of signs": torch.outer(row.sign(), column.sign()).flatten(),
        "period K": (coordinate % K == 3).float(),
        "period 7": torch.sin(2 * torch.pi * coordinate / 7),
        "single row": first.flatten(),
        "single column": second.flatten(),
    }
    return vectors


@pytest.fixture(scope="module")
def sketched():
    """Sketches of all inputs under all seeds: (seeds, inputs, K)."""
    rows = torch.stack(list(inputs().values()))
    sketches = [sketch_rows(Sketch({"w": rows.shape[1]}, K, seed), "w", rows) for seed in range(SEEDS)]
    return torch.stack(sketches).double()


PAIRS = [(a, b) for i, a in enumerate(inputs()) for b in list(inputs())[i:]]


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=lambda name: name.replace(" ", "-"))
def test_sketch_keeps_inner_products(sketched, a, b):
    vectors, names = inputs(), list(inputs())
    x, y = vectors[a].double(), vectors[b].double()
    products = (sketched[:, names.index(a)] * sketched[:, names.index(b)]).sum(1)
    expected, bound = (x @ y).item(), ((x @ x) * (y @ y) + (x @ y) ** 2).item() / K
    bias = abs(products.mean().item() - expected)
    allowed = STANDARD_ERRORS * (bound / SEEDS) ** 0.5
    assert bias <= allowed, (
        f"<{a}, {b}> is {expected:.4g}, its sketched mean over {SEEDS} seeds is off by {bias:.3g}, more than "
        f"{STANDARD_ERRORS} standard errors ({allowed:.3g}): signs of different chunks are not independent"
    )
    ratio = (products - expected).square().mean().item() / bound
    assert ratio <= VARIANCE_BAR, (
        f"the variance of <{a}, {b}> is {ratio:.3f} times (|x|²|y|² + <x, y>²)/K, allowed {VARIANCE_BAR}: "
        f"chunks share signs (a short table, one table offset for all) or buckets"
    )


@pytest.fixture(scope="module")
def one_hots():
    """Sketches of every one-hot vector under many seeds: (seeds, coordinates, K)."""
    rows = torch.eye(ONE_HOT_SIDE**2)
    sketches = torch.empty(ONE_HOT_SEEDS, len(rows), ONE_HOT_K)
    for seed in range(ONE_HOT_SEEDS):
        sketches[seed] = sketch_rows(Sketch({"w": len(rows)}, ONE_HOT_K, seed), "w", rows)
    return sketches


@pytest.mark.parametrize(
    ("pair", "together"),
    [
        pytest.param((4, 5), True, id="adjacent-in-a-chunk"),
        pytest.param((7, 8), False, id="adjacent-across-chunks"),
        pytest.param((6, 9), False, id="same-row"),
        pytest.param((2, 2 + ONE_HOT_SIDE), False, id="same-column"),
        pytest.param((0, ONE_HOT_SIDE**2 - 1), False, id="first-and-last"),
    ],
)
def test_two_coordinates_collide_once_in_k_seeds(one_hots, pair, together):
    products = (one_hots[:, pair[0]] * one_hots[:, pair[1]]).sum(1)
    ratio = ONE_HOT_K * products.square().mean().item()
    if together:
        assert ratio == 0, f"two coordinates of one chunk share a bucket, K times variance {ratio:.3f}"
    else:
        assert 2 - VARIANCE_BAR <= ratio <= VARIANCE_BAR, (
            f"coordinates {pair} collide {ratio:.3f}/K of the time, expected 1/K: offsets are not uniform"
        )


def test_sketch_is_linear():
    sketch = Sketch(SIZES, 64, seed=3)
    x, y = whole(1), whole(2)
    measured = sketch.dense({name: 2.5 * x[name] - 0.5 * y[name] for name in SIZES})
    error = relative(measured, 2.5 * sketch.dense(x) - 0.5 * sketch.dense(y))
    assert error <= ROUNDING, f"sketch(2.5 x - 0.5 y) is off by {error:.2g}, allowed {ROUNDING:.0g}"


@pytest.mark.parametrize("dimensions", [1, 2, 37, 64, 4096])
def test_every_coordinate_reaches_exactly_one_bucket(dimensions):
    sketch = Sketch(SIZES, dimensions, seed=0)
    for name, size in SIZES.items():
        sketches = sketch_rows(sketch, name, torch.eye(size))
        lost = (sketches.abs().sum(1) != 1).nonzero().flatten().tolist()
        assert not lost, (
            f"K = {dimensions}: coordinates {lost[:5]} of {name} give {sketches[lost[:1]]}, not ±1"
        )


def test_a_single_row_is_seen():
    """The behaviour token's embedding row may be all that a gradient has."""
    model = nn.ModuleDict({"embed": nn.Embedding(60, 48), "head": nn.Linear(48, 60)})
    sketch = Sketch.for_model(model, 64, seed=0)
    for name, p in trainable_parameters(model).items():
        for row in range(len(p)):
            gradients = {other: torch.zeros_like(q) for other, q in trainable_parameters(model).items()}
            gradients[name][row] = 1.0
            assert sketch.dense(gradients).any(), f"the sketch doesn't see row {row} of {name}"


@pytest.mark.parametrize("dimensions", [16, 37, 4096])
def test_any_split_gives_the_same_sketch(dimensions):
    sketch, rows = Sketch(SIZES, dimensions, seed=5), whole(0, batch=6)
    expected = torch.stack([sketch.dense({name: r[i] for name, r in rows.items()}) for i in range(6)])
    accumulator = sketch.accumulator(6)
    draw = random.Random(0)
    for name, size in SIZES.items():
        cuts = sorted({0, size, *draw.sample(range(size + 1), min(size, 9))})
        for start, end in pairwise(cuts):
            for b in (slice(0, 1), slice(1, 6)):
                sketch.add(accumulator[b], name, rows[name][b, start:end], start)
    error = relative(sketch.fold(accumulator), expected)
    assert error <= ROUNDING, (
        f"rows added in pieces differ from whole gradients by {error:.2g}, allowed {ROUNDING:.0g}: "
        f"a start inside a chunk lands in the wrong bucket or sign"
    )


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 1000), (1, -1), (1, 11), (0, 2**32), (7, 2**64 + 7)])
def test_any_two_seeds_are_independent(one, other):
    chunks, dimensions = 64, 256
    starts = torch.zeros(chunks, chunks * dimensions)
    starts[torch.arange(chunks), torch.arange(chunks) * dimensions] = 1.0
    wide = torch.stack([torch.ones(chunks * dimensions), starts.sum(0)])
    buckets, sketches = [], []
    for seed in (one, other):
        sketch = Sketch({"w": chunks * dimensions}, dimensions, seed)
        buckets.append(sketch_rows(sketch, "w", starts).abs().argmax(1))
        sketches.append(sketch_rows(sketch, "w", wide))
    shared = (buckets[0] == buckets[1]).sum().item()
    # Poisson with mean 64/256: more than 5 in one of 20 million.
    assert shared <= STANDARD_ERRORS, (
        f"{shared} of {chunks} chunks have the same bucket under {one} and {other}"
    )
    correlations = torch.nn.functional.cosine_similarity(*sketches)
    allowed = STANDARD_ERRORS / dimensions**0.5
    assert correlations.abs().max() <= allowed, (
        f"seeds {one} and {other}: sketches of one vector correlate at {correlations.tolist()}, "
        f"allowed {allowed:.2f}: the seeds share signs"
    )


def test_parameters_of_one_size_have_layouts_of_their_own():
    sketch = Sketch({"a": 6400, "b": 6400}, 100, seed=0)
    rows = torch.zeros(64, 6400)
    rows[torch.arange(64), torch.arange(64) * 100] = 1.0
    buckets = [sketch_rows(sketch, name, rows).abs().argmax(1) for name in ("a", "b")]
    shared = (buckets[0] == buckets[1]).sum().item()
    assert shared <= STANDARD_ERRORS, f"{shared} of 64 chunks of two parameters land in the same bucket"


def test_a_sketch_does_not_change_between_builds():
    """Sketches on disk outlive the process, and versions of torch and numpy."""
    x = {"w": torch.arange(1.0, 11.0)}
    measured = [Sketch({"w": 10}, 4, seed=seed).dense(x).tolist() for seed in (0, 1)]
    assert measured == [[-9, 6, -3, -3], [9, 14, 5, -5]], (
        f"the sketch of 1 … 10 has become {measured}: sketches in users' caches no longer match"
    )


def test_global_generators_stay_untouched():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    sketch = Sketch(SIZES, 64, seed=0)
    sketch.dense(whole(0))
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    assert torch.equal(before[0], after[0]), "building a sketch moved torch's global generator"
    assert (before[1] == after[1]).all(), "building a sketch moved numpy's global generator"
    assert before[2] == after[2], "building a sketch moved Python's global generator"


def test_float64_gradients_keep_their_precision():
    sketch = Sketch(SIZES, 64, seed=0)
    x = {name: rows.double() * 1e200 for name, rows in whole(0).items()}
    measured = sketch.dense(x)
    assert measured.dtype == torch.float64
    assert relative(measured / 1e200, sketch.dense(whole(0)).double()) <= ROUNDING


def test_for_model_takes_trainable_parameters_and_tied_ones_once():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5, bias=False))
    model[2].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    assert Sketch.for_model(model, 8, seed=0).sizes == {"0.weight": 15, "1.weight": 9}


def test_misuse_names_the_cause():
    with pytest.raises(ValueError, match="all frozen"):
        Sketch({}, 8, seed=0)
    with pytest.raises(ValueError, match="at least 1 dimension"):
        Sketch({"w": 3}, 0, seed=0)
    with pytest.raises(ValueError, match="empty"):
        Sketch({"w": 3, "empty": 0}, 8, seed=0)
    sketch = Sketch({"w": 3}, 8, seed=0)
    with pytest.raises(ValueError, match="w has 3 coordinates"):
        sketch.add(sketch.accumulator(1), "w", torch.ones(1, 3), start=1)
    with pytest.raises(ValueError, match="differ in their parameters: v"):
        sketch.dense({"w": torch.ones(3), "v": torch.ones(3)})
    with pytest.raises(ValueError, match="its gradient 4"):
        sketch.dense({"w": torch.ones(4)})
