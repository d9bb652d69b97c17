"""Mutators that replace a file by something else: nothing, a folder, a pipe, a device, a dangling link, another kind of file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from campaign.mutations.mutation import FREE, REFUSE, Mutation, Mutator, pick


def of_place(*, may_be_missing: bool, may_be_empty: bool = False) -> list[Mutator]:
    """Mutators of a place. Readers may work without this file, or with an empty one."""

    def mutate(path: Path, rng: np.random.Generator) -> Mutation:
        what = str(pick(rng, ("missing", "empty", "a folder", "a pipe", "an endless device", "a dangling link", "a loop of links",
                              "a text", "without permissions")))  # fmt: skip
        if what == "without permissions":  # a superuser can read it anyway
            path.chmod(0)
            return Mutation(f"the file is {what}", FREE)
        path.unlink()
        if what == "empty":
            path.touch()
        elif what == "a folder":
            path.mkdir()
        elif what == "a pipe":
            os.mkfifo(path)
        elif what == "an endless device":
            path.symlink_to("/dev/zero")
        elif what == "a dangling link":
            path.symlink_to("nowhere")
        elif what == "a loop of links":
            path.symlink_to(path.name)
        elif what == "a text":
            path.write_text("hello world\nthis is something else\n")
        gone = what in ("missing", "a dangling link", "a loop of links")
        is_usual = (may_be_missing and gone) or (may_be_empty and what == "empty")
        return Mutation(f"the file is {what}", FREE if is_usual else REFUSE)

    return [mutate]


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder."""
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
