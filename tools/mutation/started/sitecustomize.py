"""Each Python that a test starts imports this module first, so that ranks have the change of the test's own process."""

import os

if os.environ.get("HPCGNN_MUTATION"):
    from mutation import change

    change.install(os.environ["HPCGNN_MUTATION"])
