"""Check named policies: each has its own versions, settings and recurrent state, and versions can be frozen."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from policies import lean
from scripted_agents import (
    AGENTS,
    Counter,
    Ledger,
    Scripted,
    ScriptedTurns,
    act,
    delivered,
    named_pool,
    opponents,
    plain_loop,
    plain_turns,
    scripted,
    species,
)

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    Policy,
    Stop,
    TorchPolicy,
    WorkerOptions,
    load_checkpoint,
    save_checkpoint,
)
from parenv.errors import ObservationError, PolicyOutputError
from parenv.policy.policy import Action
from parenv.worker.writing import RolloutWriter

WAYS = [Scripted, ScriptedTurns]


NO_POOL = {"num_workers": 0, "rollout_length": 4}
TWO = {"hen": act, "fox": act}


class Scorer(torch.nn.Module):
    """Module that returns its weights with each action."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), value))
        self.register_buffer("count", torch.tensor(int(value)))

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch = len(observations)
        self.count += 0
        return torch.zeros(batch, dtype=torch.int64), self.weight.expand(batch, 3), self.count.expand(batch)


def scorer(value: float = 0.0, name: str = "weight") -> TorchPolicy:
    return TorchPolicy(Scorer(value), "act", ("actions", name, "count"))


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.more)])
def test_one_policy_object_under_two_names_has_separate_versions(num_workers: int) -> None:
    both = scorer()
    with named_pool(2, hen=both, fox=both, num_workers=num_workers, mode="sync", rollout_length=4) as pool:
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=80)), start=1):
            for rows in rollout.values():  # type: ignore[attr-defined]
                assert (rows.extras["weight"][rows.alive] == rows.policy_version).all()
                assert (rows.extras["count"][rows.alive] == rows.policy_version).all()
            name = "hen" if number % 3 else "fox"
            pool.publish({name: scorer(float(pool.policy_versions[name] + 1))})
        assert min(pool.policy_versions.values()) > 1


def test_gradients_of_policies_that_share_parameters_are_refused() -> None:
    both, how = scorer(), {"parallelism": "gradient", "loss_fn": act}
    other = TorchPolicy(Scorer(), "act", ("actions", "weight", "count"))
    other.module.weight = both.module.weight
    for fox in (both, other):
        with pytest.raises(
            ConfigurationError, match=r"policies must not share parameters .* 'hen' and 'fox' do\. .* copy of its own"
        ):
            AsyncWorkerPool(scripted(2), {"hen": both, "fox": fox}, policy_of=species, **NO_POOL, **how)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_policy_has_versions_of_its_own(mode: Any, num_workers: int) -> None:
    hen, fox = scorer(), scorer(100.0)
    published = {"hen": 0, "fox": 0}
    with named_pool(4, hen=hen, fox=fox, num_workers=num_workers, mode=mode, rollout_length=3) as pool:
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=400)), start=1):
            for name, first in (("hen", 0.0), ("fox", 100.0)):
                rows = rollout[name]
                alive = rows.alive
                assert (rows.extras["weight"][alive] == first + rows.policy_version).all()
                assert (rows.extras["count"][alive] == first + rows.policy_version).all()
                assert rows.policy_lag == published[name] - rows.policy_version
                assert (rows.first_versions == rows.policy_version).all()
            with torch.no_grad():
                fox.module.weight += 1
                fox.module.count += 1
            given: dict[str, Any] = {"fox": fox}
            if number % 3 == 0:
                given["hen"] = scorer(float(published["hen"] + 1)).module.state_dict()
            assert pool.publish(given) == number
            published = {name: count + (name in given) for name, count in published.items()}
            assert pool.policy_versions == published
    assert pool.statistics().policy_version == number


@pytest.mark.one_in(2)
@pytest.mark.parametrize("on_stale", ["pace", "drop"])
def test_the_lag_of_every_policy_stays_within_the_bound(on_stale: Any) -> None:
    with named_pool(3, num_workers=3, rollout_length=3, max_policy_lag=1, on_stale=on_stale) as pool:
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=600))):
            assert all(rows.policy_lag <= 1 for rows in rollout.values())  # type: ignore[attr-defined]
            pool.publish({"hen": act} if number % 2 else TWO)
        assert pool.policy_versions["fox"] < pool.policy_versions["hen"]


@pytest.mark.parametrize("kind", WAYS)
def test_a_carry_lasts_across_rollouts_and_is_reset_with_each_life_of_an_agent(kind: Any) -> None:
    lived: dict[tuple[int, str], int] = {}
    with named_pool(3, kind, hen=Counter(), fox=Counter(), rollout_length=5) as pool:
        for rollout in pool.rollouts(Stop(env_steps=1000)):
            for rows in rollout.values():
                begun = rows.initial_carry["steps"]
                for row, key in enumerate(zip(rows.env_ids.tolist(), rows.agents, strict=True)):
                    steps = np.flatnonzero(rows.alive[:, row])
                    if len(steps) and steps[0] == 0 and key in lived:
                        assert begun[row] == rows.extras["steps"][0, row]
                    for step in steps:
                        assert rows.extras["steps"][step, row] == lived.get(key, 0)
                        ended = rows.terminated[step, row] or rows.truncated[step, row]
                        lived[key] = 0 if ended else lived.get(key, 0) + 1


@pytest.mark.parametrize("kind", WAYS)
def test_returns_and_lengths_are_counted_per_life_of_an_agent_and_per_episode(kind: Any) -> None:
    sums: dict[Any, list[float]] = {}
    whole: dict[Any, float] = {}
    audited = 0
    with named_pool(3, kind, rollout_length=5) as pool:
        for rollout in pool.rollouts(Stop(env_steps=1500)):
            for rows in rollout.values():
                found = []
                for step in range(5):
                    for row, key in enumerate(zip(rows.env_ids.tolist(), rows.agents, strict=True)):
                        if not rows.alive[step, row]:
                            continue
                        sums.setdefault(key, []).append(float(rows.rewards[step, row]))
                        if rows.terminated[step, row] or rows.truncated[step, row]:
                            mine = sums.pop(key)
                            found.append((sum(mine), len(mine), *key))
                            episode = key[0], int(rows.observations[step, row, 1])
                            whole[episode] = whole.get(episode, 0.0) + sum(mine)
                said = rows.episodes
                columns = (said.returns.tolist(), said.lengths.tolist(), said.env_ids.tolist(), said.agents)
                assert sorted(zip(*columns, strict=True)) == sorted(found)
                audited += len(found)
            for total, env_id, number in zip(
                rollout.episodes.returns, rollout.episodes.env_ids, rollout.episodes.numbers, strict=True
            ):
                assert whole.pop((env_id, number)) == pytest.approx(total)
    assert audited > 50


def test_transitions_and_returns_leave_out_absent_agents() -> None:
    from parenv.returns import discounted_returns

    with named_pool(3, ScriptedTurns, rollout_length=9) as pool:
        for rollout in pool.rollouts(Stop(env_steps=400)):
            rows = rollout["hen"]
            flat = rows.transitions()
            assert len(flat) == rows.num_steps == int(rows.alive.sum()) < rows.alive.size
            assert (flat.observations[:, 2] <= flat.next_observations[:, 2]).all()
            following = rows.next_values(np.zeros(rows.alive.shape), lambda seen: seen[:, 2] + 1.0)
            found = discounted_returns(
                np.zeros(rows.alive.shape), following, rows.terminated, rows.truncated, gamma=0.5, alive=rows.alive
            )
            assert (found[~rows.alive] == 0).all()
            ends = rows.terminated | rows.truncated
            last = rows.alive & ~np.vstack([rows.alive[1:], np.zeros((1, len(rows.agents)), bool)]) & ~ends
            assert (found[last] == 0.5 * (rows.next_observations()[last][:, 2] + 1.0)).all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_frozen_version_plays_on_as_it_was(kind: Any, num_workers: int) -> None:
    hen, fox = scorer(), scorer(100.0)
    seen: set[str] = set()
    # A released version is kept until no episode of a slow worker uses it, so max_frozen must be high.
    with named_pool(
        4, kind, hen=hen, fox=fox, policy_of=opponents, num_workers=num_workers, rollout_length=6, max_frozen=100
    ) as pool:
        past: list[str] = []
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=3000)), start=1):
            for name, rows in rollout.items():
                if name == "fox":
                    continue
                seen.add(name)
                wanted = int(name.split("@")[1]) if "@" in name else rows.first_versions
                weights = rows.extras["weight"][..., 0]
                if "@" in name:
                    assert (weights[rows.alive] == wanted).all()
                    assert (rows.policy_version, rows.policy_lag) == (wanted, 0)
                else:
                    late = np.where(np.arange(6)[:, None] == 0, wanted, rows.policy_version)
                    assert (weights == late)[rows.alive].all()
            if number % 4 == 0:
                past.append(pool.freeze("hen"))
                if len(past) > 3:
                    pool.release(past.pop(0))
            with torch.no_grad():
                hen.module.weight += 1
            pool.publish({"hen": hen}, past=past)
        kept = pool.statistics().frozen_policies
        assert set(past) <= set(kept)
        assert all(nbytes >= 20 for nbytes in kept.values())
    assert len(seen) > 5


def test_a_released_version_makes_room_when_no_episode_uses_it() -> None:
    hen = scorer()
    with named_pool(
        2, hen=hen, fox=scorer(), policy_of=opponents, num_workers=1, rollout_length=4, max_frozen=1
    ) as pool:
        stream = pool.rollouts()
        name = pool.freeze("hen")
        assert name == "hen@0" == pool.freeze("hen")
        pool.publish({"hen": hen}, past=[name])
        with pytest.raises(ConfigurationError, match=r"max_frozen=1 versions .* Release one of \['hen@0'\]"):
            pool.freeze("hen")
        for _ in range(5):
            next(stream)
        pool.publish({"hen": hen}, past=[])
        pool.release(name)
        with pytest.raises(ConfigurationError, match=r"must get one of the frozen versions \[\], got 'hen@0'"):
            pool.release(name)
        for _ in range(50):
            next(stream)
            if not pool.statistics().frozen_policies:
                break
        assert pool.freeze("hen") == "hen@2"


def test_a_policy_without_a_module_can_be_frozen_too() -> None:
    class Numbered(Policy):
        """Policy that returns its number with each action."""

        def __init__(self, number: int) -> None:
            self.number = number

        def act(self, observations: Any, carry: Any) -> Action:
            return Action(act(observations), {"number": np.full(len(observations), self.number)})

    with named_pool(3, hen=Numbered(0), fox=Numbered(0), policy_of=opponents, num_workers=1, rollout_length=4) as pool:
        past: list[str] = []
        names: set[str] = set()
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=600)), start=1):
            for name, rows in rollout.items():
                names.add(name)
                assert (rows.extras["number"][rows.alive] == rows.policy_version).all(), name
            if number in (1, 5):
                past.append(pool.freeze("hen"))
            pool.publish({"hen": Numbered(number)}, past=past)
    assert {"hen", "hen@0", "hen@4"} <= names


@pytest.mark.parametrize("kind", WAYS)
def test_runs_with_one_seed_are_bitwise_identical(kind: Any) -> None:
    def run() -> Iterator[Any]:
        torch.manual_seed(0)
        with named_pool(
            4, kind, hen=Counter(), policy_of=opponents, num_workers=2, mode="sync", seed=3, rollout_length=6
        ) as pool:
            for number, rollout in enumerate(pool.rollouts(Stop(env_steps=600))):
                yield all_of(rollout)
                past = [pool.freeze("hen")] if number == 3 else []
                pool.publish({"hen": Counter()}, past=past)

    assert list(run()) == list(run())


def all_of(rollout: Any) -> Any:
    return [
        (name, rows.observations.tobytes(), rows.actions.tobytes(), rows.rewards.tobytes(), rows.agents,
         rows.alive.tobytes(), {name: extra.tobytes() for name, extra in rows.extras.items()},
         rows.policy_version, rows.first_versions.tolist(), rows.restarted.tolist(), rows.episodes.returns.tolist(),
         None if rows.initial_carry is None else rows.initial_carry["steps"].tolist())
        for name, rows in rollout.items()
    ]  # fmt: skip


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", WAYS)
def test_a_run_with_frozen_opponents_continues_bitwise_from_its_state(
    kind: Any, num_workers: int, tmp_path: Path
) -> None:
    def pool() -> AsyncWorkerPool:
        policies = {"hen": Counter(), "fox": scorer(7.0)}
        how: Any = {"num_workers": num_workers, "mode": "sync", "seed": 3, "rollout_length": 6}
        return AsyncWorkerPool(scripted(4, kind), policies, policy_of=opponents, **how)

    def go_on(pool: AsyncWorkerPool, rounds: range) -> list[Any]:
        found, stream = [], pool.rollouts()
        for number in rounds:
            found.append(all_of(next(stream)))
            past = [pool.freeze("hen"), pool.freeze("fox")][:1] if number % 5 == 2 else []
            pool.publish({"hen": Counter()}, past=past)
        return found

    path = tmp_path / "state"
    with pool() as first:
        go_on(first, range(13))
        save_checkpoint(path, first.state_dict())
        wanted = go_on(first, range(13, 30))
    with pool() as second:
        assert second.load_state_dict(load_checkpoint(path)) == []
        assert second.policy_versions == {"hen": 13, "fox": 0}
        assert len(second.statistics().frozen_policies) == 4
        assert go_on(second, range(13, 30)) == wanted


def test_the_state_of_a_pool_with_other_policies_is_refused() -> None:
    def by_agent(agent: str, episode: Any) -> str:
        return "cat" if "fox" in agent else "dog"

    how: Any = {"num_workers": 0, "seed": 1, "num_envs": 1}
    pools: dict[str, Callable[[], AsyncWorkerPool]] = {
        r"the policies \['hen', 'fox'\]": lambda: AsyncWorkerPool(scripted(1), TWO, policy_of=species, **how),
        r"the policies \['cat', 'dog'\]": lambda: AsyncWorkerPool(
            scripted(1), {"cat": act, "dog": act}, policy_of=by_agent, **how
        ),
        "one policy without a name": lambda: AsyncWorkerPool("CartPole-v1", lean, **how),
    }
    states = {}
    for words, make in pools.items():
        with make() as pool:
            states[words] = pool.state_dict()
    for mine, make in pools.items():
        for others in pools.keys() - {mine}:
            message = f"the state must come from a pool with {mine}, got one with {others}"
            with make() as pool, pytest.raises(ConfigurationError, match=message):
                pool.load_state_dict(states[others])


def test_environments_without_get_state_begin_a_new_episode() -> None:
    class Stateless(Scripted):
        get_state = property()

    def pool() -> AsyncWorkerPool:
        makers = [lambda env_id=env_id: (Scripted if env_id else Stateless)(env_id) for env_id in range(3)]
        return AsyncWorkerPool(makers, TWO, policy_of=species, num_workers=1, mode="sync", seed=3, rollout_length=5)

    with pool() as first:
        next(first.rollouts())
        state = first.state_dict()
    with pool() as second:
        said = second.load_state_dict(state)
        assert said == ["the episode of env_id 0, whose environment has no get_state and begins a new episode"]
        rollout: Any = next(second.rollouts())
        for rows in rollout.values():
            assert rows.restarted.tolist() == (rows.env_ids == 0).tolist()
            found: Ledger = {}
            delivered(rows, found)
            for (env_id, agent), lived_on in found.items():
                assert all(step.observation[:1] == [env_id] for step in lived_on), agent


@pytest.mark.more
@pytest.mark.parametrize("kind", WAYS)
def test_a_recorded_run_can_be_replayed(kind: Any, tmp_path: Path) -> None:
    def run(**how: Any) -> None:
        with named_pool(4, kind, hen=Counter(), policy_of=opponents, num_workers=2, rollout_length=6, **how) as pool:
            for _ in pool.rollouts(Stop(env_steps=600)):
                pool.publish({"hen": Counter()})

    run(record=tmp_path / "run", seed=4)
    run(replay=tmp_path / "run")


@pytest.mark.more
@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_evaluation_plays_whole_episodes_of_all_agents_and_does_not_disturb_rollouts(
    kind: Any, num_workers: int
) -> None:
    found: Ledger = {}
    with named_pool(4, kind, num_workers=num_workers, mode="sync", rollout_length=6) as pool:
        for rollout in pool.rollouts(Stop(env_steps=600)):
            for rows in rollout.values():
                delivered(rows, found)
            episodes: Any = pool.evaluate(10)
            each = [0, 0, 0, 1, 1, 1, 2, 2, 3, 3] if num_workers == 0 else [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
            assert sorted(episodes.env_ids.tolist()) == each
            parts = episodes["hen"].returns.sum() + episodes["fox"].returns.sum()
            assert parts == pytest.approx(episodes.returns.sum())
            assert set(episodes["fox"].agents) == {"fox_0", "fox_1"}
    if kind is Scripted:
        for env_id in range(4):
            assert {k: v for k, v in found.items() if k[0] == env_id} == plain_loop(env_id, 150)[0]


def obey(orders: Path, where: str) -> None:
    """Fail if the file of orders requests a failure at this place, and remove the file, so that it happens once."""
    try:
        wanted, how = orders.read_text().split()
    except (FileNotFoundError, ValueError):
        return
    if wanted == where:
        orders.unlink()
        if how == "raise":
            raise RuntimeError("the motor is hot")
        os.kill(os.getpid(), signal.SIGKILL)


class Doom:
    """Mixin that makes the environment with env_id 3 follow orders to fail in a step or in a reset."""

    orders: Path

    def reset(self, seed: int | None = None) -> Any:
        if self.env_id == 3:  # type: ignore[attr-defined]
            obey(self.orders, "reset")
        return super().reset(seed)  # type: ignore[misc]

    def step(self, action: Any) -> Any:
        if self.env_id == 3:  # type: ignore[attr-defined]
            obey(self.orders, "step")
        return super().step(action)  # type: ignore[misc]


class Doomed(Doom, Scripted):
    pass


class DoomedTurns(Doom, ScriptedTurns):
    pass


def doomed(kind: Any, env_id: int, orders: Path) -> Any:
    env = kind(env_id)
    env.orders = orders
    return env


def lived(kind: Any, env_id: int, env_steps: int) -> Ledger:
    return plain_turns(env_id, env_steps) if issubclass(kind, ScriptedTurns) else plain_loop(env_id, env_steps)[0]


PLACES = [
    ("step", "kill"),
    ("step", "raise"),
    ("reset", "kill"),
    ("reset", "raise"),
    ("act", "kill"),
    ("commit", "kill"),
]
stamp = RolloutWriter.stamp


def set_up(orders: Path, worker: int) -> None:
    """Make worker 1 follow orders to fail while it writes a commit record, between two fields."""
    if worker == 1:

        def stamp_obediently(writer: RolloutWriter, **commit: float) -> None:
            fields = list(commit)
            stamp(writer, **{name: commit[name] for name in fields[:4]})
            obey(orders, "commit")
            stamp(writer, **{name: commit[name] for name in fields[4:]})

        RolloutWriter.stamp = stamp_obediently  # type: ignore[assignment]


@pytest.mark.one_in(9)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", [Doomed, DoomedTurns])
@pytest.mark.parametrize(("where", "how"), PLACES)
def test_after_any_failure_of_a_worker_each_delivered_transition_arrives_once(
    kind: Any, mode: Any, where: str, how: str, tmp_path: Path
) -> None:
    orders = tmp_path / "orders"

    def hen(observations: Any) -> Any:
        if (observations[:, 0] == 3).any():
            obey(orders, "act")
        return act(observations)

    makers = [lambda env_id=env_id: doomed(kind, env_id, orders) for env_id in range(4)]
    options = WorkerOptions(on_env_error="restart_worker", setup_fn=functools.partial(set_up, orders))
    lives: dict[Any, list[Ledger]] = {}
    kills, restarted, env_steps = 0, 0, 0
    with AsyncWorkerPool(
        makers, {"hen": hen, "fox": act}, policy_of=species, num_workers=2, mode=mode, rollout_length=6, workers=options
    ) as pool:
        for rollout in pool.rollouts():
            env_steps += rollout.num_steps
            if restarted == kills * 2 * len(AGENTS) and (3, AGENTS[0]) in lives:
                if kills == 2:
                    break
                kills += 1
                orders.write_text(f"{where} {how}")
            for rows in rollout.values():
                for row, key in enumerate(zip(rows.env_ids.tolist(), rows.agents, strict=True)):
                    restarted += int(rows.restarted[row])
                    if rows.restarted[row] or key not in lives:
                        lives.setdefault(key, []).append({})
                mine: Ledger = {}
                delivered(rows, mine)
                for key, steps in mine.items():
                    lives[key][-1].setdefault(key, []).extend(steps)
        assert pool.statistics().worker_restarts == 2
    assert {key: len(found) for key, found in lives.items() if key[0] >= 2} == {
        (env_id, agent): 3 for env_id in (2, 3) for agent in AGENTS
    }
    for env_id in range(4):
        wanted = lived(kind, env_id, env_steps)
        for key, found in lives.items():
            for ledger in found if key[0] == env_id else ():
                assert ledger.get(key, []) == wanted[key][: len(ledger.get(key, []))]


def test_an_environment_of_gymnasium_has_one_agent() -> None:
    with AsyncWorkerPool(
        lambda: gym.make("CartPole-v1"),
        {"even": lean, "odd": lean},
        policy_of=lambda agent, episode: ("even", "odd")[episode.env_id % 2],
        num_envs=5,
        num_workers=2,
        mode="sync",
    ) as pool:
        rollout: Any = next(pool.rollouts())
        assert rollout["even"].env_ids.tolist() == [0, 2, 4]
        assert rollout["odd"].env_ids.tolist() == [1, 3]
        assert rollout["odd"].alive.all()
        assert rollout["odd"].agents == ["agent", "agent"]
        pool.set_attr("wind", 3)
        assert pool.get_attr("wind") == (3, 3, 3, 3, 3)


def test_rows_that_are_kept_are_never_overwritten() -> None:
    with named_pool(2, num_workers=2, rollout_length=5) as pool:
        stream = pool.rollouts()
        kept = [next(stream) for _ in range(12)]
        assert pool.statistics().copied_rollouts > 0
        found: Ledger = {}
        for rollout in kept:
            for rows in rollout.values():  # type: ignore[attr-defined]
                delivered(rows, found)
        for (env_id, agent), lived in found.items():
            assert lived == plain_loop(env_id, 200)[0][env_id, agent][: len(lived)]
        del rollout, rows
        kept.clear()
        gc.collect()
        assert pool._session._queue._slots.leased == 0


def test_tensors_have_the_fields_of_the_arrays() -> None:
    with named_pool(2) as pool:
        rollout: Any = next(pool.rollouts())
        tensors = rollout.to("cpu")
        assert tensors["hen"].alive.dtype == torch.bool
        assert tensors.states.shape == (128, 2, 3)
        assert len(tensors["hen"].transitions()) == rollout["hen"].num_steps
        values = tensors["hen"].next_values(torch.zeros(128, 6), lambda seen: seen[:, 2].float())
        assert (values[~tensors["hen"].alive] == 0).all()
        assert (rollout.next_states()[:-1] == rollout.states[1:])[
            ~np.isin(np.arange(127), rollout.final_index[0])
        ].all()


class OnDevice(torch.Tensor):
    """Tensor that numpy cannot read, like a tensor on a GPU."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def on_device(value: Any) -> Any:
    return None if value is None else torch.as_tensor(value).as_subclass(OnDevice)


@pytest.mark.parametrize("kind", [Scripted, ScriptedTurns])
def test_tensors_of_a_device_have_the_values_and_transitions_of_the_arrays(kind: Any) -> None:
    with named_pool(2, kind) as pool:
        rows = next(pool.rollouts())["hen"]  # type: ignore[index]
    there = rows._with_each(on_device, [rows._ends], env_ids=on_device(rows.env_ids))
    values = np.zeros(rows.alive.shape, np.int64)
    following = there.next_values(on_device(values), lambda seen: seen[:, 2] + 1)
    expected = rows.next_values(values, lambda seen: seen[:, 2] + 1)
    assert following.tolist() == expected.tolist()
    assert there.transitions().rewards.tolist() == rows.transitions().rewards.tolist()


@pytest.mark.parametrize(
    ("policies", "how", "message"),
    [
        ({}, {}, "policies must contain at least one policy"),
        ({"a@b": act}, {}, "must not contain \"@\", which marks frozen versions, got 'a@b'"),
        ({3: act}, {}, "names of policies must be non-empty strings, got 3"),
        ({"hen": 7}, {}, "policy 'hen': policy must be a Policy"),
        (TWO, {}, r"2 policies need policy_of, a function \(agent, episode\) -> name"),
        (TWO, {"policy_of": "fox"}, "policy_of must be a callable"),
        (act, {"policy_of": species}, "policy_of needs named policies"),
        (TWO, {"policy_of": species, "parallelism": "gradient", "loss_fn": act}, "needs a policy with a torch module"),
        (
            TWO,
            {"policy_of": species, "rollout_length": "episode"},
            'rollout_length="episode" cannot be used with named policies, because agents end .* Pass the number',
        ),
        (
            TWO,
            {"policy_of": species, "spaces": "make"},
            "spaces= cannot be used with named policies, because workers report .* Leave it out",
        ),
        (
            TWO,
            {"policy_of": species, "workers": WorkerOptions(step_threads=2)},
            r"WorkerOptions\(step_threads=...\) cannot be used with named policies, because .* Leave it out",
        ),
    ],
)
def test_bad_policies_are_errors_before_a_process_starts(policies: Any, how: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool(scripted(2), policies, **{**NO_POOL, **how})


class Words(Scripted):
    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Sequence(gym.spaces.Discrete(3))


@pytest.mark.parametrize(
    ("env_fn", "message"),
    [
        (
            lambda: gym.make_vec("CartPole-v1", 2),
            r"a vector env cannot be used with named policies, got CartPoleVectorEnv.* for env_id 0. Give factor",
        ),
        (
            scripted(1, Words),
            r"values without .* used with named policies, got the observation space Sequence\(.* 'fox_0'. Pad them",
        ),
    ],
)
def test_environments_that_named_policies_do_not_take_are_refused(env_fn: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool(env_fn, TWO, policy_of=species, num_workers=1)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("policy_of", "message"),
    [
        (lambda agent, episode: "cat", r"must return one of .*, got 'cat', for agent 'fox_0' in episode 0 of env_id 0"),
        (lambda agent, episode: 3, r"policy_of must return one of \['hen', 'fox'\], got 3"),
        (lambda agent, episode: "hen@4", "got 'hen@4', which was released or never frozen"),
        (lambda agent, episode: {}[agent], "policy_of raised KeyError for agent 'fox_0' in episode 0 of env_id 0"),
        (lambda agent, episode: "hen", "policy 'hen' must have the same spaces, but 'fox_0' and 'hen_0' have"),
    ],
)  # fmt: skip
def test_a_wrong_result_of_policy_of_is_an_error(policy_of: Any, message: str, num_workers: int) -> None:
    with pytest.raises(ConfigurationError, match=message):
        named_pool(2, policy_of=policy_of, num_workers=num_workers)


def test_a_policy_of_that_returns_an_unfit_policy_later_is_an_error() -> None:
    def late(agent: str, episode: Any) -> str:
        return "fox" if episode.number < 10 and agent.startswith("fox") else "hen"

    with (
        pytest.raises(ConfigurationError, match="got 'hen' for agent 'fox_0' in episode 10 of env_id 0, but 'hen' a"),
        named_pool(1, policy_of=late, num_workers=1) as pool,
    ):
        for _ in pool.rollouts(Stop(env_steps=1000)):
            pass


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        (torch.nn.Linear(9, 2), ConfigurationError, "'hen' cannot act for agent 'hen_0' with .*: RuntimeError: mat"),
        (lambda seen: np.zeros((len(seen), 2)), PolicyOutputError, "'hen' for agent 'hen_0': the policy must return"),
    ],
)  # fmt: skip
def test_the_error_for_a_policy_that_does_not_fit_names_policy_and_agent(policy: Any, error: Any, message: str) -> None:
    class Floats(Scripted):
        def observation_space(self, agent: str) -> Any:
            return gym.spaces.Box(-1, 1, (self.width(agent),), np.float32)

        def _see(self, agent: str) -> Any:
            return np.zeros(self.width(agent), np.float32)

    with pytest.raises(error, match=message):
        named_pool(1, Floats, hen=policy)


def test_publish_refuses_wrong_names_and_versions() -> None:
    with named_pool(1, hen=scorer(), rollout_length=4) as pool:
        for given, message in [
            ({"cat": act}, r"the name of a policy must be one of \['hen', 'fox'\], got 'cat'"),
            ({"hen@0": act}, "'hen@0' is a frozen version, which cannot change"),
            (scorer(), "publish must get policies by name, such as {'hen': policy}"),
            ({"hen": act}, "publish must get a module for policy 'hen'"),
            ({"hen": torch.nn.Linear(2, 2)}, "policy 'hen': the published policy must have the tensors"),
        ]:
            with pytest.raises(ConfigurationError, match=message):
                pool.publish(given)
        assert pool.policy_versions == {"hen": 0, "fox": 0}
        with pytest.raises(ConfigurationError, match="got 'cat'"):
            pool.freeze("cat")
    with AsyncWorkerPool("CartPole-v1", lean, num_workers=0) as single:
        with pytest.raises(ConfigurationError, match=r"one policy without a name, .*: \['hen'\]. Publish one of"):
            single.publish({"hen": lean})
        for ask in (lambda: single.freeze("a"), lambda: single.policy_versions):
            with pytest.raises(ConfigurationError, match="has one policy without a name"):
                ask()


def test_the_error_for_a_missing_name_or_field_lists_the_alternatives() -> None:
    with AsyncWorkerPool("CartPole-v1", {"a": lean}, num_envs=2, num_workers=0, rollout_length=4) as pool:
        rollout, episodes = next(pool.rollouts()), pool.evaluate(2)
    with pytest.raises(KeyError, match=r"no policy 'b' acted in this rollout, only \['a'\]"):
        rollout["b"]
    with pytest.raises(KeyError, match=r"no policy 'b' acted in this evaluation, only \['a'\]"):
        episodes["b"]
    for name in ("observations", "rewards", "next_observations", "obs"):
        its_own = rf". Use rollout\[policy\].{name} for one of the policies \['a'\]" * (name != "obs")
        message = f"has no attribute '{name}'{its_own}$"
        with pytest.raises(AttributeError, match=message):
            getattr(rollout, name)
    assert ("b" in rollout, rollout.get("b"), hasattr(rollout, "__array__")) == (False, None, False)
    assert pickle.loads(pickle.dumps(rollout.copy()))["a"].rewards.shape == (4, 2)


class Silent(Scripted):
    """Environment that returns no reward for one of its agents."""

    def step(self, actions: Any) -> Any:
        seen, rewards, *others = super().step(actions)
        del rewards["hen_0"]
        return (seen, rewards, *others)


class Stranger(Scripted):
    """Environment with an agent that is missing in ``possible_agents``."""

    def _there(self) -> list[str]:
        return [*super()._there(), "dog_0"] if self.now == 2 else super()._there()

    @staticmethod
    def width(agent: str) -> int:
        return 4

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(100)

    def _see(self, agent: str) -> Any:
        return np.zeros(4, np.int64)

    def reward(self, agent: str, action: int) -> float:
        return 0.0

    def cuts(self, agent: str) -> bool:
        return False


class NoAgents(Scripted):
    def _there(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Silent, "for every agent that acted, but agent 'hen_0' of env_id 0 is missing"),
        (Stranger, "possible_agents must contain every agent, but env_id 0 has the agent 'dog_0'"),
        (NoAgents, "must leave at least one agent, but env_id 0 has none"),
    ],
)
def test_an_environment_that_violates_the_agent_api_is_an_error(kind: Any, message: str) -> None:
    with (
        pytest.raises(ObservationError, match=message),
        AsyncWorkerPool(scripted(1, kind), {"all": act} if kind is Stranger else TWO,
                        policy_of=None if kind is Stranger else species, **NO_POOL) as pool,
    ):  # fmt: skip
        for _ in pool.rollouts(Stop(env_steps=40)):
            pass


def test_environments_with_different_agents_are_refused() -> None:
    class Fewer(Scripted):
        def __init__(self, env_id: int) -> None:
            super().__init__(env_id)
            self.possible_agents = list(AGENTS[:3])

    makers = [lambda: Scripted(0), lambda: Fewer(1)]
    with pytest.raises(ConfigurationError, match="agents with the same spaces, but env_id 1 has"):
        AsyncWorkerPool(makers, TWO, policy_of=species, **NO_POOL)
    with pytest.raises(ConfigurationError, match="must have the same agents and spaces, but worker 1 has"):
        AsyncWorkerPool(makers, TWO, policy_of=species, num_workers=2)


def test_an_exception_of_an_environment_has_its_env_id_as_cause() -> None:
    class Hot(Scripted):
        def step(self, actions: Any) -> Any:
            if self.episode == 2:
                raise RuntimeError("the motor is hot")
            return super().step(actions)

    with (
        pytest.raises(RuntimeError, match="the motor is hot") as raised,
        named_pool(2, Hot, num_workers=1, rollout_length=4) as pool,
    ):
        for _ in pool.rollouts(Stop(env_steps=1000)):
            pass
    assert "env_id 0, during env.step()" in str(raised.value.__cause__)


def test_workers_load_versions_answer_questions_and_are_traced_as_with_one_policy(tmp_path: Path) -> None:
    with named_pool(4, num_workers=2, rollout_length=4) as pool:
        pool.trace(tmp_path / "trace.json")
        pool.publish({"hen": act})
        assert pool.synchronize() == 1
        next(pool.rollouts())
        assert pool.get_attr("env_id") == (0, 1, 2, 3)
        pool.set_attr("mark", [4, 5, 6, 7])
        assert pool.call("state")[2][0] == 2
        assert pool.get_attr("mark") == (4, 5, 6, 7)
        assert list(pool.single_observation_space.spaces) == list(AGENTS)  # type: ignore[attr-defined]
        assert "rollouts of 4" in repr(pool)
        assert pool.statistics().rollouts == 1
        assert "acting" in str(pool.advice())
    assert (tmp_path / "trace.json").stat().st_size > 100


def test_the_error_for_an_action_that_is_not_finite_names_the_agent() -> None:
    class Analog(Scripted):
        def action_space(self, agent: str) -> Any:
            return gym.spaces.Box(-1, 1, (1,), np.float32)

        def step(self, actions: Any) -> Any:
            return super().step(dict.fromkeys(actions, np.int64(0)))

    def lost(observations: Any) -> Any:
        steps = observations[:, 2:3].astype(np.float32)
        return np.where(steps == 2, np.nan, 0).astype(np.float32)

    policies = {"hen": lost, "fox": lambda observations: np.zeros((len(observations), 1), np.float32)}
    with (
        pytest.raises(PolicyOutputError, match="policy 'hen' for agent 'hen_0' of env_id 0 must be finite"),
        named_pool(1, Analog, **policies, workers=WorkerOptions(check_finite=True)) as pool,
    ):
        next(pool.rollouts())
