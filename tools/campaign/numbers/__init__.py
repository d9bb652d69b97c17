"""Extreme numbers: trainings on several ranks compared with one process, and the kernels of messages compared with each other.

graphs      unusual graphs, features and labels
settings    combinations of settings: every pair of values occurs
ranks       a training that returns all its results
training    P ranks compared with one process
verdicts    the differences that are allowed
messages    unusual rows through all kernels of messages
under_mpi   some of the trainings under mpirun (program), and the command with numbers that overflow
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from campaign.numbers import messages, training, under_mpi
from campaign.section import FAILED, RIGHT, Case, Section, Session

_KERNELS = "kernels of messages"
_CASES = {training.ALIKE: 300, training.ROUNDED: 300}
_SHORT_CASES = {training.ALIKE: 12, training.ROUNDED: 12}


def _kernels(session: Session) -> Iterator[Case]:
    chosen = list(messages.kernel_cases())
    if session.short:
        order = session.generator(_KERNELS).permutation(len(chosen))[:6]
        chosen = [chosen[number] for number in order]
    for width, bits, has_noise in chosen:
        name = f"{width} columns, {bits} bits" + (" to centres" if not has_noise else "")
        if not session.wants(f"{_KERNELS}: {name}"):
            continue
        started, rng = time.monotonic(), session.generator(_KERNELS, width, bits, has_noise)
        wrong = messages.problem_of_kernels(rng, width, bits, has_noise=has_noise)
        yield Case(_KERNELS, name, FAILED if wrong else RIGHT, wrong, time.monotonic() - started)


def _run(session: Session) -> Iterator[Case]:
    notes: dict[str, int] = {}
    logging.disable(logging.WARNING)  # warnings of trainings that learn nothing in an epoch, for instance
    try:
        for case in _cases(session):
            if case.said in training.NOTES:
                notes[case.said] = notes.get(case.said, 0) + 1
            yield case
    finally:
        logging.disable(logging.NOTSET)
    for note, count in sorted(notes.items()):
        session.add_fact(f"trainings compared where {note}", count)
    session.add_fact("backends and instruction sets of the kernels", ", ".join(messages.ways()))


def _cases(session: Session) -> Iterator[Case]:
    yield from _kernels(session)
    if not session.short:
        yield from under_mpi.commands(session)
        yield from under_mpi.trainings(session, 40)
    for group, count in (_SHORT_CASES if session.short else _CASES).items():
        yield from training.run(session, group, count)


_ABOUT = """\
Trainings of three epochs get unusual inputs:

- features of 1e30 and 1e-30, denormal numbers, zeros of both signs, equal rows, integers too large for float32, and the largest
  float32 numbers;
- graphs with one node, without edges, with a node that has all edges, and with fewer nodes than ranks;
- one class, one training node, and no validation nodes.

The cases cover every pair of these inputs and of the values of 15 settings (model, strategy, bit-width, coding, staleness,
arithmetic, normalisation, task, and others). They must pass these checks:

- With float32 messages and without stale rows, P ranks must have the losses and gradients of one process. The tolerance is
  2e-4 of the largest value (1e-9 in float64). If a change of the last bits of the inputs changes the results of one process
  by more, the tolerance is 20 times that change.
- With rounded or stale messages, every value of every message must be within one step of its row's grid, and a training must
  stay finite where that of one process does.
- A training whose loss, messages or gradients overflow must end with a sentence that names the epoch, the same on all ranks,
  and must leave its last checkpoint unchanged.
- The message kernels get rows with NaN, infinities, subnormal numbers and ranges beyond float32: all backends and instruction
  sets must produce the same bytes, within the bound.

Every other end is a failure: different numbers, a non-finite number in a run that ends normally, a missing sentence, ranks
that end differently, or a hang.
"""

SECTION = Section(
    name="numbers",
    title="Numbers",
    about=_ABOUT,
    run=_run,
    share=1.5,
)
