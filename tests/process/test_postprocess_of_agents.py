"""Check that ``postprocess`` is called with each named policy and the rows of its agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sampling import one_in
from scripted_agents import Scripted, ScriptedTurns, act, species

from parenv import AsyncWorkerPool, Policy, Stop
from parenv.errors import PolicyOutputError
from parenv.policy.policy import Action


class Scales(Policy):
    """Policy with the scale and the shape that :func:`scaled` uses."""

    def __init__(self, scale: float, shape: tuple[int, ...] = ()) -> None:
        self.scale, self.shape = scale, shape

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(act(observations), {"seen": observations[:, 2]})


def scaled(policy: Any, rows: Any) -> Any:
    """Return ``rewards * scale + 1`` with the trailing axes of the policy, or no array if the scale is 0."""
    assert "scaled" not in rows.extras
    assert (rows.extras["seen"] == rows.observations[..., 2])[rows.alive].all()
    assert len(rows.transitions()) == rows.alive.sum() > 0
    if policy.scale == 0:
        return {}
    return {"scaled": (rows.rewards * policy.scale).reshape(*rows.rewards.shape, *(1,) * len(policy.shape)) + 1}


def by_turns(agent: str, episode: Any) -> str:
    if agent.startswith("fox"):
        return "fox"
    past = episode.settings["hen"].get("past", [])
    return ["hen", "chick", *past][(episode.number + int(agent[-1])) % (2 + len(past))]


@pytest.mark.more
@pytest.mark.parametrize(
    ("kind", "num_workers", "policy_of"), one_in(2, [Scripted, ScriptedTurns], [0, 2], [species, by_turns])
)
def test_every_policy_adds_to_its_own_rows(kind: Any, num_workers: int, policy_of: Any) -> None:
    policies = {"hen": Scales(2.0), "chick": Scales(3.0, (1,)), "fox": Scales(0.0)}
    names: set[str] = set()
    with AsyncWorkerPool(
        [lambda env_id=env_id: kind(env_id) for env_id in range(3)], policies, policy_of=policy_of, postprocess=scaled,
        num_workers=num_workers, mode="sync", rollout_length=5, seed=2,
    ) as pool:  # fmt: skip
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=600))):
            for name, rows in rollout.items():  # type: ignore[attr-defined]
                if not rows.agents:
                    continue
                names.add(name)
                assert ("scaled" in rows.extras) == (name != "fox")
                if name == "chick":
                    assert (rows.extras["scaled"][..., 0] == rows.rewards * 3 + 1)[rows.alive].all()
                elif name != "fox":
                    assert (rows.extras["scaled"] == rows.rewards * 2 + 1)[rows.alive].all()
                    assert policy_of is by_turns or (rows.extras["scaled"][~rows.alive] == 0).all()
            if number == 3:
                pool.publish({"hen": Scales(2.0)}, past=[pool.freeze("hen")])
    assert names == ({"hen", "fox"} if policy_of is species else {"hen", "chick", "fox", "hen@0"})


def test_the_error_for_a_wrong_result_of_postprocess_names_the_policy() -> None:
    for returned, message in (
        (
            {"few": np.zeros(4)},
            r"policy 'hen' for agent 'hen_0': the extra 'few' of postprocess must .* got shape \(4,\)",
        ),
        ({"seen": np.zeros((4, 2))}, r"policy 'hen' for .*: policy and postprocess must .* both return \['seen'\]"),
    ):
        with pytest.raises(PolicyOutputError, match=message):
            AsyncWorkerPool(
                lambda: Scripted(1), {"hen": Scales(1.0), "fox": Scales(1.0)}, policy_of=species, num_workers=0,
                rollout_length=4, postprocess=lambda policy, rows, returned=returned: returned,
            )  # fmt: skip
