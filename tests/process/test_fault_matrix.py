"""Check that no transition is wrong after a fault, for all places of faults and of workers, and all reactions."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from faults import (
    AGENTS,
    EPISODE,
    NUM_ENVS,
    TARGET,
    Chooses,
    Fault,
    FaultyAgents,
    FaultyEnv,
    FaultyTurns,
    Ledger,
    Lived,
    SimulatorError,
    audit,
    choose,
    episodes_lived,
    faulty_batch,
    length,
    note_worker,
    write_down,
)
from faults import Place as FaultPlace
from nets import ChoosingNet
from pool_places import (
    ELSEWHERE,
    FORKS,
    HOSTS,
    IN_PROCESS,
    PLACES,
    REFUSED,
    STEP_WORKERS,
    Place,
    can,
    faulty_anywhere,
)
from sampling import one_in

from parenv import (
    ConfigurationError,
    GradientOptions,
    ParallelVectorEnv,
    RestartPolicy,
    SubEnvironmentError,
    TorchPolicy,
    WorkerError,
    WorkerOptions,
)

Kind = Literal["single", "native batch", "parallel agents", "AEC agents"]
Consequence = Literal["error", "replace", "restart", "death"]
SOON = RestartPolicy(backoff_s=1e-3, max_backoff_s=2e-3)
ON_ENV_ERROR = {"error": "raise", "replace": "restart_env", "restart": "restart_worker", "death": "raise"}
WAYS: list[tuple[str, Kind]] = [
    *((FORKS, kind) for kind in get_args(Kind)),
    *((name, "single") for name in PLACES if name != FORKS),
    (HOSTS, "parallel agents"),
    (HOSTS, "AEC agents"),
]
"""Places of workers, and kinds of environments there."""
WORKERS = [{0, 1}, {2, 3}]
"""Sub-environments of each worker. The first worker has the one with the fault."""

pytestmark = pytest.mark.usefixtures("warnings_are_expected")


def makers(name: str, kind: Kind, fault: Fault) -> Any:
    """Return factories of environments with a fault."""
    if kind == "native batch":
        return functools.partial(faulty_batch, fault)
    if name == ELSEWHERE:
        return faulty_anywhere(NUM_ENVS, fault)
    made = {"parallel agents": FaultyAgents, "AEC agents": FaultyTurns}.get(kind, FaultyEnv)
    return [functools.partial(made, env_id, fault) for env_id in range(NUM_ENVS)]


def policy_of(agent: str, episode: Any) -> str:
    return agent[:3]


class Learner:
    """Learner that does not learn, and publishes after each rollout a version that returns its number."""

    def __init__(self, kind: Kind, fault: Fault) -> None:
        self.named, self.fault, self.number = "agents" in kind, fault, 0
        self.gradients = fault.place == "loss"

    def policy(self) -> Any:
        return {agent[:3]: self._one() for agent in AGENTS} if self.named else self._one()

    def _one(self) -> Any:
        if not self.gradients:
            return Chooses(self.number, self.fault)
        return TorchPolicy(ChoosingNet(self.number), "act", ("actions", "acted_by"))

    def publish(self, pool: Any) -> None:
        self.number += 1
        assert pool.publish(self.policy()) == self.number


def rollouts_of(pool: Any, learner: Learner, ledger: Ledger) -> Iterator[Any]:
    """Yield the rollouts of a pool, note their episodes, and publish a new version after each."""
    stream = pool.gradients() if learner.gradients else pool.rollouts()
    for delivered in stream:
        ledger.note(delivered.episodes)
        for rollout in delivered.rollouts if learner.gradients else [delivered]:
            yield from rollout.values() if learner.named else [rollout]
        learner.publish(pool)


def has_the_fault(rollout: Any) -> bool:
    """Return whether a rollout has a step of the episode with the fault."""
    target = rollout.observations[..., 0] == TARGET
    return bool((target & (rollout.observations[..., 2] == EPISODE)).any())


def collected(at: Place, kind: Kind, consequence: Consequence, fault: Fault, mode: Any) -> Ledger:
    """Collect until the fault has happened and each agent has more than 30 transitions, and return them."""
    learner, ledger = Learner(kind, fault), Ledger()

    def postprocess(policy: Any, rollout: Any) -> Any:
        if has_the_fault(rollout):
            fault.at("postprocess")
        return {}

    def loss_fn(policy: Any, rollout: Any) -> Any:
        parts = list(zip(policy.values(), rollout.values(), strict=True)) if learner.named else [(policy, rollout)]
        if any(has_the_fault(part) for _, part in parts):
            fault.at("loss")
        return sum(one.module.bias.sum() for one, _ in parts)

    gradient: dict[str, Any] = {
        "parallelism": "gradient", "loss_fn": loss_fn, "gradient": GradientOptions(keep_rollouts=True),
    }  # fmt: skip
    workers = {"restart": SOON, "on_env_error": ON_ENV_ERROR[consequence], "setup_fn": note_worker}
    with at.pool(
        makers(at.name, kind, fault), learner.policy(), policy_of=policy_of if learner.named else None,
        num_envs=NUM_ENVS, mode=mode, rollout_length=3, seed=5, workers=workers,
        **(gradient if learner.gradients else {"postprocess": postprocess}),
    ) as pool:  # fmt: skip
        for rollout in rollouts_of(pool, learner, ledger):
            write_down(rollout, ledger)
            if fault.happened and all(len(lived) > 30 and lived[-1].observation[2] > 1 for lived in ledger.values()):
                break
    return ledger


def replaced_after(name: str, place: FaultPlace, consequence: Consequence) -> list[set[int]]:
    """Return the possible sets of sub-environments that are replaced after a fault."""
    if place == "load":
        return WORKERS
    dies_alone = name == STEP_WORKERS and place in ("reset", "step") and consequence == "death"
    return [{TARGET}] if consequence == "replace" or dies_alone else WORKERS[:1]


def check_episodes(ledger: Ledger, kind: Kind, lost_by: str) -> None:
    """Check that every episode with a delivered step is listed once, with its delivered part and its reason to end."""
    wanted, listed = episodes_lived(ledger, lost_by), sorted_by_env(ledger.episodes)
    if kind == "AEC agents":
        # Lengths count the turns of all agents. The last turn may have no reward yet, and may be the only turn.
        listed = [one for one in listed if one[1:3] != (lost_by, 0.0)]
        each = zip(wanted, listed, strict=True)
        assert all(len(AGENTS) * (steps - 1) < turns <= len(AGENTS) * (steps + 1) for (*_, steps), (*_, turns) in each)
        wanted, listed = ([one[:3] for one in which] for which in (wanted, listed))
    assert listed == wanted


def sorted_by_env(episodes: list[Any]) -> list[Any]:
    return sorted(episodes, key=lambda one: one[0])


def last_states_of_the_first_life(ledger: Ledger) -> set[tuple[int, ...]]:
    """Return the last episode and step of each agent in the first instance of the replaced sub-environment."""
    lives = [lived for (env_id, _), lived in ledger.items() if env_id == TARGET]
    first = min(one.observation[1] for lived in lives for one in lived)
    return {max(tuple(one.following[2:4]) for one in lived if one.observation[1] == first) for lived in lives}


def is_possible(name: str, place: FaultPlace, consequence: Consequence) -> bool:
    """Return whether a fault can happen to the workers of a place."""
    return can(name, *["processes"] * (consequence == "death"), *["loading"] * (place == "load"))


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("pool_place", "kind", "where", "consequence", "mode"),
    [
        case
        for case in one_in(2, WAYS, get_args(FaultPlace), get_args(Consequence), ["sync", "async"])
        if is_possible(case.values[0], *case.values[2:4])
    ],
    indirect=["pool_place"],
)
def test_no_transition_is_wrong_around_a_fault(
    pool_place: Place, kind: Kind, where: FaultPlace, consequence: Consequence, mode: Any, tmp_path: Path
) -> None:
    fault, name = Fault(where, consequence == "death", tmp_path), pool_place.name
    refusal = REFUSED.get((name, ON_ENV_ERROR[consequence]))
    if kind == "native batch" and consequence == "replace":
        refusal = "needs single sub-environments"
    if refusal:
        with pytest.raises(ConfigurationError, match=refusal):
            collected(pool_place, kind, consequence, fault, mode)
    elif consequence == "error" or (consequence != "death" and where not in ("reset", "step")):
        of_env = where in ("reset", "step")
        # This process cannot import a class that another interpreter has read from a file.
        with pytest.raises(
            WorkerError if of_env and name == ELSEWHERE else SimulatorError, match="the motor is hot"
        ) as raised:
            collected(pool_place, kind, consequence, fault, mode)
        if of_env:
            cause = raised.value.__cause__
            assert isinstance(cause, SubEnvironmentError)
            # A worker that steps a vector env does not know which sub-environment has raised.
            known = (None, "step") if name == STEP_WORKERS or kind == "native batch" else (TARGET, where)
            assert (cause.worker, cause.env_id, cause.doing) == (0, *known)
            assert "faults.py" in cause.remote_traceback or name == IN_PROCESS
    else:
        ledger = collected(pool_place, kind, consequence, fault, mode)
        assert audit(ledger) in replaced_after(name, where, consequence)
        lost_by = "worker_died" if consequence == "death" else "environment_error"
        check_episodes(ledger, kind, lost_by)
        if where == "step":
            assert lost_by in {ended_by for _, ended_by, *_ in ledger.episodes}
        if consequence == "replace":
            assert last_states_of_the_first_life(ledger) == {
                (EPISODE, 1 if where == "step" else length(TARGET, EPISODE))
            }


def stepped(pool_options: dict[str, Any], fault: Fault, num_steps: int = 60) -> Ledger:
    """Return the transitions of a vector env in which a fault happens."""
    ledger = Ledger()
    make = [functools.partial(FaultyEnv, env_id, fault) for env_id in range(NUM_ENVS)]
    options = WorkerOptions(restart=SOON)
    with ParallelVectorEnv(make, autoreset_mode="SameStep", workers=options, **pool_options) as envs:
        observations, _ = envs.reset(seed=5)
        for _ in range(num_steps):
            actions = choose(observations)
            following, rewards, terminated, truncated, infos = envs.step(actions)
            for env_id in range(NUM_ENVS):
                if infos.get("worker_restarted", [False] * NUM_ENVS)[env_id]:
                    # The step was not taken. The final observation is the last one again, and a new episode begins.
                    assert infos["final_obs"][env_id].tolist() == observations[env_id].tolist()
                    assert (rewards[env_id], terminated[env_id], truncated[env_id]) == (0.0, False, True)
                    assert infos["ended_by"][env_id] == "worker_died"
                    ledger.broken_off[env_id, ""] = True
                    continue
                ended = terminated[env_id] or truncated[env_id]
                arrived = infos["final_obs"][env_id] if ended else following[env_id]
                flags = bool(terminated[env_id]), bool(truncated[env_id])
                begins = ledger.broken_off.pop((env_id, ""), False)
                acted = observations[env_id].tolist(), int(actions[env_id]), float(rewards[env_id])
                lived = Lived(*acted, arrived.tolist(), flags, 0, 0, begins)
                ledger.setdefault((env_id, ""), []).append(lived)
            observations = following
    assert fault.happened
    return ledger


# With another measured time, the main process could step the environment with the fault and be killed.
@pytest.mark.usefixtures("a_step_takes_a_millisecond")
@pytest.mark.parametrize("consequence", ["error", "death"])
@pytest.mark.parametrize("caller_steps", [False, True])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_no_step_of_a_vector_env_is_wrong_around_a_fault(
    where: FaultPlace, caller_steps: bool, consequence: Consequence, tmp_path: Path
) -> None:
    fault = Fault(where, consequence == "death", tmp_path)
    how: dict[str, Any] = {"num_workers": 1 if caller_steps else 2, "caller_steps": caller_steps}
    if consequence == "error":
        with pytest.raises(SimulatorError, match="the motor is hot"):
            stepped(how, fault)
    else:
        assert audit(stepped({**how, "on_worker_death": "restart"}, fault)) == WORKERS[0]
