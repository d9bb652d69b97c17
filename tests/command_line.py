"""Command lines of hpcgnn that run in the process of a test."""

from __future__ import annotations

import json
import logging
from typing import Any

from click.testing import CliRunner, Result

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli.main import cli


def _ran(words: tuple[object, ...], *, catch_exceptions: bool) -> Result:
    """Run a command, and take back how it has set up logging: a later command in this process would have it, too."""
    logger = logging.getLogger("hpcgnn")
    handlers, level = logger.handlers, logger.level
    try:
        return CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=catch_exceptions)
    finally:
        logger.handlers = handlers
        logger.setLevel(level)


def _done(words: tuple[object, ...]) -> Result:
    result = _ran(words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def said(*words: object) -> str:
    """The output of ``hpcgnn *words`` and its notes on standard error; an error is raised."""
    return _done(words).output


def told(*words: object) -> Any:
    """The object that ``hpcgnn *words --json`` prints."""
    return json.loads(_done((*words, "--json")).stdout)


def refusal(*words: object) -> str:
    """The message of ``hpcgnn *words``, which ends with an error before it prints anything on standard output."""
    result = _ran(words, catch_exceptions=True)
    assert isinstance(result.exception, HpcgnnError | SystemExit)  # SystemExit is click's, after its message
    assert not result.stdout
    return result.stderr if isinstance(result.exception, SystemExit) else str(result.exception)
