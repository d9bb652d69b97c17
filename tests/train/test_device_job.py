"""Training in a device's memory is the same training: the same bits, messages and decisions, on any mixture of devices."""

from __future__ import annotations

import pytest
import torch
from ranks import on_device
from trainings import by_turns

from hpcgnn.cli import main
from hpcgnn.nn.config import KNOWN, LayerSettings

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a GPU is tested in tests/gpu, and the stand-in goes with none"
)
MODELS = [name for name, known in KNOWN.items() if LayerSettings in known.settings]
MESSAGES = {
    "2 bits": {"bits": "2"},
    "differences": {"bits": "4", "message_coding": "delta", "dropout": 0.0},
    "uniform": {"bits": "uniform", "bits_period": 2},
    "adaqp": {"bits": "adaqp", "bits_period": 2, "group_rows": 10},
    "sylvie": {"bits": "sylvie", "staleness": "sylvie", "loss_window": 2},
    "pipeline": {"bits": "8", "staleness": "pipeline"},
    "smoothed": {"staleness": "pipeline", "smoothing": "both", "model": "gcn"},
    "pipeqs": {"bits": "pipeqs", "staleness": "pipeqs", "drift_threshold": 0.02},
    "waiting at once": {"overlap": False, "bits": "2"},
    "neighbours": {"collective": "neighbour", "bits": "2"},
    "integers": {"compute": "int8-always", "bits": "8", "model": "gcn"},
    "integers of attention": {"compute": "int8-always", "bits": "8", "model": "gat", "heads": 2},
}
KINDS = {
    "weights of edges": ("weighted", {"model": "gcn"}),
    "sparse features": ("sparse", {"input_dropout": 0.3}),
    "several labels": ("multi-label", {"metric": "micro-f1"}),
    "mean norm": ("multigraph", {"norm": "mean"}),
    "batch norm": ("multigraph", {"norm": "batch"}),
    "labels as inputs": ("multigraph", {"label_propagation": 0.5}),
    "partial attention": ("multigraph", {"model": "gat", "attention": "partial"}),
    "links": ("multigraph", {"task": "link", "metric": "hits@10"}),
    "kept input": ("multigraph", {"cache_input_aggregation": True, "model": "gcn", "input_dropout": 0.0}),
    "another order": ("multigraph", {"node_order": "rcm", "bits": "4"}),
}


@pytest.fixture
def train(device_ranks, tmp_path):
    def on(kind: str, **settings: object) -> list[list[on_device.Trained]]:
        return device_ranks(2).run(on_device.here_and_there, tmp_path, kind, settings)

    return on


def check(found: list[list[on_device.Trained]]) -> None:
    for rank, (host, device, mixed) in enumerate(found):
        assert device.same() == host.same()
        assert mixed.same() == host.same()
        assert (host.device, device.device, mixed.device) == ("cpu", "standin", ("cpu", "standin")[rank])
        assert (host.staged, device.staged, mixed.staged) == (False, True, rank == 1)


@pytest.mark.parametrize("model", by_turns(MODELS))
def test_every_model_learns_the_same_and_the_host_asks_nothing_of_the_device_in_a_step(train, model):
    # The sums of a norm over ranks pass through the host.
    found = train("multigraph", model=model, **({} if model == "sgc" else {"norm": "layer"}))
    if model in ("gin", "gine"):  # whose layers have a norm over ranks within, with sums in another order
        for host, *others in found:
            assert [each.losses for each in others] == [pytest.approx(host.losses, rel=1e-6)] * 2
        return
    check(found)
    for _, device, _ in found:
        # The first epoch computes and keeps data about matrices.
        assert device.waits[1:] == [0] * (on_device.EPOCHS - 1)
        assert device.bytes_to_host[1:] == [0] * (on_device.EPOCHS - 1)


@pytest.mark.parametrize("name", by_turns(MESSAGES))
def test_every_kind_of_message_and_policy(train, name):
    found = train("even", **MESSAGES[name])
    if name == "integers of attention":
        # The host sums integers for the gradients of attention's vectors, where devices sum the numbers that they stand for.
        for host, device, mixed in found:
            for other in (device, mixed):
                assert other.losses == pytest.approx(host.losses, rel=1e-3)
                assert other.bytes_sent == host.bytes_sent
    else:
        check(found)
    for _, device, _ in found:
        assert device.bytes_to_host[-1] < 10_000  # policies read ranges and sums, but no rows


@pytest.mark.parametrize("name", by_turns(KINDS))
def test_every_kind_of_graph_and_task(train, name):
    kind, settings = KINDS[name]
    check(train(kind, **settings))


def test_where_mpi_takes_the_devices_memory(device_ranks, tmp_path):
    for host, device in device_ranks(2).run(on_device.directly, tmp_path, {"bits": "2"}):
        assert device.same() == host.same()
        assert not device.staged


@pytest.mark.parametrize(
    "settings", [{"bits": "2"}, {"bits": "8", "staleness": "pipeline"}, {"bits": "sylvie", "loss_window": 2}], ids=str
)
def test_a_run_goes_on_on_another_device(device_ranks, tmp_path, settings):
    for unbroken, *others in device_ranks(2).run(on_device.moved_between, tmp_path, settings):
        assert others == [unbroken] * 2


def test_a_nan_that_a_device_sends_ends_all_ranks_with_one_sentence(device_ranks, tmp_path):
    said = device_ranks(2).run(on_device.trouble, tmp_path)
    assert said[0] == said[1]
    assert said[0].startswith("layer 1's boundary rows of rank 1 held NaN or infinite values in epoch 0")


def test_models_of_pygs_layers(device_ranks, tmp_path):
    for found in device_ranks(2).run(on_device.distributed, tmp_path):
        for host, device in zip(found[::2], found[1::2], strict=True):
            assert device.losses == pytest.approx(host.losses, rel=1e-5)
            assert device.device == "standin"


def test_scores_of_a_checkpoint(device_ranks, tmp_path):
    assert device_ranks(2).run(on_device.predicted, tmp_path) == [True, True]


def test_the_end_of_a_devices_memory_is_one_sentence(device_ranks):
    said = device_ranks(2).run(on_device.out_of_memory)[0]
    assert said.startswith("out of memory on the GPU (standin out of memory: tried to allocate 4000000 bytes")
    assert said.endswith("): use more ranks, a smaller --hidden, or --device cpu")


def test_all_of_what_a_gpu_says_of_its_memory_is_told_but_its_advice():
    problem = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free. "
        "Including non-PyTorch memory, this process has 78.10 GiB memory in use. Of the allocated memory 70.00 GiB is allocated "
        "by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. If that is large try setting X."
    )
    said = main._sentence_of(torch.OutOfMemoryError(problem))
    assert "Tried to allocate 2.00 GiB" in said
    assert "70.00 GiB is allocated by PyTorch" in said
    assert "try setting" not in said


class TestTriton:
    """The kernels for GPUs, run by Triton's interpreter."""

    SMALL = {"epochs": 2, "eval_every": 2, "layers": 2, "hidden": 8}  # noqa: RUF012 - not changed

    @pytest.fixture
    def train(self, device_ranks, tmp_path):
        def on(backends: list[str], **settings: object) -> list[on_device.Compared]:
            return device_ranks(2).run(on_device.with_backends, tmp_path, backends, self.SMALL | settings)

        return on

    @pytest.mark.parametrize(
        "settings", [{"model": "sage", "bits": "2"}, {"model": "gat", "heads": 2}], ids=["sage", "gat"]
    )
    def test_losses_are_those_of_native_kernels(self, train, settings):
        native, triton = (train([name] * 2, **settings) for name in ("native", "triton"))
        for mine, theirs in zip(native, triton, strict=True):
            assert theirs.losses == pytest.approx(mine.losses, rel=1e-5)

    @pytest.mark.parametrize("bits", by_turns(["1", "2", "4", "8", "16"]))
    def test_a_mixed_job_receives_the_same_bytes(self, train, bits):
        native, mixed = (train(names, bits=bits, epochs=1) for names in (["native"] * 2, ["native", "triton"]))
        for mine, theirs in zip(native, mixed, strict=True):
            assert len(mine.wires) == 5  # two layers forward, one backward, and an evaluation
            assert theirs.wires[:3] == mine.wires[:3]  # the evaluation uses weights whose last bits differ
            assert theirs.losses == pytest.approx(mine.losses, rel=1e-5)
