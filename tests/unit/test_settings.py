"""Environment variables."""

import pytest

from kt import settings
from kt.errors import UsageError


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "\u0663", "\u00b2", " 2", "9" * 5000])
def test_threads_are_a_positive_whole_number(text):
    with pytest.raises(UsageError, match="KT_THREADS="):
        settings.load({"KT_THREADS": text})
    assert settings.load({"KT_THREADS": "3"}).threads == 3
