"""``python -m campaign.bad_input.worker REQUEST``: runs the section's cases in forked children, and prints a JSON line for
each.

REQUEST is a JSON object with the fields of a :class:`campaign.section.Session`. Variables: ``CAMPAIGN_HANG_SECONDS``, which
replaces 30, and ``CAMPAIGN_KEEP``, a folder that gets a copy of the files of each case, including damaged ones.
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

HANG_SECONDS = float(os.environ.get("CAMPAIGN_HANG_SECONDS", "30"))  # set it higher if the machine does other work
_MUTATIONS, _SHORT_MUTATIONS = 9000, 200
_JOBS = 2


def main() -> None:
    """Run all cases of the request."""
    request = json.loads(sys.argv[1])
    session = Session(
        request["seed"], Path(request["folder"]), request["short"], request["deadline"], tuple(request["only"])
    )
    out = os.fdopen(os.dup(1), "w", buffering=1)  # the output of children goes to 1
    os.dup2(2, 1)
    warm_up()
    keep = os.environ.get("CAMPAIGN_KEEP")
    campaign = Campaign(session.folder, jobs=_JOBS, hang_seconds=HANG_SECONDS, keep=Path(keep) if keep else None)
    groups = itertools.chain.from_iterable(_of_group(group, campaign.inputs, session) for group in GROUPS)
    for told in campaign.run(itertools.chain(groups, _mutations(campaign, session))):
        out.write(json.dumps(told) + "\n")


def _of_group(group: Group, inputs: Path, session: Session) -> Iterator[Task]:
    """The tasks of a group: those with one of the words in their names, or the wanted number of random ones."""
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
