"""Faults that matter most: the algebra, the wire, staleness, checkpoints, decisions, metrics and seeds.

A fault is a function that takes the place of another one, which is its first argument, or makes another value of a constant. It
names test files, or folders, which must notice it. Its sentence says what is wrong.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Fault:
    """One fault. module: the one that it changes. place: the name there of a function, method, property or constant. tests: those
    that must notice it."""

    module: str
    place: str
    tests: tuple[str, ...]
    instead: Callable[..., Any]

    @property
    def about(self) -> str:
        """The sentence that says what is wrong."""
        return " ".join(str(self.instead.__doc__).split())

    def put_into(self, module: ModuleType) -> None:
        """Put the fault into its module."""
        *owners, name = self.place.split(".")
        owner = functools.reduce(getattr, owners, module)
        held = inspect.getattr_static(owner, name)
        before = getattr(held, "fget", None) or getattr(held, "__func__", held)
        if not callable(before):
            setattr(owner, name, self.instead(before))
            return
        call = functools.partial(self.instead, before)
        kind = type(held) if isinstance(held, property | staticmethod | classmethod) else None
        setattr(
            owner, name, kind(lambda *given: call(*given)) if kind else lambda *given, **named: call(*given, **named)
        )


FAULTS: dict[str, Fault] = {}


def fault(place: str, *tests: str) -> Callable[[F], F]:
    """Register a function as a fault, under its own name. place: ``module:name``, of a module of hpcgnn. tests: below tests/."""

    def register(function: F) -> F:
        module, _, name = place.partition(":")
        paths = tuple(f"tests/{test}" for test in tests)
        FAULTS[function.__name__] = Fault(f"hpcgnn.{module}", name, paths, function)
        return function

    return register


# -- the algebra: z = Dl (L x' + R exchange(S x')), x' = Dr x ----------------------------------------------------------


@fault("plan.plan:AggregationPlan.reverse", "nn/test_equivalence.py", "plan")
def local_matrix_is_not_transposed(before, self):
    """The backward pass takes L as it is, and only S and R transposed."""
    return replace(before(self), local=self.local)


@fault("nn.linear_map:LinearMap.reverse", "nn/test_equivalence.py")
def backward_keeps_the_scalings(before, self):
    """The backward pass keeps Dl and Dr of the forward pass in their places."""
    return replace(before(self), left=self.left, right=self.right)


@fault("nn.linear_map:FloatRows.pre_aggregate", "nn/test_equivalence.py")
def rows_travel_unscaled(before, self, x, rows, codec):
    """Rows that travel are divided by Dr, as if they were not scaled before they are sent."""
    right = self.linear.right
    return before(self, x if right is None else x / right, rows, codec)


@fault("nn.aggregator:Aggregator._scaled", "nn/test_equivalence.py")
def result_is_scaled_twice(before, self, z):
    """The result of an aggregation is multiplied by Dl twice."""
    return before(self, before(self, z))


@fault("exchange.exchange:Exchange.add_received", "nn/test_equivalence.py")
def gradients_of_received_rows_are_dropped(before, self, message, matrix, z):
    """The backward pass does not add the gradients that other ranks send."""
    if not self.is_backward:
        before(self, message, matrix, z)


@fault("plan.build:sources_in_cover", "plan")
def every_source_is_in_the_cover(before, *given):
    """The vertex cover has all sources, so more rows travel than a maximum matching has edges."""
    return before(*given) | True


@fault("plan.build:csr_matrix", "plan")
def parallel_edges_become_one(before, rows, columns, edges, shape):
    """Edges between the same two nodes become one entry of a matrix."""
    import numpy as np

    _, first = np.unique(np.stack((rows, columns)), axis=1, return_index=True)
    return before(rows[first], columns[first], None if edges is None else edges[first], shape)


@fault("plan.build:relieved", "plan")
def overloaded_ranks_keep_their_work(before, is_post, *given):
    """A receiver with too many entries leaves none of them to its senders."""
    return is_post


@fault("graph.local_graph:with_weights", "nn/test_equivalence.py", "plan")
def weights_are_those_of_the_next_edge(before, world, path, plan, weight, first):
    """Each entry of a weighted plan has the weight of the edge after its own."""
    import numpy as np

    return before(world, path, plan, np.roll(weight, -1), first)


@fault("nn.node_aware:NodeAggregator._aggregate_locally", "graph/test_node_aware.py")
def rows_of_the_own_node_are_left_out(before, self, x, plus=None, *, has_own=False):
    """On ranks that share a node, the rows of the others are not added."""
    return super(type(self), self)._aggregate_locally(x, plus, has_own=has_own)


@fault("nn.attention:WeighingLayer.row_squares", "policy/test_channels.py")
def learned_weights_are_not_squared(before, self, edges):
    """Policies get the weights of attention, and not their squares."""
    found = before(self, edges)
    return None if found is None else found**0.5


@fault("kernels.autograd:_Linear.backward", "nn/test_whole_graph.py")
def means_have_local_gradients(before, ctx, *gradients):
    """The gradient of a sum over all nodes is that of the rank's own loss alone."""
    before(ctx, *gradients)
    return gradients[0], None, None


@fault("nn.correction:Correction.apply", "nn/test_correction.py")
def correction_has_the_wrong_sign(before, self, z, now, then):
    """Stale rows are corrected against the change of the local sums."""
    before(self, z, then, now)


@fault("kernels.autograd:_to_transpose", "kernels/test_spmm.py")
def weights_of_the_transpose_are_unordered(before, csr, values, backend):
    """The backward pass of a weighted sum takes the weights in the order of the forward pass."""
    return values


@fault("kernels.edges:edge_softmax_backward", "kernels/test_edge_kernels.py")
def softmax_forgets_its_sum(before, csr, alpha, gradient, backend="auto"):
    """The gradient of a softmax leaves out the sum over its row."""
    return alpha * gradient


# -- the wire ----------------------------------------------------------------------------------------------------------


@fault("kernels.messages:_Native.decode_rows", "kernels/test_messages.py")
def decoded_rows_are_not_added(before, self, *given):
    """Decoded rows replace the rows to which they should be added, in the native kernels."""
    return before(self, *given[:-1], False)


@fault("kernels.messages:_Native.bind_encode", "kernels/test_messages.py", "exchange")
def rows_are_rounded_to_the_nearest(before, self, *given):
    """Rows are encoded without noise, so that decoding is biased."""
    encode = before(self, *given)
    return lambda x, key, buffer: encode(x, None, buffer)


@fault("kernels.messages:_MIDDLE", "kernels/test_messages.py")
def zero_point_is_not_the_middle(before):
    """The zero-point of a row of 8-bit integers is one step too high."""
    return 127


@fault("exchange.codecs:DeltaCodec.encode", "exchange")
def senders_forget_their_differences(before, self, rows, wire, key, differences, given):
    """A sender of delta coding does not add the difference that it has sent to its copy of the receiver's rows."""
    return before(self, rows, wire, key, replace(differences, sent=differences.sent.clone()), given)


@fault("exchange.codecs:PlainCodec.encode", "exchange")
def not_a_number_travels(before, self, *given):
    """Rows that travel unchanged are not searched for NaN and infinities."""
    return 0


@fault("exchange.codecs:PackedCodec.decode", "exchange")
def all_groups_have_the_first_bits(before, self, wire, layout, out, **named):
    """All rows of a message are decoded with the bit-width of its first group."""
    bits = layout.groups[0].bits if layout.groups else 0
    groups = tuple(replace(group, bits=bits) for group in layout.groups)
    before(self, wire, replace(layout, groups=groups), out, **named)


@fault("exchange.exchange:make_layout", "exchange")
def wide_columns_lie_on_the_grid(before, counts, bits, width, wide_from=None):
    """Scores of attention are rounded on the grid of their row."""
    return before(counts, bits, width)


@fault("exchange.layout:make_layout", "exchange")
def padding_is_not_cleared(before, *given):
    """Bytes that belong to no row travel with the contents of earlier messages."""
    found = before(*given)
    return replace(found, padding=found.padding[:0])


@fault("exchange.exchange:RowBits", "exchange", "policy")
def receivers_hear_other_bits(before, sent, received):
    """Receivers get the bit-widths of rows in the reverse order."""
    return before(sent, received[::-1])


@fault("exchange.passes:_EVALUATION", "exchange/test_exchange.py")
def evaluations_draw_the_noise_of_training(before):
    """An evaluation rounds its messages with the noise of the training step before it."""
    return 0


@fault("exchange.passes:Pass.noise_key", "exchange/test_exchange.py")
def noise_is_the_same_in_all_layers(before, self, exchange, call, rank):
    """The rounding noise of a message does not depend on its layer."""
    return before(self, exchange._replace(layer=0), call, rank)


@fault("world.thread_world:ThreadWorld._shared", "world/test_worlds.py", "exchange")
def rows_of_two_senders_are_swapped(before, self, mine, use):
    """Ranks that are threads receive the rows of their peers in the reverse order."""
    found = before(self, mine, use)
    return found[::-1] if isinstance(mine, list) and isinstance(found, list) else found


@fault("world.mpi_world:MpiWorld.start_broadcast", "world/test_worlds.py")
def broadcasts_come_from_the_first_rank(before, self, values, root, what):
    """A broadcast always has the values of rank 0."""
    return before(self, values, 0, what)


@fault("world.world:_are_equal", "world/test_worlds.py", "data/test_border.py")
def ranks_do_not_compare(before, *given):
    """Ranks that have read different files do not notice it."""
    return before(*given) or True


# -- staleness ---------------------------------------------------------------------------------------------------------


@fault("exchange.mailbox:Mailbox.next_turn", "policy/test_staleness.py")
def rows_in_use_are_overwritten(before, self):
    """Both messages of a mailbox are received into the same memory."""
    return 0


@fault("exchange.mailbox:Mailbox.accept", "policy/test_staleness.py")
def averages_weigh_the_new_rows(before, self, *given):
    """The moving average of stale rows gives the new rows the weight of the old ones."""
    rules, self._rules = self._rules, replace(self._rules, decay=1 - self._rules.decay)
    before(self, *given)
    self._rules = rules


@fault("exchange.exchange:Step.start", "policy/test_staleness.py")
def stale_rows_are_fresh(before, self, *given):
    """A message is used at once where the rows of the epoch before are due."""
    message = before(self, *given)
    box = message.mailbox
    if box is None or box.in_flight is None:
        return message
    message, box.in_flight = box.in_flight, None
    return message


@fault("exchange.exchange:Exchange.keep_sums", "policy/test_staleness.py")
def corrections_are_nothing(before, self, message, sums):
    """Stale rows are corrected by the change of sums since this epoch."""
    return None if before(self, message, sums) is None else sums


@fault("exchange.traffic:Traffic.begin_step", "policy/test_staleness.py")
def calls_are_counted_on(before, self):
    """A step finds no rows of an earlier one, because calls are counted on from step to step."""
    calls = dict(self.calls)
    before(self)
    self.calls.update(calls)


@fault("policy.pipeqs:oldest_age", "policy/test_pipeqs.py", "policy/test_staleness.py")
def rows_are_used_once_more(before, *given):
    """Rows are used in one epoch more than their expected change allows."""
    return before(*given) + 1


# -- checkpoints -------------------------------------------------------------------------------------------------------


@fault("exchange.mailbox:Mailbox.state", "train/test_matrix_of_runs.py")
def sums_are_left_out_of_checkpoints(before, self):
    """A resumed run has no sums by which it corrects stale rows."""
    return {name: value for name, value in before(self).items() if not name.endswith("_sums")}


@fault("exchange.mailbox:StaleRows.load", "train/test_matrix_of_runs.py")
def differences_are_swapped_in_checkpoints(before, self, state, *given, **named):
    """A resumed run takes the rows received of delta coding for those sent, and the other way round."""
    swapped = {slot: rows[::-1] for slot, rows in state["differences"].items()}
    before(self, state | {"differences": swapped}, *given, **named)


@fault("train.optimiser:Adam.load_state_dict", "train/test_learning.py")
def steps_are_counted_anew(before, self, state):
    """The optimiser's count of steps starts again after a resume."""
    before(self, state)
    self.state = {number: each | {"step": 0.0} for number, each in self.state.items()}


@fault("train.config:Best.from_state", "train/test_matrix_of_runs.py")
def early_stopping_starts_anew(before, kind, state):
    """A resumed run does not know the best evaluation of the run before it."""
    return kind()


@fault("train.rank_state:RankState._fits", "train/test_resumed_job.py", "train/test_damaged_runs.py")
def rows_of_another_plan_are_used(before, self, content):
    """A run continues with rows that were kept for another plan."""
    return before(self, content) or content is not None


@fault("train.archive:digest_of", "train/test_archive.py")
def digests_are_not_compared(before, content):
    """A checkpoint whose values were changed and packed again is used."""
    return "0" * 32


@fault("train.checkpoint:_check_finite", "train/test_damaged_runs.py")
def weights_without_numbers_are_used(before, *given):
    """A checkpoint with NaN in its weights is used."""


@fault("train.run_folder:RunFolder.keep_epochs", "train/test_job.py", "train/test_matrix_of_runs.py")
def repeated_epochs_stay_in_the_log(before, self, count):
    """The log keeps an epoch that a resumed run writes again."""
    before(self, count + 1)


# -- decisions of policies ---------------------------------------------------------------------------------------------


@fault("policy.pipeqs:averaged_error", "policy/test_pipeqs.py")
def resting_rows_have_the_most_bits(before, change, bits):
    """The error that is left after averaging grows with the number of bits."""
    return before(change, 16 // bits)


@fault("policy.loss_trend:_ERRORS", "policy/test_sylvie.py")
def noise_is_a_stall(before):
    """A loss stalls, and falls, whatever its noise is."""
    return 0


@fault("policy.row_errors:levels_of", "policy/test_sylvie.py")
def small_errors_have_the_most_bits(before, *given):
    """The rows with the smallest errors get the most bits."""
    return 255 - before(*given)


@fault("policy.adaqp:Waiting", "policy/test_trained.py")
def groups_begin_at_the_first_rank(before, numbers, groups, first, answer):
    """Each rank takes the bits of the first rank's groups."""
    return before(numbers, groups, [0 for _ in first], answer)


@fault("policy.assignment:_Market._costs", "policy/test_assignment.py")
def receivers_cost_nothing(before, self, *ends):
    """The seconds of receiving are no part of an assignment's costs."""
    variances, loads = before(self, *ends)
    loads[..., self._groups.num_ranks :] = 0
    return variances, loads


@fault("policy.clock:Clock.observe", "policy/test_rules.py")
def replays_measure(before, self, name, measure):
    """A replayed run measures, and does not use what the log has."""
    before(self, name, measure)
    return measure()


@fault("policy.policies:Policies.begin_backward", "train/test_policy_job.py", "policy")
def backward_exchanges_get_no_decision(before, self):
    """Policies do not decide about the staleness of gradients."""


# -- losses, metrics, masks and seeds ----------------------------------------------------------------------------------


@fault("train.optimiser:GradientBucket.reduce", "nn/test_equivalence.py")
def gradients_are_means_of_ranks(before, self, scalars, count):
    """Each rank divides its gradients by its own number of training nodes."""
    sums, total = before(self, scalars, count)
    self._sums *= max(total, 1) / max(count, 1)
    return sums, total


@fault("train.objective:_summed", "train/test_learning.py")
def metrics_are_those_of_one_rank(before, world, counts):
    """Counts of right answers are not summed over ranks."""
    before(world, counts)
    return [[int(count) for count in pair] for pair in counts]


@fault("train.objective:distributed_auc", "train/test_learning.py")
def ties_count_nothing(before, world, scores, positive):
    """Equal scores of a positive and a negative node lower the area under the ROC curve."""
    return before(world, scores - 1e-9 * positive, positive)


@fault("train.tasks:NodeTask._inputs", "train/test_label_propagation.py")
def given_labels_are_learned(before, self, epoch):
    """The loss is also on training nodes whose label is a model input."""
    return before(self, epoch)[0], self._trained


@fault("train.trainer:Trainer.evaluate", "train/test_trainer.py", "train/test_golden.py")
def evaluations_have_dropout(before, self):
    """An evaluation runs with dropout."""
    return self.task.evaluate()


@fault("train.negatives:KnownEdges.have", "train/test_links.py")
def negative_pairs_may_be_edges(before, self, *triple):
    """Pairs that are edges are drawn as negative pairs."""
    return before(self, *triple) & False


@fault("kernels.keyed:derive_key", "kernels/test_activation.py", "train/test_golden.py")
def seeds_and_epochs_are_alike(before, *words):
    """A key does not depend on the order of the numbers from which it is made."""
    return before(sum(map(int, words)) & (2**64 - 1))


@fault("kernels.activation:DropoutMask.scale", "kernels/test_activation.py")
def dropout_does_not_scale(before, self):
    """The elements that dropout keeps are not scaled up."""
    return 1.0


# -- files -------------------------------------------------------------------------------------------------------------


@fault("sources.edges:_merge_equal", "data/test_matrix_of_sources.py")
def merged_edges_lose_weight(before, keys, values):
    """Of edges that are merged, the first one's weight is kept, and not the sum."""
    import numpy as np

    found, first = np.unique(keys, return_index=True)
    return found, None if values is None else values[first]


@fault("data.stored:look", "data/test_border.py")
def checksums_are_not_compared(before, array, rows, out, rule, slab, expected):
    """Values of a file that fit their rule are used, whatever their checksum is."""
    before(array, rows, out, rule, slab, None)
