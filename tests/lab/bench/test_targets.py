"""The shipped benches are commands, and have targets, which are applied here to figures that a test makes up."""

from __future__ import annotations

import functools
import shlex
from typing import Any

import click
import pytest

from hpcgnn.lab.bench import aggregate, products
from hpcgnn.lab.bench.names import PRODUCTS
from hpcgnn.lab.cli.bench import bench
from hpcgnn.lab.study import axes, catalogue, records, specification, targets
from hpcgnn.lab.study.groups import Groups
from hpcgnn.lab.study.records import Record

AT_THE_BOUND = pytest.mark.parametrize(("scale", "reached"), [(1.001, "yes"), (0.999, "no")])


@functools.cache
def shipped(name: str) -> specification.Specification:
    return specification.read(catalogue.find(name))


@functools.cache
def benches() -> set[tuple[str, str]]:
    """The command line of each run of a shipped study of benches, after the study's name."""
    names = [name for name, path in catalogue.shipped().items() if catalogue.outline(path).kind == axes.BENCH]
    return {(name, run.given["bench"]) for name in names for run in shipped(name).runs}


def answers(name: str, *found: dict[str, Any]) -> dict[str, list[str]]:
    """The verdicts of each target of a study, without those for which nothing was measured.

    found: for the first runs, ``{"lines": ...}`` of a bench, or the summary of a training.
    """
    study = shipped(name)
    done = [
        Record(key=run.key, configuration=run.configuration, status=records.FINISHED, summary=summary)
        for run, summary in zip(study.runs, found, strict=False)
    ]
    by_target: dict[str, list[str]] = {}
    for verdict in targets.verdicts(Groups(study, done), targets.read(targets.default_path(study))):
        if verdict.reached != targets.NOT_MEASURED:
            by_target.setdefault(verdict.target, []).append(verdict.reached)
    return by_target


def line(figures: dict[str, float], **axes: str) -> dict[str, Any]:
    return {"axes": axes, "figures": figures}


def problem_of(words: str) -> str:
    """The problem of a bench's command line, or nothing."""
    name, *arguments = shlex.split(words)
    try:
        context = bench.commands[name].make_context(name, [*arguments, "--json"])
    except (click.ClickException, KeyError) as error:
        return repr(error)
    return "" if context.params["as_json"] and not context.args else f"left over: {context.args}"


def test_benches_are_commands():
    assert len(benches()) > 10
    assert [(study, words, problem) for study, words in sorted(benches()) if (problem := problem_of(words))] == []


def test_benches_have_targets():
    names = {study for study, _ in benches()}
    assert {"kernels", "products", "exchange", "gpu"} <= names
    for name in names:
        assert targets.read(targets.default_path(shipped(name)))


# -- aggregation -------------------------------------------------------------------------------------------------------


def timings(**milliseconds: float) -> dict:
    return {name.replace("_", "."): {"seconds": value / 1000} for name, value in milliseconds.items()}


def of_aggregation(kernel: dict, user: dict | None = None, **facts: object) -> dict[str, list[str]]:
    """The verdicts about one graph with these measurements."""
    both = {"kernel": kernel} | ({"user": user} if user else {})
    modes = {mode: {"forward": found} for mode, found in both.items()}
    graph = {"name": "g", "width": 8, "beyond_caches": True} | modes | facts
    return answers("kernels", {"lines": aggregate.lines_of(graph)})


def test_targets_are_about_every_way_of_a_library():
    kernel = timings(ours=10, ours_jit=15, ours_int8=5, dgl=25, torch_mm=90, torch_mm_kept=20, ceiling_gather=9)
    kernel |= {"ours@1": {"seconds": 0.019}, "ceiling.gather@1": {"seconds": 0.018}}
    kernel |= {"pyg.layer": {"missing": "no module"}}
    assert of_aggregation(kernel) == {
        "DGL's libxsmm kernel relative to hpcgnn": ["yes"],
        "torch.sparse.mm relative to hpcgnn": ["yes", "no"],
        "gathering the same rows relative to hpcgnn": ["yes"],
        "numba kernels relative to native kernels": ["yes"],
        "thread scaling relative to that of gathering rows": ["yes"],
        "float32 relative to features stored in 8 bits, beyond the caches": ["yes"],
    }, "PyG's is not measured"


@AT_THE_BOUND
def test_each_target_of_aggregation_has_its_bound(scale, reached):
    """Rivals, ceilings and float32 are exactly as slow as they must be, and then a bit faster."""
    ours = {"ours": {"seconds": 1.0}}
    kernel = {"dgl": 2.0, "torch.mm": 3.0, "pyg.layer": 8.0, "pyg.index_add": 8.0, "ceiling.gather": 0.85}
    rivals = {name: {"seconds": factor * scale} for name, factor in kernel.items()}
    others = {"ours.jit": {"seconds": 2.0 / scale}, "ours.int8": {"seconds": 1 / 1.8 / scale}}
    others |= {"ours@1": {"seconds": 1.9 * scale}, "ceiling.gather@1": {"seconds": 1.9 * 0.85 * scale / 0.95}}
    user = {"dgl": 3.0, "torch.mm": 4.0, "pyg.layer": 25.0, "pyg.index_add": 25.0}
    found = of_aggregation(ours | rivals | others, ours | {name: {"seconds": f * scale} for name, f in user.items()})
    assert len(found) == 10
    assert {each for every in found.values() for each in every} == {reached}


def test_no_target_is_about_8_bits_where_caches_hold_the_rows():
    kernel = timings(ours=1, ours_int8=1)
    assert list(of_aggregation(kernel)) == ["float32 relative to features stored in 8 bits, beyond the caches"]
    assert of_aggregation(kernel, beyond_caches=False) == {}


@AT_THE_BOUND
def test_each_target_of_kernels_on_a_gpu_has_its_bound(scale, reached):
    """As above, for a GPU."""
    rivals = {"torch.mm": 1.5, "pyg.layer": 2.0, "pyg.index_add": 2.0, "pyg.scatter": 2.0, "ceiling.gather": 0.8}
    kernel = {"ours": {"seconds": 1.0}} | {name: {"seconds": least * scale} for name, least in rivals.items()}
    told = aggregate.lines_of({"name": "g", "width": 8, "beyond_caches": True, "kernel": {"forward": kernel}})
    for bits in (1, 2, 4, 8, 16):
        shares = {"encode": 0.7 * scale, "decode": 0.7 * scale, "aggregate": 0.1}
        told += [line({"share_of_copy": share}, step=f"{what} {bits}") for what, share in shares.items()]
    for direction, least in (("y", 2.2), ("dx", 2.2), ("dW", 2.2), ("layer", 2.2), ("dot", 1.6), ("product", 0.1)):
        told.append(line({"seconds": least * scale}, direction=direction, contender="ours"))
        told.append(line({"seconds": 1.0}, direction=direction, contender="ours.int8"))
    found = answers("gpu", {"lines": told})
    assert [len(each) for each in found.values()] == [1, 3, 1, 10, 4, 1]
    assert {each for every in found.values() for each in every} == {reached}


@pytest.mark.parametrize(("share", "reached"), [(0.6, "yes"), (0.59, "no")])
def test_what_is_required_of_codecs(share, reached):
    shares = {"encode 2": share, "decode 2": share, "encode 8": 0.1, "aggregate 2": 0.1}
    told = [line({"share_of_copy": value}, step=step) for step, value in shares.items()]
    assert answers("kernels", {"lines": told}) == {"bandwidth of 2-bit codecs relative to a copy": [reached] * 2}


# -- products ----------------------------------------------------------------------------------------------------------


def of_products(seconds: dict[str, float], share: float | None, rows: int = 32768, **cpu: bool) -> dict[str, list[str]]:
    """The verdicts about products with these times."""
    lines = {name: {"seconds": each, "of_ceiling": share} for name, each in seconds.items()}
    shape = {"rows": rows, "depth": 256, "width": 256, "products": dict.fromkeys(PRODUCTS, lines)}
    found = {"dot_products": True, "training_takes_int8": True} | cpu
    return answers("products", {"lines": products.lines_of_shape(shape, found)})


LARGE = "large products in float32 relative to 8-bit integers, on CPUs with dot-product instructions"
PEAK = "large products of 8-bit integers relative to the peak, on CPUs with dot-product instructions"
WITHOUT = "on CPUs without them: a layer in float32 relative to --compute int8"


@pytest.mark.parametrize(
    ("times", "share", "reached"),
    [(1.8, 0.85, ["yes"] * 5), (1.79, 0.85, ["no"] * 4 + ["yes"]), (1.8, 0.84, ["yes"] * 4 + ["no"])],
)
def test_what_is_required_of_products(times, share, reached):
    found = of_products({"ours": times, "ours.int8": 1.0}, share)
    assert (found[LARGE], found[PEAK], len(found)) == (reached[:4], reached[4:], 2)


def test_what_is_not_required_of_products():
    assert of_products({"ours": 1.0, "ours.int8": 1.0}, 0.1, rows=32767) == {}
    assert PEAK not in of_products({"ours": 2.0, "ours.int8": 1.0}, None), "it was not measured"


def test_integers_are_not_slower_where_training_takes_them():
    for times, reached in ((1.0, "yes"), (0.99, "no")):
        found = of_products({"ours": times, "ours.int8": 1.0}, 0.1, dot_products=False)
        assert found == {WITHOUT: [reached]}
    for others in ({"training_takes_int8": False}, {"rows": 8}):
        found = of_products({"ours": 0.5, "ours.int8": 1.0}, 0.1, dot_products=False, **others)
        assert found == {WITHOUT: ["yes"]}, "training takes float32 there, as it is then"


@pytest.mark.parametrize(
    ("times", "has_dot_products", "reached"),
    [(1.5, True, ["yes", "yes"]), (1.49, True, ["no", "yes"]), (1.49, False, ["yes"]), (0.99, False, ["no"])],
)
def test_what_is_required_at_edges_and_of_aggregation(times, has_dot_products, reached):
    seconds = {"ours": {"seconds": times}, "ours.int8": {"seconds": 1.0}, "ours.int8.counted": {"seconds": 1.0}}
    about = {"name": "g", "width": 8, "heads": 2, "beyond_caches": True}
    at_edges = about | {"ops": {"dot": seconds, "add": seconds}}
    found = answers("kernels", {"lines": products.lines_of_graph(at_edges, {"dot_products": has_dot_products})})
    assert [*found.values()] == [[each] for each in reached]
    assert all(target.startswith("products at edges") for target in found)
    assert (
        answers(
            "kernels",
            {"lines": products.lines_of_graph(at_edges | {"beyond_caches": False}, {"dot_products": has_dot_products})},
        )
        == {}
    )

    graph = about | {"kernel": {"forward": seconds, "backward": seconds}, "dot_products": has_dot_products}
    found = answers("kernels", {"lines": aggregate.lines_of(graph)})
    del found["float32 relative to features stored in 8 bits, beyond the caches"]
    assert [*found.values()] == [[each] * 2 for each in reached]
    del seconds["ours.int8.counted"]
    assert len(answers("kernels", {"lines": aggregate.lines_of(graph)})) == 1, "it is for those who ask for it"


# -- exchanges and epochs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "cost", "reached"), [(0.8, 0.01, "yes"), (0.79, 0.011, "no")])
def test_what_is_required_of_exchanges_and_of_the_breakdown(share, cost, reached):
    told = [line({"seconds": 1.0, "overhead_share": cost}, part="with the breakdown")]
    for direction in ("forward", "backward"):
        told.append(line({"hidden_share": share}, direction=direction, step="both"))
        told.append(line({"seconds": 1.0}, direction=direction, step="exchange"))
    assert answers("exchange", {"lines": told}) == {
        "share of the hideable time that is hidden": [reached] * 2,
        "overhead of the time breakdown": [reached],
    }


@AT_THE_BOUND
def test_each_target_of_overhead_has_its_bound(scale, reached):
    most = {"1 rank, 32 bits": 1.0, "1 rank, 2 bits": 1.5, "2 ranks, 32 bits": 2.0, "2 ranks, 2 bits": 2.0}
    told = [line({"seconds": times / scale}, contender=f"hpcgnn, {name}") for name, times in most.items()]
    found = answers("overhead", {"lines": [line({"seconds": 1.0}, contender="PyG"), *told]})
    assert [*found.values()] == [[reached], [reached], [reached] * 2]


@pytest.mark.parametrize(("auto", "reached"), [(1.05, "yes"), (1.06, "no")])
def test_what_is_required_of_auto(auto, reached):
    runs = shipped("compute").runs
    told = [{"epoch_seconds_median": auto if run.configuration["compute"] == "auto" else 1.0} for run in runs]
    found = answers("compute", *told)
    assert found == {"auto relative to float32": [reached] * 12, "auto relative to bfloat16": [reached] * 6}


@AT_THE_BOUND
def test_each_target_of_epochs_on_a_gpu_has_its_bound(scale, reached):
    least = {"gcn": 2.0, "sage": 2.0, "gat": 1.5}
    told = []
    for run in shipped("gpu-training").runs:
        framework, model = run.configuration["framework"], run.configuration["model"]
        seconds = {("pyg", "float32"): least[model] * scale, ("hpcgnn", "float32"): 1.0}
        seconds["hpcgnn", "int8"] = 1 / (1.5 if model == "gat" else 1.2) / scale
        of_epoch = seconds[framework, run.configuration["compute"]]
        memory = 1.0 if framework == "pyg" else 0.5 / scale
        told.append({"epoch_seconds_median": of_epoch, "peak_device_memory_bytes_per_rank": memory})
    found = answers("gpu-training", *told)
    assert {target: len(each) for target, each in found.items()} == {
        "PyG's epoch relative to hpcgnn's": 3,
        "peak memory relative to PyG's": 1,
        "an epoch in float32 relative to one with --compute int8": 2,
    }
    assert {each for every in found.values() for each in every} == {reached}
