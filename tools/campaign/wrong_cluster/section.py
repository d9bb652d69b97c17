"""The section on nodes that differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from campaign.section import Case, Section, Session
from campaign.wrong_cluster import files, machines, versions
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.partitioner import partition
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.world.thread_world import on_threads


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


_ABOUT = """\
Two ranks run on nodes that differ. The cases, and what counts as a failure:

- **Versions and launchers.** One rank has another version of hpcgnn, reports another MPI library, or was started by the
  launcher of another MPI. Anything but exit code 1 and one sentence that names the difference is a failure.
- **Instruction sets and clocks.** One rank has another instruction set (`HPCGNN_ISA`), or a clock that is wrong by hours or
  days, in the time of day and in the time since boot. A loss, metric or weight that differs in one bit from that of equal
  ranks is a failure. If torch's own kernels use another instruction set, the last bits may differ from such a run, but not
  between the ranks.
- **Copies of parts.h5.** One rank reads another copy: other parts, other values with valid checksums, changed bytes, another
  plan or none, half of the file, or no file. A copy that is accepted is a failure, and so is a sentence that differs between
  the ranks.
- **Changed bits.** One bit of each array of each part and its plan is changed. `hpcgnn check` must name the array and the
  part.
- **Format versions.** Files of every format version so far must be read, and files of unknown versions must be refused.
"""

SECTION = Section(
    "wrong_cluster",
    "A wrong cluster",
    _ABOUT,
    run,
    share=1.5,
)
