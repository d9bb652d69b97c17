"""The training loop: in each epoch, one optimiser step over the whole graph on all ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn.base.arguments import check_callable, check_type
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import StopRequest, peak_memory_bytes, seconds_since_start
from hpcgnn.data.schema import REGRESSION
from hpcgnn.exchange import PHASES
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphModel
from hpcgnn.nn.compute import hardware, resumed_compute
from hpcgnn.nn.config import INTEGERS, Int8Config
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.policy.policies import Policies
from hpcgnn.train import checkpoint, checks
from hpcgnn.train.config import Best, LinkConfig, TrainConfig, learning_rate_factor
from hpcgnn.train.ledger import Ledger
from hpcgnn.train.links import LinkSplit
from hpcgnn.train.optimiser import Adam, GradientBucket, by_completion, parameter_groups
from hpcgnn.train.owned_rows import OwnedRows, shared_state
from hpcgnn.train.rank_report import OverRanks, RankReport
from hpcgnn.train.rank_state import RankState
from hpcgnn.train.run_config import LINK, NODE, RunConfig
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.summary import METRICS, summarise
from hpcgnn.train.tasks import LinkTask, NodeTask, RegressionTask, Trainable
from hpcgnn.world import raise_on_all_ranks

_WIRE = PHASES.index("wire_seconds")


class Trainer:
    """Trains a model on the nodes or the links of a graph: epochs, evaluations, early stopping, checkpoints and policies.

    Collective: every rank makes a trainer and calls the same methods in the same order. A graph in another node order
    (``graph.reordered``) trains the same model.

    Args:
        model: a result of ``hpcgnn.build_model`` or ``hpcgnn.distribute``. All ranks hold the same weights.
        graph: the graph for which the model was built; or a result of ``hpcgnn.split_links``, to learn links with a model
            that has a decoder and was built for its ``train``.
        config: settings of training; None: the defaults.
        run: run folder for metrics and checkpoints, a ``hpcgnn.train.run_folder.RunFolder``; None keeps the records of all
            epochs in the attribute ``records`` and writes nothing.
        stop: object that is asked after every epoch whether to stop; None: training stops after the epoch in which a rank
            received the signal SIGUSR1.
        clock: source of the times that policies see; with a log of another run, that run's observations are used again.
        measure_costs: function that measures the cost of messages for AdaQP; None: the built-in measurement. Collective.
        on_epoch: function that is called on every rank with the record of each epoch, a dictionary with the keys of a line of
            ``metrics.jsonl``.

    Raises:
        HpcgnnError: on every rank, for settings that contradict each other, and for a model that was built for another graph.
    """

    def __init__(
        self,
        model: GraphModel | torch.nn.Module,
        graph: LocalGraph | LinkSplit,
        config: TrainConfig | None = None,
        *,
        run: RunFolder | None = None,
        stop: StopRequest | None = None,
        clock: Clock | None = None,
        measure_costs: Callable[[], LinkCosts | None] | None = None,
        on_epoch: Callable[[dict[str, Any]], object] = lambda record: None,
    ) -> None:
        check_type("graph", graph, LocalGraph, LinkSplit)
        links = graph if isinstance(graph, LinkSplit) else None
        graph = graph.train if isinstance(graph, LinkSplit) else graph
        with raise_on_all_ranks(graph.world, "make a trainer"):
            check_type("model", model, torch.nn.Module)
            check_type("config", config, TrainConfig, type(None))
            check_type("run", run, RunFolder, type(None))
            check_type("stop", stop, StopRequest, type(None))
            check_type("clock", clock, Clock, type(None))
            check_callable("on_epoch", on_epoch)
            check_callable("measure_costs", min if measure_costs is None else measure_costs)
        self.model, self.graph, self.config = as_trainable(model), graph, config or TrainConfig()
        self._modules = list(model.modules())
        messages = self.model.messages
        self.world, self.device, self.timings = graph.world, graph.device, messages.timings
        self.run, self.on_epoch, self.stop = run, on_epoch, stop or StopRequest().listen()
        with raise_on_all_ranks(self.world, "check the training settings"):
            self._run_config(links).check()
            _check_graph(self.model, graph)
        of_nodes = RegressionTask if graph.meta.task == REGRESSION else NodeTask
        self.task: NodeTask | RegressionTask | LinkTask = (
            of_nodes(self.model, graph, self.config.metric, self.config.labels, self.config.loss)
            if links is None
            else LinkTask(self.model, links, self.config.metric)
        )
        checks.warn_at_start(self.task.validation_size(), graph, self.config)
        self.optimiser = Adam(self._groups(), lr=self.config.lr)
        all_facts = self.model.exchange_facts(graph.in_degrees)
        self.policies = Policies(self.world, messages, all_facts, self.config.policy, clock, measure_costs)
        rows = np.zeros(1, np.int64) if not all_facts else all_facts[0].exchange.send_counts
        self._rank_report = RankReport(graph, messages.traffic, rows)
        self._rank_state = RankState(self.world, self.model, self.policies)
        sums = len(self.policies.sums())
        owned = list(self.model.owned_parameters().values())
        self.bucket = GradientBucket(self.world, self._gradient_groups(), 3 + sums, self.device, owned)
        self._owned_rows = OwnedRows(self.world, self.model)
        self._over_ranks = OverRanks(self.world, 2 + sums)
        self.best = Best()
        self.best_state: dict[str, torch.Tensor] | None = None
        self.next_epoch, self._saved_epoch = 0, -1
        self._has_learned, self._can_update, self._is_resumed = False, True, False
        self._policy_sums: list[float] = []
        self.records: list[dict[str, Any]] = []
        self.stop_reason: str | None = None
        self._startup_seconds: float | None = None
        self.ledger: Ledger | None = None  # where a step says which of its halves begins
        self.account: Any = None  # a hpcgnn.train.account.Account, which measures the memory of the first epoch

    def _run_config(self, links: LinkSplit | None) -> RunConfig:
        """Settings that only built the model and that it does not keep have their defaults."""
        model = self.model
        return RunConfig(
            task=NODE if links is None else LINK,
            model=model.config,
            messages=model.messages.config,
            train=self.config,
            links=LinkConfig() if links is None else links.config,
            seed=model.keys.seed,
            compute=model.compute,
            int8=Int8Config() if model.int8 is None or model.compute not in INTEGERS else model.int8.config,
            cache_input_aggregation=model.keeps_input,
            activations=model.activations.mode,
        )

    def _groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.model, self.config.weight_decay, self.config.dense_weight_decay)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def fit(self) -> dict[str, Any]:
        """Train until ``epochs``, early stopping or a stop request. Collective.

        Returns:
            The content of ``summary.json``, the same on every rank: ``test_metric_at_best_val``, ``epoch_seconds_median`` in
            seconds, ``bytes_sent_per_epoch`` in bytes, and more.

        Raises:
            HpcgnnError: on every rank, if the loss or a gradient becomes NaN or infinite, if no epoch had a loss, or if the run
                folder holds another run; on one rank, if a wait reaches its timeout or a file cannot be written.
        """
        self._prepare_run()
        with contextlib.ExitStack() as stack:
            if self.run is not None:
                stack.callback(self.run.release)
            if self._startup_seconds is None:
                self._startup_seconds = seconds_since_start()
            first_epoch = self.next_epoch
            self._stop_if_exhausted()
            while self.next_epoch < self.config.epochs and self.stop_reason is None:
                account = self.account
                with account.measuring(self) if account is not None and account.is_due else contextlib.nullcontext():
                    self.run_epoch()
                if self.next_epoch % self.config.checkpoint_every == 0 and self.stop_reason is None:
                    self.save()
            if self.next_epoch > first_epoch:
                self.save()
            return self._finish()

    def _prepare_run(self) -> None:
        if self.run is not None:
            with raise_on_all_ranks(self.world, f"prepare the run folder {self.run.path}"):
                if self.world.rank == 0:
                    self.run.prepare(resume=self._is_resumed or self.next_epoch > 0)

    def _stop_if_exhausted(self) -> None:
        if self.best.is_exhausted(self.config.patience):
            self.stop_reason = "early stopping"

    def run_epoch(self) -> dict[str, Any]:
        """Run one training step, and an evaluation if it is due. Collective.

        Returns:
            The record of the epoch, with the keys of a line of ``metrics.jsonl``.

        Raises:
            HpcgnnError: as ``fit``.
        """
        epoch = self.next_epoch
        try:
            loss, stops, mine = self._timed_step(epoch)
            sums = [loss or 0.0, float(not self._can_update), *self._policy_sums]
            breakdown, (agreed_loss, overflows, *policy_sums) = self._over_ranks.reduce(mine, sums)
            if overflows:
                raise HpcgnnError(
                    f"gradients became NaN or infinite in epoch {epoch}: lower --lr or scale the features down",
                    agreed=True,
                )
        except HpcgnnError as error:
            if error.agreed:  # on all ranks: no message may be in flight when MPI, or the memory of a message, ends
                self.model.messages.drain()
            raise
        record: dict[str, Any] = {"epoch": epoch, "loss": loss, "compute": self.model.compute} | breakdown
        if self._has_learned:
            self.policies.observe(epoch, agreed_loss, record["seconds"], policy_sums)
        if self.model.int8 is not None:
            record |= self.model.int8.record()
        record |= self.policies.record() | self._evaluate_if_due(epoch)
        self.next_epoch = epoch + 1
        self._stop_if_exhausted()
        if stops and self.stop_reason is None and self.next_epoch < self.config.epochs:
            self.stop_reason = "SIGUSR1"
        if self.run is None:
            self.records.append(record)
        elif self.world.rank == 0:
            self.run.append(record)
            self.run.append_decisions(self.policies.decisions(record), self.graph.data)
        self.on_epoch(record)
        return record

    def _gradient_groups(self) -> list[list[torch.nn.Parameter]]:
        """Parameters whose gradients are summed together. Layers of a user's own may make a gradient in several backward passes,
        as in torch's checkpointing, and its sum may not start before the last of these."""
        named = self.model.named_parameters() if isinstance(self.model, GraphModel) and self.world.size > 1 else ()
        return by_completion(named) or [list(self.model.parameters())]

    def _timed_step(self, epoch: int) -> tuple[float | None, float, list[float]]:
        self.timings.take()
        traffic = self.model.messages.traffic
        before = traffic.bytes()
        self._rank_report.begin_step(epoch)
        started = time.perf_counter()
        loss, stops = self.step(epoch)
        if self._is_evaluated(epoch) or (epoch + 1) % self.config.checkpoint_every == 0:
            self.model.messages.drain()  # the time of messages during an evaluation would be in no epoch
        self.device.synchronize()
        seconds = time.perf_counter() - started
        phases = self.timings.take()
        other = seconds - sum(phases) + phases[_WIRE]  # wire time runs beside the other phases
        moved = [float(count - before[name]) for name, count in traffic.bytes().items()]
        self._rank_report.end_step([seconds, *phases, other])
        return loss, stops, [seconds, *phases, other, *moved]

    def step(self, epoch: int) -> tuple[float | None, float]:
        """Run a forward pass, a backward pass, the reduction of gradients and the optimiser's step. Returns the mean loss over
        all training nodes before the step, None if every label is an input of this epoch; and the number of ranks that ask to
        stop. Collective."""
        if not all(module.training for module in self._modules):
            self.model.train()
        self.model.begin_epoch(epoch)
        self.policies.begin_epoch(epoch)
        factor = learning_rate_factor(self.config.schedule, epoch, self.config.epochs, self.best)
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.lr * factor
        self.optimiser.zero_grad()
        if self.ledger is not None:
            self.ledger.mark("step")
        loss, learned = self.task.loss(epoch)
        if self.ledger is not None:
            self.ledger.mark("backward")
        self.policies.begin_backward()
        messages = self.model.messages
        with self.bucket.during_backward() if messages.config.overlap else contextlib.nullcontext():
            loss.backward()
        self.world.meet()
        with self.timings.measure("synchronisation_seconds"):
            mine = [loss.detach(), self.stop.requested, messages.traffic.nonfinite_count(), *self.policies.sums()]
            sums, count = self.bucket.reduce(mine, learned)
        (total_loss, stops, nonfinite), self._policy_sums = sums[:3], sums[3:]
        messages.raise_if_nonfinite(nonfinite)
        if not np.isfinite(total_loss):
            raise HpcgnnError(
                f"the loss became {total_loss} in epoch {epoch}: lower --lr or scale the features down", agreed=True
            )
        self._has_learned = count > 0
        if not self._has_learned:  # this happens by chance with few training nodes
            return None, stops
        self._can_update = self.bucket.is_finite()
        if self._can_update:  # else all weights would become NaN, and the next checkpoint would hold them
            self.optimiser.step()
        return total_loss / count, stops

    # -- evaluation ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> list[float | None]:
        """Compute the metric of the training, validation and test nodes, or of the held-out links, without dropout. Collective.

        Returns:
            Three values, the same on every rank. None where the metric is not defined: for a set without labels, and for the
            links that are used in training.
        """
        self.model.eval()
        return self.task.evaluate()

    def _is_evaluated(self, epoch: int) -> bool:
        return (epoch + 1) % self.config.eval_every == 0 or epoch + 1 >= self.config.epochs

    def _evaluate_if_due(self, epoch: int) -> dict[str, Any]:
        if not self._is_evaluated(epoch):
            return {"eval_seconds": 0.0} | dict.fromkeys(METRICS)
        started = time.perf_counter()
        metrics = self.evaluate()
        if self.best.update(epoch, metrics[1], metrics[2], self.config.schedule.decay_every, self.task.metric):
            self.best_state = {name: value.clone() for name, value in shared_state(self.model).items()}
            self._owned_rows.keep_best()
        return {"eval_seconds": time.perf_counter() - started} | dict(zip(METRICS, metrics, strict=True))

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoints ``best.pt`` and ``last.pt`` to the run folder. Without a run folder, do nothing.

        Rank 0 writes, and the other ranks go on. Collective if ranks keep rows between epochs (stale rows, delta coding) or
        learn rows of nodes (``embed``): then every rank writes its own.
        """
        if self.run is None or self._saved_epoch == self.next_epoch:
            return
        self._saved_epoch = self.next_epoch
        self._rank_state.save(self.run.path, self.next_epoch)
        folder = checkpoint.folder(self.run.path)
        self._owned_rows.save(folder, self.next_epoch, self.best.epoch + 1, self.optimiser)
        if self.world.rank != 0:
            return
        about = {"model_config": self.model.description(), "parts_uuid": self.graph.uuid, "data": self.graph.data}
        about |= {"node_rows": self._owned_rows.digests | {checkpoint.MESSAGES: self._rank_state.digest}}
        common = about | self.task.identity()
        if self.best_state is not None:
            best = common | {"model": self.best_state, "next_epoch": self.best.epoch + 1}
            checkpoint.save(folder / checkpoint.BEST, best)
        last = common | {
            "model": shared_state(self.model),
            "optimiser": self.optimiser.state_dict(without=self.model.owned_parameters().values()),
            "next_epoch": self.next_epoch,
            "best": self.best.state(),
            "best_model": self.best_state,
            "seed": self.model.keys.seed,
            "compute": self._arithmetic(),
            "policies": {"names": self.policies.names, "state": self.policies.state()},
        }
        checkpoint.save(folder / checkpoint.LAST, last)  # written last, because it refers to the other files
        self._owned_rows.clean(folder, self.next_epoch)

    def resume(self) -> None:
        """Continue from the checkpoint ``last.pt`` of the run folder, or start anew if there is none. Call it before ``fit``.
        Collective.

        Raises:
            HpcgnnError: on every rank, without a run folder, for a damaged checkpoint, and for one of another graph, model,
                seed or task.
        """
        if self.run is None:
            raise HpcgnnError("resume() needs a run folder: make the Trainer with run=RunFolder(path)", agreed=True)
        self._is_resumed = True
        self._prepare_run()
        path = checkpoint.folder(self.run.path) / checkpoint.LAST
        if self.world.broadcast(path.exists() if self.world.rank == 0 else None, what="news of a checkpoint"):
            content = checkpoint.read(self.world, path, self.model.description(), checkpoint.Last, self.graph.data)
            with raise_on_all_ranks(self.world, f"resume from {path}"):
                wanted = {"seed": self.model.keys.seed} | self.task.identity()
                for name, value in wanted.items():
                    if content.get(name, value) != value:
                        flag = name.replace("_", "-")
                        raise HpcgnnError(
                            f"{path} was made with --{flag} {content[name]}, not {value}: resume with the same value"
                        )
                for name in ("model", "best_model"):
                    if content[name] is not None:
                        checkpoint.check_weights(content[name], shared_state(self.model), path)
                groups = [group["params"] for group in self._groups()]
                checkpoint.check_optimiser(content["optimiser"], groups, path)
            self._load(content)
        with raise_on_all_ranks(self.world, f"continue the run in {self.run.path}"):
            if self.world.rank == 0:
                self.run.keep_epochs(self.next_epoch)

    def _load(self, content: dict[str, Any]) -> None:
        """Continue from a checkpoint that fits. Collective."""
        model, run = self.model, self.run
        assert run is not None
        same_parts = checkpoint.has_parts(content, self.graph.uuid, self.graph.data)
        before = content.get("compute")
        if model.int8 is not None:
            model.int8.resume_choice(before)
        model.use_compute(resumed_compute(self.world, model.asked_compute, model.compute, before, self.device))
        model.load_state_dict(content["model"], strict=False)  # the rows of nodes are in a file of their own
        self.optimiser.load_state_dict(content["optimiser"])
        for group, wanted in zip(self.optimiser.param_groups, self._groups(), strict=True):
            group["weight_decay"] = wanted["weight_decay"]  # the optimiser's state brings the old setting
        self.best, self.best_state = Best.from_state(content["best"]), content["best_model"]
        self.next_epoch = content["next_epoch"]
        folder, best_epoch = checkpoint.folder(run.path), self.best.epoch + 1 if self.best_state is not None else 0
        self._owned_rows.load(folder, self.next_epoch, best_epoch, self.optimiser, content.get("node_rows", {}))
        self._rank_state.load(run.path, self.next_epoch, content, same_parts=same_parts)

    def _arithmetic(self) -> dict[str, str]:
        """The arithmetic with which a resumed run continues."""
        model = self.model
        chosen = {"asked": model.asked_compute, "chosen": model.compute, "hardware": hardware(self.device)}
        return chosen if model.int8 is None else chosen | {"int8": str(model.int8.uses)}

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> dict[str, Any]:
        self.model.messages.drain()
        run, records, ranks = self.run, self.records, None
        if run is not None:
            with raise_on_all_ranks(self.world, f"read the epochs in {run.path}"):
                if self.world.rank == 0:
                    records = run.records()
            ranks = self._rank_report.gathered()
        facts = {
            "metric_name": self.task.metric,
            "epochs": self.next_epoch,
            "stop_reason": self.stop_reason,
            "bits_policy": self.config.policy.bits,
            "staleness": self.config.policy.staleness,
            "compute": self.model.compute,
            "compute_asked": self.model.asked_compute,
            "label_propagation": self.config.labels.rate,
            "startup_seconds": self._startup_seconds or 0.0,
            "memory_bytes": {} if self.account is None else self.account.summary(peak_memory_bytes()),
        } | self._test_ranking()
        summary = self.world.broadcast(summarise(self.graph, self.best, records, facts), what="the summary")
        if run is not None and self.world.rank == 0:
            run.write_summary(summary)
            if ranks is not None:
                run.write_ranks(ranks)
        checks.judge(summary, self.world.rank)
        return summary

    @torch.no_grad()
    def _test_ranking(self) -> dict[str, Any]:
        """``test_ranking`` of the summary, where the task has one: with the weights of the best epoch. Collective."""
        if not isinstance(self.task, LinkTask) or not self.task.ranks_at_end or self.stop_reason == "SIGUSR1":
            return {}
        self.model.eval()
        last = {name: value.clone() for name, value in self.model.state_dict().items()}
        rows = self._owned_rows.best
        owned = {} if rows is None else dict.fromkeys(self.model.owned_parameters(), rows)
        self.model.load_state_dict(last | (self.best_state or {}) | owned)
        found = self.task.rank_test_links()
        self.model.load_state_dict(last)
        among = "all" if self.task.candidates is None else "fixed"
        return {} if found is None else {"test_ranking": found | {"candidates": among}}


def as_trainable(model: torch.nn.Module) -> Trainable:
    """A native model itself, or a wrapper of a distributed one. Collective."""
    if isinstance(model, GraphModel):
        return model
    from hpcgnn.pyg.trainable import TrainableModule  # PyG is optional, and is installed if it made the model

    return TrainableModule(model)


def _check_graph(model: Trainable, graph: LocalGraph) -> None:
    """Raise HpcgnnError for a model that was built for other nodes, or other labels, than those of ``graph``."""
    if not torch.equal(model.keys.ids.cpu(), graph.original_ids):
        raise HpcgnnError(
            "the model was built for another graph, or for this graph in another node order: build it for this one"
        )
    labelled = [each.name for each in graph.meta.node_types if each.classes]
    if (target := getattr(model, "target", "")) and labelled != [target]:
        raise HpcgnnError(
            f"the model was distributed for the labels of {target!r}, and this graph has those of {', '.join(labelled)}: "
            "give the result of graph.with_target(NAME) to both distribute and the trainer"
        )
