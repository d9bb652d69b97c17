"""The shipped benches are commands, and what they and the other shipped studies measure is what their targets are about."""

from __future__ import annotations

import functools
import itertools
import shlex
from typing import Any

import click
import pytest

from hpcgnn.lab.bench import aggregate, products
from hpcgnn.lab.bench.contenders import DEVICE, HOST
from hpcgnn.lab.bench.gemm_contenders import by_name as of_products
from hpcgnn.lab.bench.names import PRODUCTS
from hpcgnn.lab.bench.sddmm_contenders import by_name as at_edges
from hpcgnn.lab.cli.bench import bench
from hpcgnn.lab.study import axes, catalogue, measures, records, specification, targets
from hpcgnn.lab.study.groups import Groups
from hpcgnn.lab.study.records import Record

WITH_TARGETS = sorted(path.name.removesuffix(".targets.toml") for path in catalogue.FOLDER.glob("*.targets.toml"))
OF_KERNELS = ("kernels", "products", "gpu")
# Not numbers of a run: they follow from its epochs, or from several runs.
DERIVED = (measures.SECONDS_TO_TARGET, measures.SECONDS_TO_BEST, *measures.SCALING)


@functools.cache
def shipped(name: str) -> specification.Specification:
    return specification.read(catalogue.find(name))


def problem_of(words: str) -> str:
    """The problem of a bench's command line, or nothing."""
    name, *arguments = shlex.split(words)
    try:
        context = bench.commands[name].make_context(name, [*arguments, "--json"])
    except (click.ClickException, KeyError) as error:
        return repr(error)
    return "" if context.params["as_json"] and not context.args else f"left over: {context.args}"


def test_benches_are_commands_and_have_targets() -> None:
    studies = [name for name, path in catalogue.shipped().items() if catalogue.outline(path).kind == axes.BENCH]
    assert {"exchange", "overhead", *OF_KERNELS} <= {*studies} <= {*WITH_TARGETS}
    commands = {(name, run.given["bench"]) for name in studies for run in shipped(name).runs}
    assert len(commands) > 10
    assert [(study, words, problem) for study, words in sorted(commands) if (problem := problem_of(words))] == []


def line(figures: dict[str, float], **axes: str) -> dict[str, Any]:
    return {"axes": axes, "figures": figures}


def of_shape(seconds: dict[str, Any], rows: int = 32768, **cpu: bool) -> list[dict[str, Any]]:
    shape = {"rows": rows, "depth": 256, "width": 256, "products": dict.fromkeys(PRODUCTS, seconds)}
    return products.lines_of_shape(shape, {"dot_products": True, "training_takes_int8": True} | cpu)


def lines_of_kernels(target: targets.Target, value: float) -> list[dict[str, Any]]:
    """The lines of all benches of kernels in which the contenders of the target have this value of its figure, and others 1."""
    chosen, has_dots = target.where.get("contender"), target.where.get("integers") != "multiply-adds"
    about = {"name": "g", "width": 8, "heads": 2, "beyond_caches": True, "dot_products": has_dots}

    def timed(names: Any) -> dict[str, dict[str, float]]:
        found = {name: value if axes.matches({"contender": name}, {"contender": chosen}) else 1.0 for name in names}
        is_of_time = target.figure == "seconds"
        return {name: {"seconds": each if is_of_time else 1.0, "of_ceiling": each} for name, each in found.items()}

    kernel = timed({**HOST, **DEVICE})
    if target.figure == "thread_scaling":
        kernel |= {f"{name}@1": {"seconds": timing["of_ceiling"]} for name, timing in kernel.items()}
    graph = about | {mode: dict.fromkeys(("forward", "backward"), kernel) for mode in ("kernel", "user")}
    dots = about | {"ops": {"dot": timed(at_edges("cpu"))}}
    codecs = [
        line({"share_of_copy": value}, step=f"{what} {bits}")
        for what in ("encode", "decode")
        for bits in (1, 2, 4, 8, 16)
    ]
    of_products_too = of_shape(timed(of_products("cpu")), dot_products=has_dots)
    return [*aggregate.lines_of(graph), *products.lines_of_graph(dots, about), *of_products_too, *codecs]


def nested(name: str, value: float) -> dict[str, Any]:
    """The figures of a training of which one has this value."""
    return functools.reduce(lambda inner, part: {part: inner}, reversed(name.split(".")), value)  # type: ignore[return-value]


def measured(name: str, target: targets.Target, value: float) -> Groups:
    """A study in which what the target is about has this value of its figure, and all else has 1."""
    figure, study = measures.split(target.figure)[0], shipped(name)
    in_lines = [axis for axis in (*target.where, *target.baseline) if axis in measures.LINE_AXES]
    found = []
    for run in study.runs:
        is_about = axes.matches(
            run.configuration, {a: v for a, v in target.where.items() if a not in measures.LINE_AXES}
        )
        if name in OF_KERNELS:
            summary = {"lines": lines_of_kernels(target, value)}
        elif in_lines:
            values = {axis: value if isinstance(value, list) else [value] for axis, value in target.where.items()}
            chosen = [axis for axis in target.where if axis in in_lines]
            places = [dict(zip(chosen, each, strict=True)) for each in itertools.product(*map(values.get, chosen))]
            lines = [line({figure: value if is_about else 1.0}, **place) for place in places]
            lines += [line({figure: 1.0}, **place | target.baseline) for place in places if target.baseline]
            summary = {"lines": lines}
        else:
            is_about = is_about and not (target.baseline and axes.matches(run.configuration, target.baseline))
            summary = nested(figure, value if is_about else 1.0)
        found.append(Record(key=run.key, configuration=run.configuration, status=records.FINISHED, summary=summary))
        if name in OF_KERNELS:
            break
    return Groups(study, found)


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_each_target_has_a_bound_for_what_its_study_measures(name: str) -> None:
    for target in targets.read(targets.default_path(shipped(name))):
        if target.figure in DERIVED:
            study = measured(name, target, 1.0)
            assert study.matching(target.where), target
            assert not target.baseline or study.matching(target.baseline), target
            continue
        bound = target.at_least if target.at_most is None else target.at_most
        is_difference = target.compared.endswith(measures.DIFFERENCE)
        for beyond, reached in ((1e-4, target.at_most is None), (-1e-4, target.at_least is None)):
            value = 1 + bound + beyond if is_difference else bound * (1 + beyond) + beyond * (bound == 0)
            found = targets.verdicts(measured(name, target, value), [target])
            wanted = targets.YES if reached else targets.NO
            assert {verdict.reached for verdict in found} == {wanted}, (target, value, found)


def test_integers_are_not_slower_where_training_takes_them() -> None:
    """Layers are as fast as in float32 where training takes that."""
    study = shipped("products")
    (target,) = (
        each for each in targets.read(targets.default_path(study)) if each.where["integers"] == "multiply-adds"
    )
    seconds = {"ours": {"seconds": 0.99}, "ours.int8": {"seconds": 1.0}}
    for changes, reached in (({}, "no"), ({"training_takes_int8": False}, "yes"), ({"rows": 8}, "yes")):
        lines = of_shape(seconds, dot_products=False, **changes)
        record = Record(key=study.runs[0].key, configuration={}, status=records.FINISHED, summary={"lines": lines})
        (verdict,) = targets.verdicts(Groups(study, [record]), [target])
        assert verdict.reached == reached, changes
