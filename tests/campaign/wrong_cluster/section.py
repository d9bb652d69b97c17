"""The section on nodes that differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from campaign.section import Case, Section, Session
from campaign.wrong_cluster import files, machines, versions
from hpcgnn.comm.thread_world import on_threads
from hpcgnn.data.convert import ConvertOptions, convert
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.partitioner import partition


def run(session: Session) -> Iterator[Case]:
    """Yield the cases; those that start no ranks come first."""
    parts = _parts(session.new_folder("graph"))
    for group in (files, versions, machines):
        yield from group.cases(session, parts)


def _parts(folder: Path) -> Path:
    """A graph in two parts, with its ``graph.h5`` beside it."""
    convert("sbm:nodes=60,blocks=2,degree=4,features=4", folder / "graph.h5", ConvertOptions(undirected=True))
    options = PartitionOptions(2, method="block", plan="hybrid")
    on_threads(1, lambda world: partition(world, folder / "graph.h5", folder / "parts.h5", options))
    return folder / "parts.h5"


SECTION = Section(
    "wrong_cluster",
    "A wrong cluster",
    "Two ranks whose nodes are not alike. One runs another version of hpcgnn, or says that its MPI library is another one, or was"
    " started by the launcher of another MPI: a failure is anything but one sentence that names it, and exit code 1. One has"
    " another instruction set (`HPCGNN_ISA`), or a clock that is hours or days off, in the time of day and since the machine was"
    " started: a failure is another bit in a loss, a metric or a weight than ranks have that are alike; where torch's own"
    " kernels take another instruction set, last bits may differ from such a run, but not between the ranks. One reads another"
    " copy of parts.h5: other parts, other values with checksums that fit, changed bytes, another plan or none, half of the"
    " file, or no file: a failure is a copy that is accepted, or a sentence that is not the same on both. A bit of each array"
    " of each part and its plan is changed: a failure is `hpcgnn check` not naming the array and the part. Files of every"
    " version that there has been are read, and those of versions that there have not been are refused.",
    run,
    share=1.5,
)
