"""What every test gets: no cache of the user's is read or written."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Compiled objects go to a directory that goes with the test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONOGRAPH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
