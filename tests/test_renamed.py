"""Options and statistics by their old names: they work for one release, with a warning."""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from monograph.config import make_config
from monograph.errors import ConfigError
from monograph.runtime.counts import Stats
from tests.frontend.nodes import node_model


@pytest.mark.parametrize(
    ("old", "new", "value", "target"),
    [
        ("shapes_kept", "max_cached_shapes", 3, "cpu"),
        ("features", "cpu_isa", "baseline", "cpu"),
        ("lock_arrays", "pin_inputs", False, "gpu"),
    ],
)
def test_an_old_option_sets_the_new_one_and_warns(
    old: str, new: str, value: object, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(DeprecationWarning, match=f"option {old} is now {new}"):
        config = make_config(target=target, **{old: value})
    assert getattr(config, new) == value
    monkeypatch.setenv(f"MONOGRAPH_{old.upper()}", str(value))
    with pytest.warns(DeprecationWarning, match=f"MONOGRAPH_{new.upper()}"):
        assert getattr(make_config(target=target), new) == value
    with pytest.raises(ConfigError, match=f"{old} is the old name of {new}"):
        make_config(target=target, **{old: value, new: value})


@pytest.mark.filterwarnings("error")
def test_new_options_give_no_warning() -> None:
    config = make_config(max_cached_shapes=3, cpu_isa="baseline")
    assert (config.max_cached_shapes, config.cpu_isa) == (3, "baseline")


def test_an_old_key_of_stats_gives_the_new_value_and_warns() -> None:
    session = monograph.load(node_model("Abs", [np.ones(3, np.float32)]), target="cpu")
    stats = session.stats
    with pytest.warns(DeprecationWarning, match="staged_copies"):
        assert stats["staged"] == stats["staged_copies"] == {}
    with pytest.warns(DeprecationWarning, match="pinned_input_runs"):
        assert stats["fetched"] == 0
    with pytest.raises(KeyError, match="lanes"):
        stats["lanes"]  # only a GPU has streams
    assert "staged" not in dict(stats)
    with pytest.raises(KeyError, match="other"):
        Stats()["other"]
