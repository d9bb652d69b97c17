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
from hpcgnn.bit_widths import QUANTIZED_BITS

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
        if bits in QUANTIZED_BITS:
            wrong = messages.problem_of_kernels(rng, width, bits, has_noise=has_noise)
        else:
            wrong = messages.problem_of_plain_words(rng, width, bits)
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


SECTION = Section(
    name="numbers",
    title="Numbers",
    about=(
        "Trainings of three epochs with features of 1e30, 1e-30, denormals, zeros of both signs, equal rows, numbers "
        "beyond which float32 has no whole numbers, and the largest that there are; on graphs of one node, without "
        "edges, with a node that has all edges, and with fewer nodes than ranks; with one class, one training node, "
        "none for validation. Every pair of these and of the values of 15 settings (model, strategy, bits, coding, "
        "staleness, arithmetic, norm, task, ...) is in a case. Without rounded or stale messages P ranks must have "
        "the losses and gradients of one process: to 2e-4 of the largest (1e-9 in float64), or, where one process' "
        "own results move farther when its inputs move by their last bits, to 20 times that. With them, every value "
        "of every message must arrive within a step of its row's grid, and a training must be finite where one "
        "process' is. A training whose loss, messages or gradients overflow is refused with a sentence that names the"
        " epoch, the same on all ranks, and leaves its last checkpoint as it was. The kernels of messages get rows "
        "with NaN, infinities, ranges beyond float32 and subnormal ones: all backends and instruction sets must make "
        "the same bytes, within the bound. Failures are any other end: other numbers, a number that is not finite in "
        "a run that ends well, no sentence, ranks that end differently, a hang."
    ),
    run=_run,
    share=1.5,
)
