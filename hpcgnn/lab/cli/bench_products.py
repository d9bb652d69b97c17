"""``hpcgnn bench gemm`` and ``hpcgnn bench sddmm``: dense products and products at edges, in float32 and in smaller types."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcgnn.cli import console
from hpcgnn.cli.ranges import COUNT
from hpcgnn.lab.bench.names import EDGE_DTYPES, EDGE_OPS, PRODUCT_DTYPES
from hpcgnn.lab.cli import bench_shared as shared

if TYPE_CHECKING:
    from hpcgnn.lab.bench.problem import Contender

_SDDMM_GRAPHS = (("rmat:scale=17,degree=28", shared.WIDTH),)


class _Shape(click.ParamType):
    """The option type of a product's shape: rows, depth and width."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int, int]:
        """The three numbers of a text such as ``32768x256x256``."""
        words = str(value).split("x")
        if len(words) != 3 or not all(word.isdecimal() and int(word) > 0 for word in words):
            self.fail(f"{value!r} is not a shape: write ROWSxDEPTHxWIDTH, such as 32768x256x256", param, ctx)
        rows, depth, width = map(int, words)
        return rows, depth, width


@click.command(
    epilog="\b\nExample\n  hpcgnn bench gemm --shape 32768x256x256 --shape 131072x256x256 --dtype bf16 --dtype int8"
)
@click.option(
    "--shape", "shapes", multiple=True, type=_Shape(), metavar="ROWSxDEPTHxWIDTH", default=["32768x256x256"],
    show_default=True, help="Shape of the product of x (ROWS, DEPTH) and a weight (DEPTH, WIDTH); may be given several times.",
)  # fmt: skip
@shared.dtypes(PRODUCT_DTYPES, "all of them")
@shared.threads
@shared.rounds
@shared.device
@shared.as_json
def gemm(
    shapes: tuple[tuple[int, int, int], ...],
    dtypes: tuple[str, ...],
    threads: int | None,
    rounds: int,
    device: str,
    as_json: bool,
) -> None:
    """Measure the products of a dense layer.

    The contenders are hpcgnn, torch, and libraries that quantize. y is the product of x and the weight, dx and dW are the
    gradients, and layer is all three. Times include conversions, except those that y keeps for dW. product is y from operands
    that were converted before. Each result is compared with hpcgnn's in float32, and each time with the CPU's peak of
    multiply-adds.
    """
    from hpcgnn.devices import CPU
    from hpcgnn.lab.bench import gemm as products
    from hpcgnn.lab.bench import gemm_contenders

    chosen = shared.chosen_device(device)
    settings = products.Settings(
        shapes, threads or shared.cores(), rounds, shared.beside(dtypes or PRODUCT_DTYPES), chosen
    )
    found = products.run(settings, functools.partial(console.progress, quiet=as_json))
    if as_json:
        print(json.dumps(found))
        return
    contenders = gemm_contenders.by_name(found["device"])
    where = f"{found['threads']} threads" if chosen is CPU else chosen.name
    for shape in found["shapes"]:
        for direction, lines in shape["products"].items():
            _show(f"{shape['name']}, {direction}, {where}", direction, lines, contenders)


@click.command(
    epilog="\b\nExample\n  hpcgnn bench sddmm --graph rmat:scale=17,degree=28 --width 256 --heads 8 --dtype int8"
)
@shared.graphs("R-MAT of scale 17")
@shared.widths(str(shared.WIDTH))
@click.option(
    "--heads", type=COUNT, default=8, show_default=True, help="Number of heads: groups of columns with a product each."
)
@click.option("--op", "ops", type=click.Choice(EDGE_OPS), multiple=True, default=["dot"], show_default=True,
              help="Operation at each edge. dot: scalar products of both rows, by head; add: their sum, which needs memory for a "
                   "row for each edge. May be given several times.")  # fmt: skip
@shared.dtypes(EDGE_DTYPES, "all of them")
@shared.folder
@shared.threads
@shared.rounds
@shared.device
@shared.as_json
def sddmm(
    sources: tuple[str, ...],
    widths: tuple[int, ...],
    heads: int,
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    folder: Path | None,
    threads: int | None,
    rounds: int,
    device: str,
    as_json: bool,
) -> None:
    """Measure products at the edges of a graph (SDDMM), as in attention.

    The contenders are hpcgnn, DGL and torch. The ceiling is the time of gathering the rows. Times include the quantization of
    both operands, except in the line that says otherwise. Each result is compared with hpcgnn's in float32.
    """
    from hpcgnn.devices import CPU
    from hpcgnn.lab.bench import sddmm as at_edges
    from hpcgnn.lab.bench import sddmm_contenders

    graphs, chosen = shared.paired(sources, widths, _SDDMM_GRAPHS), shared.chosen_device(device)
    beside = shared.beside(dtypes or EDGE_DTYPES)
    settings = at_edges.Settings(
        graphs, heads, threads or shared.cores(), rounds, tuple(dict.fromkeys(ops)), beside, chosen
    )
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = at_edges.run(settings, place, functools.partial(console.progress, quiet=as_json))
    if as_json:
        print(json.dumps(found))
        return
    contenders = sddmm_contenders.by_name(found["device"])
    where = f"{found['threads']} threads" if chosen is CPU else chosen.name
    for graph in found["graphs"]:
        for op, lines in graph["ops"].items():
            about = f"{graph['heads']} heads" if op == "dot" else "sums"
            _show(f"{graph['name']}, width {graph['width']}, {about}, {where}", op, lines, contenders)


def _show(title: str, direction: str, lines: dict[str, Any], contenders: dict[str, Contender]) -> None:
    shown = shared.table(title, "", "ms", "spread", "10⁹ op/s", "x ours f32", "of ceiling")
    reasons = []
    for name, line in lines.items():
        label = contenders[name].label
        if "seconds" not in line:
            reasons += [f"{label}: {line['missing']}"] * (direction in contenders[name].directions)
            continue
        ops, times, share = line["giga_ops"], line["times_ours"], line["of_ceiling"]
        missing = "not measured" if contenders[name].ceiling else "-"
        shown.add_row(
            label, f"{line['seconds'] * 1e3:.2f}", f"{line['spread']:.0%}", "-" if ops is None else f"{ops:.1f}",
            "-" if times is None else f"{times:.2f}", missing if share is None else f"{share:.0%}",
        )  # fmt: skip
    console.stdout().print(shown)
    for reason in reasons:
        console.stdout().print(f"  not measured: {reason}", style="dim", highlight=False)
