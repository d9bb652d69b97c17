"""The options of ``hpcgnn train``: of the model, the optimiser, the system and policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from hpcgnn.comm.links import COLLECTIVES
from hpcgnn.comm.messages import CODINGS, EVAL_PRECISIONS
from hpcgnn.kernels.packing import MESSAGE_BITS
from hpcgnn.nn.compute import COMPUTES
from hpcgnn.nn.config import ACTIVATIONS, ATTENTIONS, DECODERS, MODELS, NORMS
from hpcgnn.node_order import METHODS
from hpcgnn.plan import STRATEGIES
from hpcgnn.policy.config import BITS_POLICIES, DESCENT_RULES, DRIFT_RULES, SMOOTHINGS, STALENESS_POLICIES
from hpcgnn.train.label_propagation import REDRAWS
from hpcgnn.train.objective import LINK_METRICS, METRICS
from hpcgnn.train.schedule import SCHEDULES


def _options(*decorators: Callable) -> Callable:
    def apply(command: Callable) -> Callable:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


MODEL = _options(
    click.option("--model", type=click.Choice(list(MODELS)), default="sage", show_default=True,
                 help="sage with mean aggregation; gcn, gcnii, dagnn, sgc, appnp and jknet with GCN's, which also uses edge "
                      "weights; gin with sums; gat and gatv2 with attention."),
    click.option("--layers", type=click.IntRange(1), default=3, show_default=True, help="Depth."),
    click.option("--hidden", type=click.IntRange(1), default=256, show_default=True, help="Width of hidden layers."),
    click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.5, show_default=True,
                 help="Before every layer but the first."),
    click.option(
        "--input-dropout", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True,
        help="Dropout of the features.",
    ),
    click.option("--norm", type=click.Choice(NORMS), default="layer", show_default=True,
                 help="After every layer but the last; batch takes the statistics of all ranks."),
    click.option("--activation", type=click.Choice(ACTIVATIONS), default="relu", show_default=True),
    click.option("--attention", type=click.Choice(ATTENTIONS), default="halo", show_default=True,
                 help="gat: rows of neighbours travel; or, partial, weighted sums that are made where the neighbours are."),
    click.option("--heads", type=click.IntRange(1), default=8, show_default=True,
                 help="gat, gatv2: heads that share --hidden."),
    click.option("--output-heads", type=click.IntRange(1), default=1, show_default=True,
                 help="gat, gatv2: heads of the last layer, which are averaged."),
    click.option("--attention-dropout", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True,
                 help="gat, gatv2: dropout of the weights of neighbours."),
    click.option("--hops", type=click.IntRange(0), default=0, show_default=True,
                 help="sgc, appnp, dagnn: how often to propagate; 0 as in their papers (2, 10, 10)."),
    click.option("--teleport", type=click.FloatRange(0, 1), default=0.1, show_default=True,
                 help="appnp's and gcnii's alpha: share of the first result in each hop or layer."),
    click.option("--identity", type=click.FloatRange(0, min_open=True), default=0.5, show_default=True,
                 help="gcnii's theta: deeper layers are nearer to the identity; smaller is nearer."),
    click.option(
        "--label-propagation", metavar="RATE", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True,
        help="Share of the training labels that are inputs: their embedding is added to the features, and the loss is on "
             "the other training nodes (SuperGCN's code: 0.62; 0 = off). Evaluation and prediction are given all training "
             "labels and no others, so the training metric is then about nodes whose label is known.",
    ),
    click.option("--label-redraw", type=click.Choice(REDRAWS), default="epoch", show_default=True,
                 help="When the propagated labels are drawn: anew every epoch, or once for the run."),
)  # fmt: skip
TASK = _options(
    click.option("--task", type=click.Choice(["node", "link"]), default="node", show_default=True,
                 help="Learn classes of nodes, or which nodes are linked: some links are held out, and the model learns those "
                      "that it sees beside pairs that are none."),
    click.option("--decoder", type=click.Choice(DECODERS[1:]), default="dot", show_default=True,
                 help="link: score of a pair, from embeddings as wide as --hidden: their product, or two dense layers on the "
                      "element-wise one."),
    click.option("--link-split", type=(float, float), metavar="VAL TEST", default=(0.05, 0.1), show_default=True,
                 help="link: shares of the links held out for validation and testing, an edge's both directions together."),
    click.option("--link-seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True,
                 help="link: which are held out, and which other pairs they are compared with; --seed changes neither."),
    click.option("--negatives", type=click.IntRange(1), default=1, show_default=True,
                 help="link: pairs without a link for each link, drawn anew in each epoch."),
    click.option("--negative-pool", type=click.IntRange(1), default=2048, show_default=True,
                 help="link: nodes drawn in each epoch for the other ends of those pairs; every rank gets their embeddings."),
)  # fmt: skip
OPTIMISER = _options(
    click.option("--epochs", type=click.IntRange(1), default=100, show_default=True, help="In all, resumed ones included."),
    click.option("--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True,
                 help="Learning rate of Adam."),
    click.option("--weight-decay", type=click.FloatRange(0), default=0.0, show_default=True),
    click.option("--dense-weight-decay", type=click.FloatRange(0), default=None,
                 help="Of gcnii's two dense layers and of appnp's first one.  [default: as --weight-decay]"),
    click.option("--schedule", type=click.Choice(SCHEDULES), default="constant", show_default=True,
                 help="Learning rate over the epochs."),
    click.option("--warmup", type=click.IntRange(0), default=0, show_default=True, help="Epochs of linear rise."),
    click.option("--decay", type=click.FloatRange(0, 1, min_open=True), default=0.5, show_default=True,
                 help="Factor of the step and plateau schedules."),
    click.option("--decay-every", type=click.IntRange(1), default=50, show_default=True, help="Epochs between decays."),
    click.option("--patience", type=click.IntRange(0), default=0, show_default=True,
                 help="Stop after so many epochs without a better validation metric; 0 = never."),
    click.option("--metric", type=click.Choice(list(dict.fromkeys(["auto", *METRICS, *LINK_METRICS]))), default="auto",
                 show_default=True,
                 help="What is evaluated; auto is accuracy, micro-f1 for multi-label graphs, and roc-auc for links."),
    click.option("--eval-every", type=click.IntRange(1), default=1, show_default=True,
                 help="Epochs from one evaluation to the next."),
    click.option("--checkpoint-every", type=click.IntRange(1), default=10, show_default=True,
                 help="Epochs from one checkpoint to the next."),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
)  # fmt: skip
SYSTEM = _options(
    click.option("--strategy", type=click.Choice(STRATEGIES), default="hybrid", show_default=True,
                 help="Aggregate cut edges before or after they travel, or whichever sends fewer rows."),
    click.option("--node-order", type=click.Choice(METHODS), default="none", show_default=True,
                 help="Order in which each rank keeps its nodes, for the sake of its caches; results are under original "
                      "ids whatever it is. auto: each rank measures and takes the fastest, so that a run need not repeat "
                      "bit for bit; with the others it does."),
    click.option("--bits", type=click.Choice([*(str(bits) for bits in reversed(MESSAGE_BITS)), *BITS_POLICIES]),
                 default="32", show_default=True,
                 help="Bits of a value that travels in training: 32 is float32, 16 bfloat16; below that, values are "
                      "rounded at random to steps between their row's smallest and largest (delta: to the nearest). Or who "
                      "decides for each row: uniform draws 2, 4 or 8; adaqp weighs variance against time; sylvie goes by "
                      "in-degrees and the loss; pipeqs by how much rows change."),
    click.option("--eval-precision", type=click.Choice(EVAL_PRECISIONS), default="float32", show_default=True,
                 help="What evaluations send: float32, or as few bits as training does."),
    click.option("--staleness", type=click.Choice(STALENESS_POLICIES), default="off", show_default=True,
                 help="Use rows of an epoch before while new ones travel: pipeline always (PipeGCN), sylvie while the loss "
                      "falls well, pipeqs also older ones while they change little. Evaluations are always fresh, and what "
                      "travels is waited for before each: choose --eval-every above 1."),
    click.option("--message-coding", type=click.Choice(CODINGS), default="plain", show_default=True,
                 help="delta sends differences to what the receiver has from the last epoch, so that nothing that rounding "
                      "lost is lost for good; it keeps all rows sent and received in memory."),
    click.option("--cache-input-aggregation", is_flag=True,
                 help="Aggregate the features once, with float32 messages, and keep the result: the first layer then sends "
                      "nothing. Not to be used on one side of a comparison only."),
    click.option("--overlap", type=click.Choice(["on", "off"]), default="on", show_default=True,
                 help="Compute while messages travel; off shows what that saves. Results are the same, bit for bit."),
    click.option("--collective", type=click.Choice(COLLECTIVES), default="auto", show_default=True,
                 help="MPI's call for boundary messages: over all ranks, or over those that have some for each other. auto "
                      "measures both where that may pay."),
    click.option("--compute", type=click.Choice(COMPUTES), default="float32", show_default=True,
                 help="Arithmetic of dense products. bf16: they take bfloat16 where that is faster (8 bits of mantissa) and "
                      "add in float32; weights, optimiser and everything else stay float32, and so do checkpoints."),
    click.option("--device", type=click.Choice(["cpu"]), default="cpu", show_default=True),
    click.option("--timeout", type=click.FloatRange(0, min_open=True), default=1800.0, show_default=True,
                 help="Seconds to wait for another rank before giving up."),
)  # fmt: skip

POLICY = _options(
    click.option("--bits-period", type=click.IntRange(1), default=50, show_default=True,
                 help="adaqp, uniform: epochs from one assignment of bits to the next."),
    click.option("--variance-weight", type=click.FloatRange(0, 1), default=0.5, show_default=True,
                 help="adaqp's lambda: 0 for the fewest seconds on the wire, 1 for the least variance."),
    click.option("--group-rows", type=click.IntRange(1), default=100, show_default=True,
                 help="adaqp: rows that share an assignment."),
    click.option("--link-costs", type=click.Path(path_type=Path), default=None,
                 help="adaqp: file with what messages cost, written if it is missing.  [default: link_costs.json in --out]"),
    click.option("--refit-links", is_flag=True, help="adaqp: measure what messages cost, whatever --link-costs holds."),
    click.option("--loss-memory", type=click.FloatRange(0, 1), default=0.9, show_default=True,
                 help="sylvie's lambda, of the running average of the loss."),
    click.option("--loss-window", type=click.IntRange(1), default=5, show_default=True,
                 help="sylvie's delta: the loss's descent is compared with that of so many epochs ago (20: faster)."),
    click.option("--descent-rule", type=click.Choice(DESCENT_RULES), default="corrected", show_default=True,
                 help="sylvie: the loss descent rate with the sign that the paper prints, or with that of its text."),
    click.option("--drift-threshold", type=click.FloatRange(0), default=0.1, show_default=True,
                 help="pipeqs' E: rows whose cosine distance from those before is larger are sent anew, in other bits."),
    click.option("--drift-rule", type=click.Choice(DRIFT_RULES), default="corrected", show_default=True,
                 help="pipeqs: Eq. 7 as printed only ever raises bits; corrected also lowers them."),
    click.option("--most-stale-epochs", type=click.IntRange(1), default=4, show_default=True,
                 help="pipeqs: rows are never used later than so many epochs after they were sent."),
    click.option("--smoothing", type=click.Choice(SMOOTHINGS), default="none", show_default=True,
                 help="Use a moving average of stale features, gradients or both (PipeGCN)."),
    click.option("--smoothing-decay", type=click.FloatRange(0, 1), default=0.95, show_default=True,
                 help="Share of the epochs before in that average."),
    click.option("--replay", metavar="LOG", type=click.Path(path_type=Path), default=None,
                 help="decisions.jsonl of another run with these settings: see its times in place of the clock, so that "
                      "policies decide as they did and the run repeats bit for bit; none to go on with the clock where it ends."),
)  # fmt: skip
