from __future__ import annotations

import pytest

from keepwarm.core.exit_status import describe_exit


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit status 0"),
        (7, "exit status 7"),
        (-15, "killed by SIGTERM"),
        (-9, "killed by SIGKILL (out of memory?)"),
        (-40, "killed by signal 40"),
    ],
)
def test_a_status_in_words(status: int, words: str) -> None:
    assert describe_exit(status) == words
