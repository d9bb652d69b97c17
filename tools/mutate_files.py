"""Damage valid files one at a time and in a seeded way, give each to who reads it, and list what does not end as it should.

usage: mutate_files.py [--seed 0] [--count 2000] [--readers WORD ...] [--without WORD ...] [--jobs 2] [--out FILE.jsonl]
       mutate_files.py --replay SEED:NUMBER [--keep FOLDER]

A mutated file may be refused, with one sentence on stderr that names it. It may be accepted where it is a valid file: with the
result of the file as it was, or of the other graph that it now says, which a second reader of text formats tells. All else is
a defect: a traceback, a signal, a deadline that passed, memory above twice the file (beside what the valid file takes, and
32 MiB), what the schema forbids accepted in silence, and files left behind. What a mutation is follows from seed and number
alone, whatever is chosen with --readers. Exit code 1 where there is a defect.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # before torch: children are forked

import argparse
import gc
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "mutations"))

import numpy as np
import torch
from cases import Case, all_cases
from fork import ForkServer, Outcome, Task, prepare
from inputs import make_inputs
from readers import warm_up
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from verdicts import DEFECTS, defects

_TABLE_COLUMNS = 180  # also where the output is a file


class Campaign:
    """Mutations of the valid files in ``folder``, which are made first."""

    def __init__(self, folder: Path, *, jobs: int, deadline_seconds: float) -> None:
        torch.set_num_threads(1)
        self.inputs, scratch = folder / "inputs", folder / "scratch"
        for made in (self.inputs, scratch):
            made.mkdir()
        warm_up(self.inputs)
        gc.collect()
        gc.freeze()  # or each child's collector would copy all pages of what is imported
        self.server = ForkServer(self.inputs, scratch, jobs=jobs, deadline_seconds=deadline_seconds)
        self.server.call(lambda: make_inputs(self.inputs))
        self.cases = all_cases(self.inputs)
        self.valid: dict[int, Outcome] = {}

    def check_valid(self, cases: list[Case]) -> None:
        """Run readers on the files as they are: what they make is what others are compared with."""
        for task, outcome in self.server.run_all(Task(case, self.cases.index(case), None) for case in cases):
            if outcome.exit != 0:
                raise SystemExit(f"{task.case.name}: the valid file is refused ({outcome.exit}): {outcome.stderr}")
            self.valid[task.number] = outcome

    def case_of(self, seed: int, number: int) -> Case:
        """Which case a mutation is of."""
        weights = np.array([case.weight for case in self.cases], float)
        return self.cases[np.random.default_rng([seed, number]).choice(len(self.cases), p=weights / weights.sum())]

    def run(self, seed: int, numbers: list[int]) -> Iterator[dict[str, Any]]:
        """What became of each of these mutations, in the order in which they end."""
        for task, outcome in self.server.run_all(Task(self.case_of(seed, n), n, seed) for n in numbers):
            valid = self.valid[self.cases.index(task.case)]
            yield {
                "mutation": f"{seed}:{task.number}",
                "case": task.case.name,
                "what": outcome.mutation.get("what"),
                "expects": outcome.mutation.get("expects"),
                "exit": outcome.exit,
                "same": outcome.exit == 0 and outcome.digest == valid.digest,
                "defects": defects(task.case, outcome, valid),
                "said": outcome.stderr.strip()[-2000:],
                "seconds": round(outcome.seconds, 3),
                "mebibytes": round(outcome.resident_bytes / (1 << 20), 1),
            }

    def numbers(self, seed: int, count: int, words: list[str], without: list[str]) -> list[int]:
        """The first ``count`` mutations of cases that have one of the words in their names, and none of the others."""
        found: list[int] = []
        number = 0
        while len(found) < count:
            name = self.case_of(seed, number).name
            if (not words or any(word in name for word in words)) and not any(word in name for word in without):
                found.append(number)
            number += 1
        return found


def main() -> None:
    """Run a campaign, or one of its mutations again."""
    arguments = _parse()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        campaign = Campaign(Path(folder), jobs=arguments.jobs, deadline_seconds=arguments.deadline)
        if arguments.replay:
            seed, number = map(int, arguments.replay.split(":"))
            numbers = [number]
            if arguments.keep:
                arguments.keep.mkdir(parents=True)
                prepare(Task(campaign.case_of(seed, number), number, seed), campaign.inputs, arguments.keep)
        else:
            seed, numbers = (
                arguments.seed,
                campaign.numbers(arguments.seed, arguments.count, arguments.readers, arguments.without),
            )
        campaign.check_valid(list(dict.fromkeys(campaign.case_of(seed, number) for number in numbers)))
        results = []
        with _progress(console) as bar, arguments.out.open("w") as out:
            shown = bar.add_task("mutations", total=len(numbers), defects=0)
            for result in campaign.run(seed, numbers):
                results.append(result)
                out.write(json.dumps(result) + "\n")
                out.flush()
                bar.update(shown, advance=1, defects=sum(bool(each["defects"]) for each in results))
    if arguments.replay:
        print(json.dumps(results[0], indent=1))
    _table(results, Console(width=_TABLE_COLUMNS))
    sys.exit(any(result["defects"] for result in results))


def _progress(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[defects]} defects"), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not sys.stderr.isatty())


def _table(results: list[dict[str, Any]], console: Console) -> None:
    table = Table(title=f"{len(results):,} mutations", title_justify="left", box=box.SIMPLE)
    columns = ("mutations", "refused", "same result", "valid other", *DEFECTS)
    for name in ("file / reader", *columns):
        table.add_column(name, justify="left" if name == "file / reader" else "right")
    total: Counter[str] = Counter()
    for case in sorted({result["case"] for result in results}):
        counts = _counts([result for result in results if result["case"] == case])
        total += counts
        table.add_row(case, *(str(counts[name] or "") for name in columns))
    table.add_section()
    table.add_row("all", *(str(total[name] or "") for name in columns))
    console.print(table, crop=False)


def _counts(results: list[dict[str, Any]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for result in results:
        counts["mutations"] += 1
        counts.update(result["defects"].keys())
        if not result["defects"]:
            counts["refused" if result["exit"] else "same result" if result["same"] else "valid other"] += 1
    return counts


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument(
        "--readers", nargs="*", default=[], help="words, one of which is in the name of the file or the reader"
    )
    parser.add_argument("--without", nargs="*", default=[], help="words that are in none of them")
    parser.add_argument("--jobs", type=int, default=2, help="readers at a time")
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds after which a reader hangs")
    parser.add_argument("--out", type=Path, default=Path("mutations.jsonl"), help="a JSON line a mutation")
    parser.add_argument("--replay", metavar="SEED:NUMBER", help="run one mutation again, and show all of it")
    parser.add_argument("--keep", type=Path, help="with --replay: where to put the damaged files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
