"""Tests of an installed hpcgnn for ReFrame (https://reframe-hpc.readthedocs.io): ranks train to a known accuracy, and seconds,
bytes and memory of an epoch are recorded, to which a site adds its references.

    reframe -c packaging/reframe/hpcgnn_checks.py -r                       # hpcgnn in PATH, mpirun here
    reframe -C SITE.py -c packaging/reframe/hpcgnn_checks.py -r -S modules=hpcgnn -S tasks=128

The launcher and the options of jobs are those of the site's configuration. Four ranks by default.
"""

from __future__ import annotations

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, performance_function, run_after, sanity_function, variable


@rfm.simple_test
class HpcgnnTraining(rfm.RunOnlyRegressionTest):
    """A training of the handwritten digits that come with scikit-learn, with exact messages and with 2 bits."""

    descr = "GraphSAGE on the digits graph"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "hpcgnn"
    bits = parameter([32, 2])
    tasks = variable(int, value=4)
    least_accuracy = variable(float, value=0.95)
    maintainers = ["hpcgnn"]
    tags = {"hpcgnn", "production"}

    @run_after("init")
    def set_commands(self) -> None:
        """Convert and partition before the ranks start."""
        self.num_tasks = self.tasks
        self.prerun_cmds = [
            "hpcgnn doctor",
            "hpcgnn convert digits digits.h5 --quiet --force",
            f"hpcgnn partition digits.h5 parts.h5 --parts {self.tasks} --quiet --force",
        ]
        self.executable_opts = [
            "train",
            "parts.h5",
            "--out",
            "run",
            "--epochs",
            "60",
            "--bits",
            str(self.bits),
            "--json",
        ]

    @sanity_function
    def has_learned(self) -> bool:
        """The test accuracy at the best validation epoch."""
        return sn.assert_ge(self.told("test_metric_at_best_val"), self.least_accuracy)

    @performance_function("s")
    def epoch_seconds_median(self) -> float:
        """Seconds of an epoch."""
        return self.told("epoch_seconds_median")

    @performance_function("B")
    def bytes_sent_per_epoch(self) -> float:
        """Bytes that all ranks send in an epoch."""
        return self.told("bytes_sent_per_epoch")

    @performance_function("B")
    def peak_memory_bytes_per_rank(self) -> float:
        """The most resident memory of a rank."""
        return self.told("peak_memory_bytes_per_rank")

    @sn.deferrable
    def told(self, name: str) -> float:
        """A number of the summary that the training prints as JSON."""
        return sn.extractsingle(rf'"{name}": ([\d.e+-]+)', self.stdout, 1, float).evaluate()
