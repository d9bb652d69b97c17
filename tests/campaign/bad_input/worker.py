"""``python -m campaign.bad_input.worker REQUEST``: runs the section's cases in forked children, and prints a JSON line for each.

REQUEST is a JSON object with what a :class:`campaign.section.Session` has. Variables: ``CAMPAIGN_HANG_SECONDS``, in place of 30,
and ``CAMPAIGN_KEEP``, a folder that is given a copy of what each case left, damaged files with it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from campaign.bad_input.groups import GROUPS, Group, warm_up
from campaign.mutations.campaign import Campaign
from campaign.mutations.fork import Task
from campaign.section import Session

HANG_SECONDS = float(os.environ.get("CAMPAIGN_HANG_SECONDS", "30"))  # more where the machine has other work
_MUTATIONS, _SHORT_MUTATIONS = 9000, 200
_JOBS = 2


def main() -> None:
    """Run everything that the request asks for."""
    request = json.loads(sys.argv[1])
    session = Session(
        request["seed"], Path(request["folder"]), request["short"], request["deadline"], tuple(request["only"])
    )
    out = os.fdopen(os.dup(1), "w", buffering=1)  # children write to 1 what is theirs
    os.dup2(2, 1)
    warm_up()
    keep = os.environ.get("CAMPAIGN_KEEP")
    campaign = Campaign(session.folder, jobs=_JOBS, hang_seconds=HANG_SECONDS, keep=Path(keep) if keep else None)
    groups = itertools.chain.from_iterable(_of_group(group, campaign.inputs, session) for group in GROUPS)
    for told in campaign.run(itertools.chain(groups, _mutations(campaign, session))):
        out.write(json.dumps(told) + "\n")


def _of_group(group: Group, inputs: Path, session: Session) -> Iterator[Task]:
    """A group's tasks: all that have one of the words, or as many as are to run, chosen by chance."""
    tasks, most = group.tasks(inputs), group.short if session.short else group.long
    if not session.only:
        chosen = session.generator("bad_input", group.name).permutation(len(tasks))[:most]
        tasks = [tasks[place] for place in sorted(chosen)]
    yield from (task for task in tasks if session.wants(task.name))


def _mutations(campaign: Campaign, session: Session) -> Iterator[Task]:
    for number in range(_SHORT_MUTATIONS if session.short else _MUTATIONS):
        if not session.has_time():
            return
        task = campaign.mutation(session.seed, number)
        if session.wants(task.name):
            yield task


if __name__ == "__main__":
    main()
