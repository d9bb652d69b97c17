"""Training in 8-bit integers on P ranks: close to float32 for every model and policy, the messages, and the rules of Tango
§3.2.
"""

from __future__ import annotations

import functools
import logging

import numpy as np
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks import int8 as programs
from ranks.int8 import ALWAYS, CONFIGS, FLOAT32, HAVE_OTHERS, LAST_LAYERS, How, Trained
from requires import EVERYTHING

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import MessageConfig, Messages, codecs
from hpcgnn.kernels import int8 as kernels
from hpcgnn.nn import build, int8
from hpcgnn.nn.config import NEAREST, ROW, TENSOR, Int8Config
from hpcgnn.nn.int8 import Int8, Limits, Measured, Uses, bits_needed, errors
from hpcgnn.policy.config import BITS_POLICIES, FIXED, STALENESS_POLICIES, PolicyConfig
from hpcgnn.world.thread_world import one_rank

NODES, EDGES = 200, 2000
LOSSES = 0.05  # largest difference from float32's losses, relative to them; gin's sums over hubs have the largest
GRADIENTS = 0.15  # the same for gradients of the first epoch, all parameters together
# For low bit-widths of messages, where another seed of the noise makes as much of a difference.
FEW_BITS = {"losses": 0.1, "gradients": 1.1}
ATTENTION = ("gat", "gatv2", "gat, partial")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The path of a graph in this many parts; of three parts, the last one may be empty."""
    folder = tmp_path_factory.mktemp("int8")

    @functools.cache
    def written(ranks: int, empty: int | None = None):
        path = folder / f"{ranks}-{empty}.h5"
        part = small_graphs.random_parts(NODES, ranks, empty=empty)
        graph = small_graphs.with_typed_edges(small_graphs.random_multigraph(nodes=NODES, edges=EDGES))
        small_graphs.write_parts(path, graph, part, ranks)
        return path

    return written


@pytest.fixture(scope="module")
def trained(parts):
    """The results of a training, computed only once for the same arguments."""

    def train(how: How, ranks: int = 2, empty: int | None = None) -> Trained:
        return ThreadPool(ranks).run(programs.train, parts(ranks, empty), how)[0]

    return functools.cache(train)


def assert_near(found: Trained, exact: Trained, losses: float = LOSSES, gradients: float = GRADIENTS) -> None:
    assert found.losses != exact.losses, "there were no integers in it"
    assert len(found.losses) == len(exact.losses) > 1
    assert (np.abs(np.subtract(found.losses, exact.losses)) / exact.losses).max() < losses  # false for a NaN
    assert found.gradients.keys() == exact.gradients.keys()
    one, other = (torch.cat([value.flatten() for value in each.gradients.values()]) for each in (found, exact))
    assert (one - other).norm() / other.norm() < gradients


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gcn", "gat", "hgt"])
def test_a_run_repeats_bit_for_bit_with_any_number_of_threads(trained, name):
    how = How(name, messages=MessageConfig(8))
    first, again = trained(how), trained(How(name, messages=MessageConfig(8), threads=2))
    assert again.losses == first.losses
    assert again.weights == first.weights


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_mpi_ranks_do_the_same(trained, parts, mpi_ranks, name):
    how = How(name, messages=MessageConfig(8))
    found = mpi_ranks(2).run(programs.train, parts(2), how)
    assert found[0].losses == found[1].losses
    assert found[0].weights == found[1].weights
    assert found[0].losses == pytest.approx(trained(how).losses, rel=1e-5)


def test_a_nan_ends_the_training_with_float32s_sentence(parts):
    """Rows are given to the exchange as integers, in which a NaN would not show."""
    told = {
        ThreadPool(2).run(programs.failure, parts(2), How("gat", compute, MessageConfig(8)))[0]
        for compute in (FLOAT32, ALWAYS)
    }
    (sentence,) = told
    assert "layer 1's boundary rows of rank 1 held NaN or infinite values in epoch 0" in sentence


def test_a_scale_that_is_lost_is_noticed(trained, parts, monkeypatch):
    """A lost scale must make the comparison fail; otherwise it would prove nothing."""
    quantize_rows = kernels.quantize_rows

    def without_scale(*arguments, **how):
        rows = quantize_rows(*arguments, **how)
        return kernels.Int8Rows(rows.codes, torch.ones_like(rows.scale))

    exact = trained(How("gat", FLOAT32))
    assert_near(trained(How("gat")), exact)
    monkeypatch.setattr(kernels, "quantize_rows", without_scale)
    found = ThreadPool(2).run(programs.train, parts(2), How("gat"))[0]
    with pytest.raises(AssertionError):
        assert_near(found, exact)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_rows_of_the_halo_arrive_as_the_integers_that_they_are(parts):
    ThreadPool(3).run(programs.rows_of_the_halo, parts(3))


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_attention_over_the_halo_rounds_nothing_for_the_wire(trained, parts, monkeypatch, name):
    """In forward, in layers that compute with integers; gradients are floats until they are sent."""
    encoder = codecs.encoder

    def refusing(*arguments):
        encode = encoder(*arguments)

        def refused(*rows):
            if torch._C._current_graph_task_id() < 0:  # no backward pass is under way
                raise AssertionError("rows were rounded a second time")
            return encode(*rows)

        return refused

    how = How(name, messages=MessageConfig(8), int8=Int8Config(before_softmax=True))
    wanted = trained(how)
    monkeypatch.setattr(codecs, "encoder", refusing)
    assert ThreadPool(2).run(programs.train, parts(2), how)[0].losses == wanted.losses
    with pytest.raises(AssertionError, match="a second time"):  # as for gcn's sums
        ThreadPool(2).run(programs.train, parts(2), How("gcn", messages=MessageConfig(8)))


@pytest.mark.parametrize("strategy", ["hybrid", "post", "pre"])
def test_copies_go_as_they_are_and_sums_are_rounded(parts, strategy):
    copies, sums = ThreadPool(3).run(programs.rows_of_gcn, parts(3), strategy)[0]
    assert copies > 0
    assert (sums > 0) == (strategy != "post")


# -- policies ----------------------------------------------------------------------------------------------------------

PERIOD = {"adaqp": {"bits_period": 1, "group_rows": 5}, "uniform": {"bits_period": 1}, "sylvie": {"loss_window": 1}}
STALE = {
    "pipeline": PolicyConfig(staleness="pipeline"),
    "uncorrected": PolicyConfig(staleness="pipeline", stale_correction="none"),
    "smoothed": PolicyConfig(staleness="pipeline", smoothing="both"),
    "sylvie": PolicyConfig(staleness="sylvie", loss_window=1),
    "pipeqs": PolicyConfig(staleness="pipeqs", drift_threshold=2.0),
    "sancus": PolicyConfig(staleness="sancus", drift_threshold=2.0),
    "auto": PolicyConfig(staleness="auto"),
    "pipeqs, late": PolicyConfig(staleness="pipeqs", drift_threshold=2.0, bypass="late"),
}
CASES = {name: PolicyConfig(name, **PERIOD.get(name, {})) for name in BITS_POLICIES if name != FIXED}
CASES |= {f"{name}, stale": policy for name, policy in STALE.items()}
# The bit-widths of these messages are so low that their noise dominates the difference.
OF_FEW_BITS = ("auto", "sylvie", "uniform")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "case"), [*enumerate(CASES)])
def test_any_policy(trained, number, case):
    policy = CASES[case]
    for name in ("gcn", "gat") if EVERYTHING else ("gcn", "gat")[number % 2 :][:1]:
        how = {"messages": MessageConfig(8), "policy": policy, "steps": 3 if policy.is_off else 4}
        found, exact = trained(How(name, **how)), trained(How(name, FLOAT32, **how))
        assert np.isfinite(found.losses).all()
        assert_near(found, exact, **(FEW_BITS if case in OF_FEW_BITS else {}))


def test_all_policies_of_staleness_are_tried():
    assert {policy.staleness for policy in STALE.values()} == set(STALENESS_POLICIES) - {"off"}


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def spied(monkeypatch):
    """``spied(note, *names)``: from now on, each call of these integer kernels calls ``note(name, x)``, x its first argument."""

    def spy(note, *names):
        for name in names:
            kernel = getattr(kernels, name)
            noted = lambda x, *more, n=name, k=kernel, **how: (note(n, x), k(x, *more, **how))[1]  # noqa: E731
            monkeypatch.setattr(kernels, name, noted)

    return spy


@pytest.mark.parametrize("name", LAST_LAYERS)
def test_what_the_softmax_is_of_is_float32_unless_integers_are_wanted(parts, spied, name):
    """Forward and backward, in products, aggregations and attention (Tango §3.2)."""
    calls = []
    spied(lambda kernel, x: calls.append(kernel), "quantize_rows", "product", "weight_gradient", "sddmm")
    run = lambda config: ThreadPool(1).run(programs.last_layers_results, parts(1), name, config, calls)[0]  # noqa: E731
    assert "product" in run(Int8Config(before_softmax=True))
    if name in HAVE_OTHERS:
        assert run(Int8Config()) == []
        return
    with pytest.raises(HpcgnnError, match="leaves the layer before the softmax in float32, and there is no other"):
        run(Int8Config())


@pytest.mark.parametrize("name", ATTENTION)
def test_scores_of_attention_are_float32(parts, spied, name):
    """Wherever they are computed, and where they travel, alone or with rows (Tango Eq. 7, 8)."""
    widths = set()
    spied(lambda kernel, x: widths.add(x.shape[1]), "quantize_rows", "product")
    ThreadPool(2).run(programs.train, parts(2), How(name, steps=1))
    assert widths >= {9, 32}, "features and rows of hidden layers"
    heads = CONFIGS[name].heads
    assert not widths & {heads, 32 + heads}


def test_to_the_nearest_nothing_depends_on_the_seed(trained):
    nearest, stochastic = (
        [trained(How("sage", int8=config, noise=noise)).losses for noise in (1, 2)]
        for config in (Int8Config(rounding=NEAREST), Int8Config())
    )
    assert nearest[0] == nearest[1]
    assert stochastic[0] != stochastic[1]
    assert nearest[0] != stochastic[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_evaluations_are_those_of_float32(parts, name):
    ThreadPool(2).run(programs.scores_in_evaluation, parts(2), name, 8)


def equation_4(x: np.ndarray, bits: int, axis: int | None) -> float:
    """The sum over elements as printed in the paper, with a scale for each row; without an axis, one for all, as there."""
    step = np.abs(x).max(axis, keepdims=True) / (2 ** (bits - 1) - 1)
    near = np.round(x / np.where(step > 0, step, 1)) * step
    return float((np.abs(x - near) / (np.abs(x + near) + 0.0005)).sum())


@pytest.mark.parametrize("axis", [1, None])
def test_errors_are_those_of_equation_4(axis):
    """With one scale for all rows of all ranks, as in the paper, small rows beside large ones lose all their bits."""
    x = torch.randn(30, 7) * 10.0 ** torch.linspace(-3, 3, 30)[:, None]
    x[4], x[5, 1:] = 0, 0
    scale = () if axis else (x.abs().amax().view(1),)
    found, count = errors(x, *scale)
    assert count == 210
    assert found == pytest.approx([equation_4(x.double().numpy(), bits, axis) for bits in int8.BITS], rel=1e-3)
    assert found == sorted(found, reverse=True)
    assert errors(x.bfloat16().requires_grad_(), *scale)[1] == 210
    assert errors(torch.zeros(0, 7)) == ([0.0] * len(int8.BITS), 0)
    assert np.isnan(errors(torch.full((2, 2), torch.nan))[0]).all()
    if scale:
        assert np.add(*(errors(part, *scale)[0] for part in (x[:11], x[11:]))) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize(("totals", "most", "needed"), [
    ([5, 4, 3, 2, 1], 0.35, 6),
    ([5, 4, 3, 2, 1], 1, 4),
    ([5, 4, 3, 2, 1], 0.11, 8),
    ([5, 4, 3, 2, 1], 0.1, None),  # it must be below the limit, not equal to it
    ([np.nan] * 5, 1, None),
])  # fmt: skip
def test_how_many_bits_are_needed(totals, most, needed):
    found, error = bits_needed(np.array(totals, float), 10, most)
    assert found == needed
    assert error == pytest.approx(totals[-1] / 10, nan_ok=True)
    assert bits_needed(np.zeros(5), 0, 0.3) == (4, 0.0)


def warnings_in(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_model_that_needs_more_bits_goes_on_in_float32(parts, caplog):
    ranks = ThreadPool(3).run(programs.too_few_bits, parts(3), 1e-6)
    for found in ranks:
        assert found["computes"] == [FLOAT32] * 3
        assert found["quantized"][0] > 0, "the first layer's"
        assert found["quantized"][1:] == [0, 0]
        assert (found["summary"]["compute"], found["summary"]["compute_asked"]) == (FLOAT32, ALWAYS)
    (sentence,) = warnings_in(caplog)
    assert "--int8-most-error is 1e-06; training goes on in float32" in sentence
    assert {found["quantized"][0] for found in ranks} == {ranks[0]["quantized"][0]}
    gave_up, exact = ThreadPool(2).run(programs.go_on_alone, parts(2))[0]
    assert gave_up == exact


def test_the_scale_of_the_paper_is_of_all_ranks(parts, caplog):
    """The error is measured with one scale of all ranks' rows, and so is larger, and the same on any number of ranks."""
    found = {}
    for ranks, scale in ((1, ROW), (1, TENSOR), (3, TENSOR)):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            ThreadPool(ranks).run(programs.too_few_bits, parts(ranks), 1, scale)
        (sentence,) = (each.getMessage() for each in caplog.records if "has a relative error of" in each.getMessage())
        found[ranks, scale] = float(sentence.split("relative error of ")[1].split()[0])
    assert found[1, TENSOR] > 1.05 * found[1, ROW]
    assert found[3, TENSOR] == pytest.approx(found[1, TENSOR], abs=0.002)


@pytest.mark.parametrize("most_error", [0.9, 1])
def test_a_model_that_8_bits_hold_goes_on_in_them(parts, caplog, most_error):
    for found in ThreadPool(2).run(programs.too_few_bits, parts(2), most_error):
        assert found["computes"] == [ALWAYS] * 3
        assert min(found["quantized"]) > 0
        assert found["summary"]["compute"] == ALWAYS
    assert warnings_in(caplog) == []


# -- conditions for integers -------------------------------------------------------------------------------------------


def test_what_is_faster_on_every_rank_is_done_in_integers(parts, monkeypatch, caplog):
    """A user is told if that is nothing."""
    answers = [Measured(2.0, 0.9), Measured(1.0, 2.0), Measured(2.0, 2.0), Measured(2.0, 0.9)]
    monkeypatch.setattr(int8, "measured", lambda *device: answers.pop())
    assert ThreadPool(2).run(programs.agreed_uses, parts(2)) == [("products", "int8")] * 2
    assert warnings_in(caplog) == []
    monkeypatch.setattr(build, "choose_compute", lambda world, compute, *how: "bf16" if compute == "auto" else compute)
    assert ThreadPool(2).run(programs.agreed_uses, parts(2)) == [("", "bf16")] * 2
    assert warnings_in(caplog) == [
        "8-bit integers are not faster than float32 here: everything is computed in the arithmetic of --compute auto"
    ]


@pytest.mark.parametrize("name", ["gcn", "gin"])
def test_ranks_on_both_sides_of_the_limits_train_together(tmp_path, monkeypatch, name):
    """One rank is large enough for integers and one is not: which gradients travel does not depend on that."""
    graph = small_graphs.random_multigraph(nodes=NODES, edges=EDGES)
    part = (np.arange(NODES) % 5 == 0).astype(np.int64)  # 160 nodes and 40
    small_graphs.write_parts(tmp_path / "uneven.h5", graph, part, 2)
    monkeypatch.setattr(int8, "measured", lambda *device: Measured(2.0, 2.0))
    monkeypatch.setattr(int8, "usable", lambda *device: Uses(True, True))
    monkeypatch.setattr(int8, "limits_of", lambda *device: Limits(100 * 32 * 32, 8, 8))
    monkeypatch.setattr(int8, "aggregates", lambda csr, width: csr.num_cols > 100)
    found, exact = (
        ThreadPool(2).run(programs.train, tmp_path / "uneven.h5", How(name, compute))[0]
        for compute in ("int8", FLOAT32)
    )
    # GIN subtracts what rows after a layer norm have in common, and is left with the errors.
    assert_near(found, exact, gradients={"gin": 0.5}.get(name, GRADIENTS))


@pytest.mark.parametrize(("before", "uses"), [
    ({"asked": "int8", "chosen": "int8", "int8": "sums"}, Uses(False, True)),
    ({"asked": "int8", "chosen": FLOAT32, "int8": ""}, Uses(False, False)),
    ({"asked": "auto", "chosen": "bf16"}, None),
    (None, None),
])  # fmt: skip
def test_a_resumed_run_goes_on_with_what_was_faster_when_it_began(before, uses):
    """None: the operations are measured now, and the error of 8 bits is checked."""
    measured = Uses(True, False)
    found = Int8(Int8Config(), measured, Messages(one_rank()), "native")
    found.resume_choice(before)
    assert found.uses == (uses or measured)
    assert found.is_checked == (uses is not None)


def test_small_products_stay_float32():
    least = Limits(multiplications=20_000, narrow=20, wide=40)
    assert int8.multiplies(25, 20, 40, least)
    assert int8.multiplies(25, 40, 20, least)
    for shape in ((0, 256, 256), (24, 20, 40), (100, 19, 40), (100, 30, 39)):
        assert not int8.multiplies(*shape, least)
    assert not int8.multiplies(1000, 256, kernels.MOST_TERMS + 1), "int32 does not hold the sums"
