"""Check named infos of several agents, in rollouts and as arguments of policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sampling import one_in
from scripted_agents import Scripted, ScriptedTurns, act, species

from parenv import AsyncWorkerPool, ConfigurationError, Policy, Stop
from parenv.policy.policy import Action

NAMES = ("total", "mask", "late")


def infos_of(observation: Any) -> dict[str, Any]:
    """Return the infos of an agent with a given observation. Only foxes get ``late``, and only in step 2."""
    total = int(observation[:4].sum())
    late = {"late": total / 2} if observation[2] == 2 and len(observation) == 5 else {}
    return {"total": total, "mask": np.arange(3) == total % 3, **late}


class InfoAgents(Scripted):
    """Environment with agents that act in parallel and have infos."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        seen, _ = super().reset(seed)
        return seen, {agent: infos_of(observation) for agent, observation in seen.items()}

    def step(self, actions: Any) -> Any:
        seen, *others, _ = super().step(actions)
        return seen, *others, {agent: infos_of(observation) for agent, observation in seen.items()}


class InfoTurns(ScriptedTurns):
    """Environment with agents that act in turn and have infos."""

    def last(self) -> Any:
        observation, *others, _ = super().last()
        return observation, *others, infos_of(observation)


def act_checked(observations: Any, mask: Any) -> Any:
    """Check that the info ``mask`` belongs to the observations, and return actions."""
    assert (mask == (np.arange(3) == observations[:, :4].sum(1, keepdims=True) % 3)).all()
    return act(observations)


class Remembers(Policy):
    """Policy with a carry, which takes only the info ``mask``."""

    def initial_carry(self, batch: int) -> Any:
        return np.zeros(batch)

    def act(self, observations: Any, carry: Any, mask: Any = None) -> Action:
        return Action(act_checked(observations, mask), {}, carry + 1)


def by_turns(agent: str, episode: Any) -> str:
    """Return the policy of an agent. Hens alternate between two policies."""
    return "fox" if agent.startswith("fox") else ("hen", "hen two")[(episode.number + int(agent[-1])) % 2]


def check(rows: Any, is_fox: bool, is_alone: bool = True) -> None:
    """Check that the infos of agents match their observations."""
    later, following = rows.next_infos, rows.next_observations()
    for step, row in np.ndindex(rows.alive.shape):
        if not rows.alive[step, row]:
            assert not is_alone or not any(np.any(values[step, row]) for values in later.values())
            continue
        now, then = infos_of(rows.observations[step, row]), infos_of(following[step, row])
        assert rows.infos["total"][step, row] == later["total"][step, row] == then["total"]
        assert (rows.infos["mask"][step, row] == now["mask"]).all()
        assert (later["mask"][step, row] == then["mask"]).all()
        if is_fox:
            assert rows.infos["late"][step, row] == then.get("late", 0)
            assert rows.infos["_late"][step, row] == ("late" in then)
    assert not rows.agents or ("late" in rows.infos) == is_fox


@pytest.mark.parametrize(
    ("kind", "num_workers", "policy_of"), one_in(2, [InfoAgents, InfoTurns], [0, 2], [species, by_turns])
)
def test_infos_match_the_observations_in_policies_and_in_rollouts(kind: Any, num_workers: int, policy_of: Any) -> None:
    policies = {"hen": act_checked, "hen two": Remembers(), "fox": Remembers()}
    makers = [lambda env_id=env_id: kind(env_id) for env_id in range(3)]
    how: Any = {"num_workers": num_workers, "mode": "sync", "rollout_length": 5, "seed": 2, "infos": NAMES}
    with AsyncWorkerPool(makers, policies, policy_of=policy_of, **how) as pool:
        for rollout in pool.rollouts(Stop(env_steps=500)):
            for name, rows in rollout.items():  # type: ignore[attr-defined]
                check(rows, name == "fox", policy_of is species)
                flat = rows.transitions()
                assert (flat.infos["total"] == flat.next_observations[:, :4].sum(1)).all()
        assert len(pool.evaluate(3)) == 3
        state = pool.state_dict()
    with AsyncWorkerPool(makers, policies, policy_of=policy_of, **how) as pool:
        pool.load_state_dict(state)
        check(next(pool.rollouts())["fox"], True)  # type: ignore[index]


@pytest.mark.parametrize("kind", [InfoAgents, InfoTurns])
def test_an_info_with_a_default_exists_for_all_agents(kind: Any) -> None:
    policies, infos = {"hen": act_checked, "fox": act_checked}, {"mask": None, "late": -1.0}
    with AsyncWorkerPool([lambda: kind(0)], policies, policy_of=species, infos=infos, num_workers=0) as pool:
        rollout: Any = next(pool.rollouts())
    for name, rows in rollout.items():
        absent = rows.alive & ~rows.infos["_late"]
        assert absent.any()
        assert (rows.infos["late"][absent] == -1.0).all()
        assert rows.infos["_late"].any() == (name == "fox")


@pytest.mark.parametrize("kind", [InfoAgents, InfoTurns])
def test_postprocess_gets_the_infos_of_the_agents(kind: Any) -> None:
    def doubled(policy: Any, rows: Any) -> Any:
        return {"doubled": rows.infos["total"] * 2}

    how: Any = {"infos": ("total", "mask"), "num_workers": 0, "rollout_length": 5, "postprocess": doubled}
    with AsyncWorkerPool([lambda: kind(0)], {"hen": act_checked, "fox": act_checked}, policy_of=species, **how) as pool:
        rollout: Any = next(pool.rollouts())
    for rows in rollout.values():
        assert (rows.extras["doubled"] == rows.infos["total"] * 2)[rows.alive].all()


def test_the_error_for_an_info_that_no_agent_has_lists_the_others() -> None:
    with pytest.raises(ConfigurationError, match=r"got 'rank', but .* returned only \['late', 'mask'"):
        AsyncWorkerPool(
            lambda: InfoAgents(0), {"hen": act_checked, "fox": act_checked}, policy_of=species, infos=("mask", "rank"),
            num_workers=0,
        )  # fmt: skip


def test_infos_of_a_gymnasium_environment_belong_to_its_only_agent() -> None:
    import gymnasium as gym

    class Counted(gym.wrappers.TransformObservation):  # type: ignore[type-arg]
        def __init__(self) -> None:
            super().__init__(gym.make("CartPole-v1"), lambda seen: seen, None)
            self.count = 0

        def step(self, action: Any) -> Any:
            self.count += 1
            seen, *others, info = super().step(action)
            return seen, *others, {**info, "count": self.count}

    def lean(observations: Any) -> Any:
        return observations[:, 2] > 0

    with AsyncWorkerPool(Counted, {"all": lean}, infos=("count",), num_workers=0, rollout_length=50) as pool:
        assert next(pool.rollouts())["all"].infos["count"][:, 0].tolist() == list(range(1, 51))  # type: ignore[index]
