"""Check the answers of each autoreset mode."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from gymnasium.vector import AutoresetMode

from parenv.envs.autoreset import MODES, Autoreset
from parenv.errors import ConfigurationError


def test_each_mode_of_gymnasium_has_answers() -> None:
    assert MODES.keys() == set(AutoresetMode)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_mode_is_found_by_its_name_its_value_and_the_metadata_of_an_environment(mode: AutoresetMode) -> None:
    assert Autoreset.of(mode) is Autoreset.of(mode.value) is MODES[mode]
    for declared in (mode, mode.value):
        assert Autoreset.declared_by(SimpleNamespace(metadata={"autoreset_mode": declared})) is MODES[mode]


def test_an_environment_that_declares_no_mode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r'must declare metadata\["autoreset_mode"\].*got None'):
        Autoreset.declared_by(SimpleNamespace(metadata={}))


@pytest.mark.parametrize("autoreset", MODES.values(), ids=lambda autoreset: autoreset.mode.name)
def test_an_ended_episode_is_followed_by_the_next_one_in_exactly_one_way(autoreset: Autoreset) -> None:
    assert autoreset.resets_in_step + autoreset.spends_step + autoreset.caller_resets == 1
