"""``hpcgnn bench``: measurements of kernels, of exchanges and of whole epochs, compared with other libraries and with the limits
of the machine. Commands import torch and the measured kernels only after their arguments have been checked."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import disable_malloc_trimming
from hpcgnn.base.typed import MESSAGE_BITS
from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON, COUNT, ROWS, NumberRange
from hpcgnn.cli.train import PROBLEM, RunCommand, run_config
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.exchange.message_config import COLLECTIVES, GPU_MPI
from hpcgnn.lab.bench import names
from hpcgnn.lab.bench.names import HOST_NAME, Floor, How, Limits, PeerSettings
from hpcgnn.lab.study.tables import Table
from hpcgnn.plan import STRATEGIES
from hpcgnn.train.run_config import CONFIG, NODE, check_file, read_file, settings_by_name

if TYPE_CHECKING:
    from hpcgnn.graph.local_graph import LocalGraph
    from hpcgnn.lab.bench.problem import Contender
    from hpcgnn.world import World

_WIDTH = 256
_GRAPHS = (("rmat:scale=17,degree=28", _WIDTH), ("rmat:scale=19,degree=25", 128))
_MESSAGE_BITS = click.Choice([str(bits) for bits in reversed(MESSAGE_BITS)])
_USUAL = PeerSettings()


# -- options and output that commands share ----------------------------------------------------------------------------


def _example(line: str, start: str = "") -> str:
    return f"\b\nExample\n  {start}hpcgnn bench {line}"


def _option(name: str, text: str, default: Any = None, kind: Any = COUNT, **more: Any) -> Any:
    """An option whose help shows its default, if it has one."""
    return click.option(name, type=kind, default=default, show_default=default is not None, help=text, **more)


def _choice(name: str, values: Iterable[str], text: str, default: Any = None, **more: Any) -> Any:
    return _option(name, text, default, click.Choice(list(values)), **more)


_graph_file = click.argument("graph", metavar="graph.h5", type=click.Path(path_type=Path))
_parts_file = click.argument("parts", type=click.Path(path_type=Path))
_folder = _option("--folder", "Folder that keeps the graphs for another measurement.  [default: a temporary folder]",
                  kind=click.Path(path_type=Path))  # fmt: skip
_threads = _option("--threads", "Number of threads of each contender.  [default: the number of cores that this process may use]",
                   kind=click.IntRange(1, os.cpu_count()))  # fmt: skip
_rounds = _option(
    "--rounds", "Number of rounds, in each of which every contender is measured once; medians are shown.", 7
)
_device = _option("--device", "Device to measure: cpu, cuda, or cuda:N (AMD GPUs are called cuda, too).", HOST_NAME, str,
                  metavar="DEVICE")  # fmt: skip


def _graphs(default: str) -> Any:
    text = f"Graph to measure, a SOURCE of `hpcgnn convert`; may be given several times.  [default: {default}]"
    return click.option("--graph", "sources", multiple=True, metavar="SOURCE", help=text)


def _widths(default: str) -> Any:
    text = f"Number of feature columns: once for all graphs, or once for each graph.  [default: {default}]"
    return click.option("--width", "widths", multiple=True, type=COUNT, help=text)


def _dtypes(types: tuple[str, ...], default: str, usual: tuple[str, ...]) -> Any:
    text = "Type to measure in addition to float32, with the conversions included in its time; may be given several times.  "
    kind = click.Choice(types)
    return click.option(
        "--dtype", "dtypes", multiple=True, type=kind, default=usual, help=f"{text}[default: {default}]"
    )


def _paired(
    sources: tuple[str, ...], widths: tuple[int, ...], usual: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    """Each source with its width."""
    if not sources:
        sources = tuple(source for source, _ in usual)
        widths = widths or tuple(width for _, width in usual)
    widths = widths or (_WIDTH,)
    if len(widths) not in (1, len(sources)):
        raise click.UsageError(
            f"--width was given {len(widths)} times for {len(sources)} graphs: give it once, or once for each graph"
        )
    return tuple(zip(sources, widths * len(sources) if len(widths) == 1 else widths, strict=True))


def _of_contenders(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of :class:`How` but `--dtype` to a command, which gets them as ``how``."""

    @functools.wraps(command)
    def given(
        threads: int | None, rounds: int, device: str, as_json: bool, dtypes: tuple[str, ...] = (), **others: Any
    ) -> None:
        types = tuple(name for name in dict.fromkeys(dtypes) if name != "float32")
        command(how=How(threads or _cores(), rounds, device, types, as_json), **others)

    return _threads(_rounds(_device(AS_JSON(given))))


def _where(how: How) -> str:
    return f"{how.threads} threads" if how.place == HOST_NAME else how.device.name


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _tell(found: dict[str, Any], as_json: bool, tables: Iterable[Table | Text], world: World | None = None) -> None:
    """Print a result as JSON, or as tables and lines; with ``world``, end MPI, and print on rank 0."""
    if world is not None:
        world.close()
        if world.rank:
            return
    if as_json:
        print(json.dumps(found))
        return
    for each in tables:
        console.stdout().print(each.rich() if isinstance(each, Table) else each)


@contextlib.contextmanager
def _kept_in(folder: Path | None) -> Iterator[Path]:
    """The folder for graphs, by default a temporary one."""
    with contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory() as place:
        yield Path(place)


def _table(title: str, header: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    return Table(title, tuple(header), tuple(rows))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _joined(timeout_seconds: float | None = None) -> World:
    """The world of all ranks, in processes that are set up as for training. Collective."""
    from hpcgnn.world import MpiWorld, check_alike
    from hpcgnn.world.devices import use_threads

    world = check_alike(MpiWorld() if timeout_seconds is None else MpiWorld(timeout_seconds=timeout_seconds))
    console.set_up_logging("warning", world.rank)
    use_threads(world)
    return world


def _loaded(parts: Path) -> LocalGraph:
    """This rank's part. Collective."""
    from hpcgnn.graph.local_graph import load

    graph = load(parts, _joined())
    disable_malloc_trimming()
    return graph


# -- kernels -----------------------------------------------------------------------------------------------------------


@click.group(epilog=_example("aggregate --graph rmat:scale=15,degree=16 --width 64 --rounds 3"))
def bench() -> None:
    """Measure kernels, and compare them with other libraries and with the limits (ceilings) of the machine."""


@bench.command(epilog=_example("aggregate --graph rmat:scale=17,degree=28 --width 256 --plot roofline.svg"))
@_graphs("R-MAT of scale 17 and of scale 19")
@_widths(f"{_WIDTH}; 256 and 128")
@_dtypes(("float32", "int8"), "nothing", ())
@_choice("--mode", [*names.MODES, "both"],
         "Setting of the measurement. kernel: one process with warm memory for all contenders; user: a process with default "
         "settings for each contender.  [default: both; on a GPU, kernel]")  # fmt: skip
@_option("--parts", "Number of METIS parts into which each graph is divided, to measure the largest part as well; 0 measures "
         "whole graphs only.", 2, click.IntRange(0))  # fmt: skip
@click.option(
    "--ablation", is_flag=True, help="Also measure the first graph with each optimisation switched off in turn."
)
@_option("--plot", "File for a roofline plot (.svg, .png or .pdf).", kind=click.Path(path_type=Path))
@_folder
@_of_contenders
def aggregate(
    sources: tuple[str, ...], widths: tuple[int, ...], mode: str | None, parts: int, ablation: bool, plot: Path | None,
    folder: Path | None, how: How,
) -> None:  # fmt: skip
    """Measure aggregation, forward and backward.

    The contenders are hpcgnn, and DGL, torch, MKL and PyG if they are installed; the ceilings are the limits of the machine. The
    contenders alternate, so other load on the machine affects all of them. Each result is compared with hpcgnn's.
    """
    from hpcgnn.lab.bench import aggregate as measuring

    graphs, is_on_host = _paired(sources, widths, _GRAPHS), how.place == HOST_NAME
    if not is_on_host and (mode not in (None, "kernel") or ablation):
        raise click.UsageError("--mode user and --ablation cannot be used with --device cuda: leave them out")
    mode = mode or ("both" if is_on_host else "kernel")
    modes = names.MODES if mode == "both" else (mode,)
    if plot and "kernel" not in modes:
        raise click.UsageError("--plot needs the measurements of --mode kernel: give --mode kernel or both")
    with _kept_in(folder) as place:
        found = measuring.run(graphs, modes, parts, ablation, how, place)
    if plot:
        measuring.roofline(found, plot)
    _tell(found, how.quiet, _aggregation_tables(found))


def _aggregation_tables(found: dict[str, Any]) -> Iterator[Table]:
    from hpcgnn.lab.bench.aggregate import timing_rows

    header = ("", *(cell for direction in names.DIRECTIONS for cell in (direction, "spread", "times", "of gather")))
    for graph in found["graphs"]:
        for mode in filter(graph.__contains__, names.MODES):
            title = f"{graph['name']}, width {graph['width']}, {mode}: milliseconds, times ours, times the row gather"
            yield _table(title, header, timing_rows(graph[mode], graph["device"]))
    if names.ABLATION in found:
        title = f"{found[names.ABLATION]['graph']}, each optimisation switched off"
        yield _table(title, header, timing_rows(found[names.ABLATION]))


@bench.command(epilog=_example("quantize --rows 262144 --width 256 --bits 2 --bits 8"))
@_option("--rows", "Number of rows of the features.", 1 << 18, ROWS)
@_option("--width", "Number of columns of the features.", _WIDTH)
@_choice(
    "--bits", ["1", "2", "4", "8", "16"], "Bit-width of each value; may be given several times.", ["2"], multiple=True
)
@_of_contenders
def quantize(rows: int, width: int, bits: tuple[str, ...], how: How) -> None:
    """Measure quantization and dequantization.

    Their rates are compared with the bandwidth of a copy on the same device.
    """
    from hpcgnn.lab.bench import quantize as quantization

    numbers, device = tuple(sorted({int(number) for number in bits})), how.device
    with how.progress("rounds", how.rounds) as advance:
        found = quantization.run(rows, width, numbers, how.threads, how.rounds, advance, device)
    cells = (
        (name, _ms(line["seconds"]), f"{line['gigabytes_per_second']:.1f}", f"{line['of_copy']:.0%}")
        for name, line in found["kernels"].items()
    )
    title = f"{rows:,} rows of {width} float32, {_where(how)}"
    _tell(found, how.quiet, [_table(title, ("kernel", "ms", "GB/s", "of a copy"), cells)])


class _Shape(click.ParamType):
    """The option type of a product's shape: rows, depth and width."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The three numbers of a text such as ``32768x256x256``."""
        words = str(value).split("x")
        if len(words) != 3 or not all(word.isdecimal() and int(word) > 0 for word in words):
            self.fail(f"{value!r} is not a shape: write ROWSxDEPTHxWIDTH, such as 32768x256x256", param, ctx)
        return tuple(map(int, words))


@bench.command(epilog=_example("gemm --shape 32768x256x256 --shape 131072x256x256 --dtype bf16 --dtype int8"))
@click.option(
    "--shape", "shapes", multiple=True, type=_Shape(), metavar="ROWSxDEPTHxWIDTH", default=["32768x256x256"],
    show_default=True, help="Shape of the product of x (ROWS, DEPTH) and a weight (DEPTH, WIDTH); may be given several times.",
)  # fmt: skip
@_dtypes(names.PRODUCT_DTYPES, "all of them", names.PRODUCT_DTYPES)
@_of_contenders
def gemm(shapes: tuple[tuple[int, int, int], ...], how: How) -> None:
    """Measure the products of a dense layer.

    The contenders are hpcgnn, torch, and libraries that quantize. y is the product of x and the weight, dx and dW are the
    gradients, and layer is all three. Times include conversions, except those that y keeps for dW. product is y from operands
    that were converted before. Each result is compared with hpcgnn's in float32, and each time with the CPU's peak of
    multiply-adds.
    """
    from hpcgnn.lab.bench import gemm_contenders, products

    found = products.gemm(shapes, how)
    contenders, about = gemm_contenders.by_name(how.place), _where(how)
    tables = (
        _products(f"{shape['name']}, {direction}, {about}", direction, lines, contenders)
        for shape in found["shapes"]
        for direction, lines in shape["products"].items()
    )
    _tell(found, how.quiet, itertools.chain.from_iterable(tables))


@bench.command(epilog=_example("sddmm --graph rmat:scale=17,degree=28 --width 256 --heads 8 --dtype int8"))
@_graphs("R-MAT of scale 17")
@_widths(str(_WIDTH))
@_option("--heads", "Number of heads: groups of columns with a product each.", 8)
@click.option("--op", "ops", type=click.Choice(names.EDGE_OPS), multiple=True, default=["dot"], show_default=True,
              help="Operation at each edge. dot: scalar products of both rows, by head; add: their sum, which needs memory for a "
                   "row for each edge. May be given several times.")  # fmt: skip
@_dtypes(names.EDGE_DTYPES, "all of them", names.EDGE_DTYPES)
@_folder
@_of_contenders
def sddmm(
    sources: tuple[str, ...], widths: tuple[int, ...], heads: int, ops: tuple[str, ...], folder: Path | None, how: How
) -> None:
    """Measure products at the edges of a graph (SDDMM), as in attention.

    The contenders are hpcgnn, DGL and torch. The ceiling is the time of gathering the rows. Times include the quantization of
    both operands, except in the line that says otherwise. Each result is compared with hpcgnn's in float32.
    """
    from hpcgnn.lab.bench import products, sddmm_contenders

    graphs = _paired(sources, widths, _GRAPHS[:1])
    with _kept_in(folder) as place:
        found = products.sddmm(graphs, heads, tuple(dict.fromkeys(ops)), how, place)
    contenders, about = sddmm_contenders.by_name(how.place), {"dot": f"{heads} heads", "add": "sums"}
    tables = (
        _products(f"{graph['name']}, width {graph['width']}, {about[op]}, {_where(how)}", op, lines, contenders)
        for graph in found["graphs"]
        for op, lines in graph["ops"].items()
    )
    _tell(found, how.quiet, itertools.chain.from_iterable(tables))


def _products(
    title: str, direction: str, lines: dict[str, Any], contenders: dict[str, Contender]
) -> Iterator[Table | Text]:
    """The table of one problem and direction, and the reasons why contenders of that direction are missing."""
    rows, reasons = [], []
    for name, line in lines.items():
        label = contenders[name].label
        if "seconds" not in line:
            reasons += [f"{label}: {line['missing']}"] * (direction in contenders[name].directions)
            continue
        ops, times, share = line["giga_ops"], line["times_ours"], line["of_ceiling"]
        missing = "not measured" if contenders[name].ceiling else "-"
        rows.append((
            label, _ms(line["seconds"]), f"{line['spread']:.0%}", "-" if ops is None else f"{ops:.1f}",
            "-" if times is None else f"{times:.2f}", missing if share is None else f"{share:.0%}",
        ))  # fmt: skip
    yield _table(title, ("", "ms", "spread", "10⁹ op/s", "x ours f32", "of ceiling"), rows)
    for reason in reasons:
        yield Text(f"  not measured: {reason}", style="dim")


# -- exchanges and epochs ----------------------------------------------------------------------------------------------


@bench.command(epilog=_example("exchange parts.h5 --width 256 --bits 2", "mpirun -n 4 "))
@_parts_file
@_option("--width", "Number of columns of the rows.", _WIDTH)
@_option("--bits", "Bit-width of each value in messages.", "32", _MESSAGE_BITS)
@_choice(
    "--strategy", STRATEGIES, "Place where edges between parts are aggregated: see `hpcgnn train --help`.", "hybrid"
)
@_choice("--collective", COLLECTIVES, "MPI call for boundary messages: see `hpcgnn train --help`.", "auto")
@_option("--rounds", "Number of rounds of each direction; medians are shown.", 15)
@_option("--timeout", "Seconds that a rank waits for another rank before the job is aborted.", 1800.0,
         NumberRange(0, min_open=True))  # fmt: skip
@_device
@_option("--ranks-per-gpu", "Largest number of ranks of a node that share a GPU.", 1, click.IntRange(1))
@_choice("--gpu-mpi", GPU_MPI, "Pass GPU memory to MPI: see `hpcgnn train --help`.", "auto")
@AS_JSON
def exchange(parts: Path, timeout: float, device: str, ranks_per_gpu: int, as_json: bool, **settings: Any) -> None:
    """Measure the exchange of boundary rows and its overlap.

    The table shows the seconds of local aggregation, of the exchange, and of both together, and the share of the shorter one that
    overlap hides, forward and backward. Start the command under mpirun or srun, with one rank for each part of PARTS, on the
    hosts of the training.
    """
    from hpcgnn.graph.local_graph import load
    from hpcgnn.lab.bench import exchange as measuring
    from hpcgnn.world import raise_on_all_ranks
    from hpcgnn.world.devices import choose_device

    world = _joined(timeout)
    with raise_on_all_ranks(world, "measure an exchange"):
        if world.size == 1:
            raise HpcgnnError(
                f"a single rank sends no messages: start `mpirun -n P hpcgnn bench exchange {parts}` with P of at least 2"
            )
    graph = load(parts, world).to(choose_device(world, device, ranks_per_gpu))
    with console.progress("rounds", 2 * settings["rounds"], quiet=as_json or world.rank != 0) as advance:
        found = measuring.run(graph, advance, **settings | {"bits": int(settings["bits"])})
    _tell(found, as_json, _exchange_tables(found), world)


def _exchange_tables(found: dict[str, Any]) -> Iterator[Table]:
    about = f"{found['width']} columns, {found['bits']} bits, {found['collective']}"
    timed = {"aggregation": "aggregate", "exchange": "exchange", "wire": "wire", "both": "both", "in turn": "in_turn"}
    rows = []
    for name, line in found["directions"].items():
        milliseconds = (_ms(line[f"{what}_seconds"]) for what in timed.values())
        hidden = "-" if line["hidden_of_shorter"] is None else f"{line['hidden_of_shorter']:.0%}"
        rows.append((name, *milliseconds, hidden, f"{line['bytes']:,}", f"{line['largest_bytes_of_a_rank']:,}"))
    title = f"{found['ranks']} ranks, {_ways(found)}, {about}: milliseconds"
    yield _table(title, ("", *timed, "hidden", "bytes", "largest of a rank"), rows)


def _ways(found: dict[str, Any]) -> str:
    """The ways that messages take between ranks: "CPU", or the numbers of ranks such as "1 on a CPU, 1 on a GPU (direct)"."""
    words = {"host": "on a CPU", "staged": "on a GPU (staged)", "direct": "on a GPU (direct)"}
    by_way = {way: count for way, count in found["ranks_by_way"].items() if count}
    return "CPU" if [*by_way] == ["host"] else ", ".join(f"{count} {words[way]}" for way, count in by_way.items())


@bench.command(epilog=_example("plan parts.h5 --width 64"))
@_parts_file
@_choice("--strategy", STRATEGIES, "Strategy whose plan is measured.", "hybrid")
@_option("--width", "Number of columns of the rows.", 64)
@_option("--ranks", "Largest number of ranks to measure: half of them those with the most entries, the others drawn at random.",
         512, click.IntRange(2))  # fmt: skip
@_option("--threads", "Number of threads of a rank.", 1, click.IntRange(1, os.cpu_count()))
@_rounds
@AS_JSON
def plan(parts: Path, ranks: int, as_json: bool, **settings: Any) -> None:
    """Measure the balance of a plan: the products of each rank, one rank after another in this process.

    Nothing is sent. The table compares the rank that takes longest with the mean of all ranks, and the largest number of entries
    of a rank's matrices with its mean.
    """
    from hpcgnn.lab.bench import plan_work

    with console.progress("ranks", None, quiet=as_json) as advance:
        found = plan_work.run(parts, advance, most_ranks=ranks, **settings)
    rows = [
        (name, _ms(line["seconds"]), f"{line['seconds_imbalance']:.2f}") for name, line in found["directions"].items()
    ]
    title = f"{found['ranks']:,} ranks, {found['ranks_measured']:,} of them measured, {found['width']} columns"
    told = Text(f"  max/mean entries of L, S and R: {found['work_imbalance']:.2f}")
    _tell(found, as_json, [_table(title, ("", "mean, ms", "max/mean"), rows), told])


@bench.command(cls=RunCommand, sections={}, after=6,
               epilog=_example("ranks parts-64.h5 --hidden 256 --bits 2 --network xeon-hdr --against model.toml"))  # fmt: skip
@_parts_file
@_option("--ranks", "Largest number of ranks to measure: half of them those with the most entries, the others drawn at random.",
         64, click.IntRange(2))  # fmt: skip
@_option("--threads", "Number of threads of a rank.", 1, click.IntRange(1, os.cpu_count()))
@click.option("--network", default="xeon-hdr", show_default=True, metavar="NAME",
              help="Profile, or file NAME.toml, whose network connects the ranks.")  # fmt: skip
@click.option("--against", type=click.Path(path_type=Path), metavar="MODEL.toml",
              help="Cost model of this machine, whose predictions are compared with the measured seconds.")  # fmt: skip
@_rounds
@AS_JSON
@click.pass_context
def ranks(
    ctx: click.Context, parts: Path, ranks: int, threads: int, network: str, against: Path | None, rounds: int, as_json: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Measure the training of each rank of a plan, one rank after another in this process.

    The settings are those of `hpcgnn train`. The products, element-wise work and codecs of a rank are real, on this processor and
    without other ranks that compete for its cores and memory. Nothing is sent: the messages' seconds are those of the network
    model, with one rank on each node. The table compares the rank that takes longest with the mean of all ranks, for which
    those stand that were drawn.
    """
    from hpcgnn.lab.bench import plan_work
    from hpcgnn.lab.bench import ranks as measuring
    from hpcgnn.lab.cost_model import job_of_ranks, profiles
    from hpcgnn.lab.cost_model.constants import read_model
    from hpcgnn.nn.config import FLOAT32
    from hpcgnn.train.account import strategy_of

    config, profile = measuring.check(run_config(ctx, settings, set())), profiles.find(network)
    model = None if against is None else read_model(against)
    disable_malloc_trimming()
    with PartsFile(parts) as file:
        _, work = plan_work.stored_plan(file, strategy_of(config))
        predicted = job_of_ranks.predictor(model, profile, file, config, threads)
        predicted(compute=FLOAT32)  # refuses what the equations do not cover, before anything is measured
        with console.progress("ranks", None, quiet=as_json) as advance:
            found = measuring.run(parts, config, work, ranks, rounds, threads, advance)
        found |= {"network": network} | job_of_ranks.job_of(found, predicted, is_fitted=model is not None)
    for sentence in () if as_json else found["warnings"]:
        console.note(sentence)
    _tell(found, as_json, _rank_tables(found))


def _rank_tables(found: dict[str, Any]) -> Iterator[Table | Text]:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    columns = ("median_error", "worst_error")
    rows = [
        (name, _ms(line["seconds"]), f"{line['seconds_imbalance']:.2f}", *(share(line.get(each)) for each in columns))
        for name, line in found["phases"].items()
    ]
    title = f"{found['ranks']:,} ranks, {found['ranks_measured']:,} of them measured, {found['compute']}"
    yield _table(title, ("", "mean, ms", "max/mean", "median error", "worst"), rows)
    yield Text(f"  max/mean entries of L, S and R: {found['work_imbalance']:.2f}")
    yield Text(f"  an epoch on the network of {found['network']}: {_ms(found['epoch_seconds'])} ms")
    if "predicted_epoch_seconds" in found:
        yield Text(f"  predicted by the cost model alone: {_ms(found['predicted_epoch_seconds'])} ms")


def _peer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a training by another library."""
    options = (
        _graph_file,
        _choice("--model", names.PEER_MODELS, "Model.", _USUAL.model),
        _option("--layers", "Number of layers.", _USUAL.layers),
        _option("--hidden", "Number of columns of the hidden layers; with attention, of all heads together.", _USUAL.hidden),
        _option("--heads", "Number of attention heads; each has --hidden / --heads columns.", _USUAL.heads),
        _choice("--norm", names.NORMS, "Normalisation after every layer except the last.", _USUAL.norm),
        _choice("--activation", names.ACTIVATIONS, "Activation function between layers.", _USUAL.activation),
        _option("--dropout", "Dropout rate before every layer except the first.", _USUAL.dropout,
                NumberRange(0, 1, max_open=True)),
        _option("--epochs", "Number of epochs.", _USUAL.epochs),
        _option("--eval-every", "Number of epochs from one evaluation to the next, the last of which is that of the last epoch.",
                _USUAL.eval_every),
        _option("--lr", "Learning rate of Adam.", _USUAL.lr, NumberRange(0, min_open=True)),
        _option("--weight-decay", "Weight decay (L2 penalty) of Adam.", _USUAL.weight_decay, NumberRange(0)),
        _option("--seed", "Seed of the initial weights and of dropout.", _USUAL.seed, click.IntRange(0)),
        _option("--python", "Python of the environment that has the library.  [default: this one]", kind=str, metavar="PYTHON"),
        _threads,
        AS_JSON,
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _by_peer(library: str, graph: Path, python: str | None, threads: int | None, as_json: bool, source: Path | None = None,
             **settings: Any) -> None:  # fmt: skip
    """Train with the layers of a library, and show the figures."""
    if settings["model"] == "gat" and settings["hidden"] % settings["heads"]:
        raise click.UsageError(
            f"--heads {settings['heads']} does not divide --hidden {settings['hidden']}: choose a divisor of --hidden"
        )
    from hpcgnn.lab.bench import peers

    threads = threads or max(_cores() // settings.get("ranks", 1), 1)
    asked = PeerSettings(library, threads=threads, **settings)
    found = peers.run(graph, asked, python or "", source)
    rows = (
        ("epoch, median", f"{found['epoch_seconds_median'] * 1e3:.1f} ms"),
        ("peak memory of a process", f"{found['peak_memory_bytes_per_rank'] / 2**20:,.0f} MiB"),
        ("loss of the last epoch", f"{found['final_loss']:.4f}"),
        ("test metric at the best validation epoch", f"{found['test_metric_at_best_val']:.2%}"),
    )
    title = f"{peers.name_of(library)}'s {asked.model}, {asked.threads} threads"
    _tell(found, as_json, [_table(title, ("", "measured"), rows)])


@bench.command(epilog=_example("pyg graph.h5 --model gat --layers 2 --hidden 64 --heads 8 --epochs 10"))
@_peer_options
@_device
def pyg(**given: Any) -> None:
    """Train with PyG's layers in one process, as a baseline.

    The whole graph is trained on in every epoch. The model is the same as that of `hpcgnn train` with the same settings.
    """
    _by_peer(names.PYG, **given)


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str) -> str:
    """The option's value, if it is a list of positive numbers, one for each layer."""
    if text and not all(each.isascii() and each.isdigit() and int(each) for each in text.split(",")):
        raise click.BadParameter(f"{text!r} should be numbers from 1 with commas between them, such as 10,10,10")
    return text


@bench.command(epilog=_example("dgl graph.h5 --python ~/dgl/bin/python --fanouts 10,10,10 --epochs 10"))
@_peer_options
@click.option("--fanouts", default="", metavar="N,N,...", callback=_numbers, help="Numbers of neighbours to sample, those of the "
              "batch's own nodes first, such as 15,10,5: train on batches.  [default: train on the whole graph]")  # fmt: skip
@_option("--batch-size", "Number of training nodes of a batch.", _USUAL.batch_size)
@_option("--workers", "Number of processes that sample.", _USUAL.workers, click.IntRange(0, os.cpu_count()))
@_device
def dgl(**given: Any) -> None:
    """Train with DGL's layers in one process, as a baseline.

    The whole graph is trained on in every epoch, or, with --fanouts, batches of nodes with sampled neighbours. The model is that
    of `hpcgnn train` with the same settings. Evaluations use all neighbours, and their time does not count.
    """
    if given["fanouts"] and given["fanouts"].count(",") != given["layers"] - 1:
        raise click.UsageError(
            f"--fanouts {given['fanouts']} should have {given['layers']} numbers, one for each of --layers"
        )
    if given["fanouts"] and given["model"] == "rgcn":
        raise click.UsageError("--fanouts is not for --model rgcn: its types of edges are not sampled")
    _by_peer(names.DGL, **given)


@bench.command(
    epilog=_example("sar graph.h5 --python ~/dgl/bin/python --source ~/SAR --ranks 4 --hosts 4 --rate 1gbit")
)
@_peer_options
@click.option("--source", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
              help="Checkout of SAR's repository.  [default: SAR is installed]")  # fmt: skip
@_option("--ranks", "Number of processes, each with a partition by DGL's METIS.", _USUAL.ranks)
@_option("--hosts", "Number of virtual hosts, each with one process; 0 runs all processes on this machine.", _USUAL.hosts,
         click.IntRange(0))  # fmt: skip
@click.option("--rate", default=_USUAL.rate, metavar="RATE", help="Rate of the links of the hosts, such as 1gbit.")
def sar(**given: Any) -> None:
    """Train with SAR on several processes, as a baseline.

    SAR (Sequential Aggregation and Rematerialization, Mostafa 2022) trains on a whole graph with DGL's layers, on CPUs. Each
    process has a partition, and messages are float32. The model is the same as that of `hpcgnn train` with the same settings. On
    virtual hosts, bytes sent per epoch are those of the hosts' interfaces, with the headers of packets.
    """
    if given["hosts"] not in (0, given["ranks"]):
        raise click.UsageError(
            f"--hosts {given['hosts']} should be 0, or --ranks {given['ranks']}: each host has one process"
        )
    if given["rate"] and not given["hosts"]:
        raise click.UsageError(f"--rate {given['rate']} needs --hosts {given['ranks']}")
    if given["norm"] not in ("layer", "none"):
        raise click.UsageError(
            f"--norm {given['norm']} needs means over all ranks, which SAR's users do not have: choose layer"
        )
    _by_peer(names.SAR, **given)


def _settings_of(ctx: click.Context, parameter: click.Parameter, run: Path | None) -> Path | None:
    """Make the settings of a run the defaults of the other options."""
    if run is not None:
        ctx.default_map = {}
        try:
            values = read_file(run / CONFIG)
            check_file(values, str(run / CONFIG))
            ctx.default_map |= {name: values[name] for name in settings_by_name() if name in values}
        except HpcgnnError as error:
            ctx.meta[PROBLEM] = error  # the file may be wrong on one node only, so ranks must agree
    return run


@bench.command(cls=RunCommand, sections={}, after=2,
               epilog=_example("epoch parts.h5 --model sage --hidden 256 --bits 2", "mpirun -n 4 "))  # fmt: skip
@_parts_file
@click.option("--run", type=click.Path(path_type=Path), callback=_settings_of, is_eager=True,
              help="Folder of a run of `hpcgnn train` whose settings count, unless flags override them. The result is kept in it "
                   "for `hpcgnn report`.")  # fmt: skip
@_rounds
@AS_JSON
@click.pass_context
def epoch(ctx: click.Context, parts: Path, run: Path | None, rounds: int, as_json: bool, **settings: Any) -> None:
    """Measure the phases of an epoch, and the least time that the machine allows for each.

    The settings are those of `hpcgnn train`. Epochs alternate with measurements of the ceilings of the machine: the rate of
    reading memory, the gathering of the rows of this graph, the processor's peak of multiply-adds, and messages of the same
    size with nothing beside them. The table shows the mean over ranks of each phase, its floor, and their ratio; the last line
    says where most can be gained. Start the command under mpirun or srun, with one rank for each part of PARTS.
    """
    from hpcgnn.graph.local_graph import load
    from hpcgnn.lab.bench import floors
    from hpcgnn.train.account import account_of
    from hpcgnn.world import raise_on_all_ranks
    from hpcgnn.world.devices import choose_device

    world = _joined(settings["timeout"])
    with raise_on_all_ranks(world, "check the settings"):
        config = run_config(ctx, settings, set(ctx.default_map or ()))
    device = choose_device(world, config.device, config.ranks_per_gpu)
    _, activations = account_of(world, parts, config, device)
    graph = load(parts, world, features=config.features)
    if config.task == NODE:
        graph = graph.with_target(config.target)
    graph = graph.reordered(config.node_order, config.model.hidden).to(device)
    disable_malloc_trimming()
    with console.progress("rounds", rounds + 1, quiet=as_json or world.rank != 0) as advance:
        found = floors.run(graph, replace(config, activations=activations), rounds, advance)
    limits = msgspec.convert(found, Limits)
    with raise_on_all_ranks(world, f"write {names.LIMITS}"):
        if run is not None and world.rank == 0:
            with whole_file.replacing(run / names.LIMITS) as temporary:
                temporary.write_bytes(msgspec.json.encode(limits))
    _tell(found, as_json, _floor_tables(limits), world)


def _floor_tables(limits: Limits) -> Iterator[Table | Text]:
    def cells(each: Floor) -> tuple[str, ...]:
        return _ms(each.seconds), _ms(each.floor_seconds), "-" if each.to_floor is None else f"{each.to_floor:.2f}"

    title = f"{limits.ranks} ranks x {limits.threads} threads, {limits.compute}: milliseconds, mean over ranks"
    yield _table(
        title, ("phase", "ms", "floor", "ratio"), [(name, *cells(each)) for name, each in limits.rows().items()]
    )
    calls = (
        (f"{each.name} {' x '.join(f'{size:,}' for size in each.shape)}", f"{each.calls:.0f}", *cells(each))
        for each in limits.calls
    )
    yield _table(
        "rank 0: calls with the most time beyond their floor", ("call", "times", "ms", "floor", "ratio"), calls
    )
    yield Text(limits.advice())


@bench.command(epilog=_example("breakdown parts.h5 --epochs 100", "mpirun -n 4 "))
@_parts_file
@_option("--epochs", "Number of epochs with the breakdown, and of epochs without it.", 100, click.IntRange(2))
@_option("--hidden", "Number of columns of the hidden layers.", 256)
@_option("--bits", "Bit-width of each value in messages.", "2", _MESSAGE_BITS)
@AS_JSON
def breakdown(parts: Path, epochs: int, hidden: int, bits: str, as_json: bool) -> None:
    """Measure the cost of the time breakdown of an epoch.

    Training epochs with the breakdown and without it alternate. Start the command under mpirun or srun, with one rank for each
    part of PARTS.
    """
    from hpcgnn.lab.bench import epochs as measuring

    graph = _loaded(parts)
    steps = measuring.WARM_UP + epochs
    with console.progress("pairs of epochs", steps, quiet=as_json or graph.world.rank != 0) as advance:
        found = measuring.breakdown(graph, epochs, int(bits), hidden, advance)
    title = f"{found['ranks']} ranks, medians of {epochs} epochs"
    rows = [(f"{way} the breakdown", _ms(found[f"{way}_seconds"])) for way in ("with", "without")]
    cost = f"{found['cost']:+.2%} ± {found['cost_interval']:.2%}"
    told = Text(f"  the breakdown costs {cost} of an epoch")
    _tell(found, as_json, [_table(title, ("", "ms"), rows), told], graph.world)


@bench.command(epilog=_example("overhead parts.h5 --layers 3 --hidden 16", "mpirun -n 2 "))
@_parts_file
@_option("--layers", "Number of layers.", 3)
@_option("--hidden", "Number of columns of the hidden layers.", 16)
@_rounds
@AS_JSON
def overhead(parts: Path, layers: int, hidden: int, rounds: int, as_json: bool) -> None:
    """Measure the epochs of a small graph, beside PyG's.

    With some hundreds of nodes, most of an epoch is work of the framework. A plain loop with PyG's layers, hpcgnn on one rank,
    and hpcgnn on all ranks train the same model in turn, with one thread in each rank. Start the command under mpirun or srun,
    with one rank for each part of PARTS.
    """
    from hpcgnn.lab.bench import epochs as measuring

    graph = _loaded(parts)
    settings = PeerSettings(layers=layers, hidden=hidden, dropout=0.0, norm="layer")
    with console.progress("rounds", rounds + 1, quiet=as_json or graph.world.rank != 0) as advance:
        found = measuring.overhead(graph, settings, rounds, advance)
    rows = (
        (name, _ms(line["seconds"]), f"{line['spread']:.0%}", f"{line['to_pyg']:.2f}", f"{line['python_calls']:,}")
        for name, line in found["contenders"].items()
    )
    title = f"{found['nodes']:,} nodes, {layers} layers of width {hidden}, one thread: an epoch"
    header = ("", "ms", "spread", "x PyG", "Python calls")
    _tell(found, as_json, [_table(title, header, rows)], graph.world)
