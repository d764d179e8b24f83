"""What workers on hosts say where policies have names: nothing is used that was not checked here or in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from parenv.errors import ProtocolError
from parenv.memory.agent_layout import AgentsSpec, agent_groups
from parenv.memory.layout import extras_and_carry, infos_from_data
from parenv.memory.spaces import leaves, rebuild
from parenv.protocol.messages import Commit, Ready, StepReady
from parenv.remote.validation import check_metrics, check_replaced, require


def check_agents_ready(ready: Ready | StepReady, policies: Sequence[str], first: bool) -> None:
    """Check what a worker says of its sub-environments and their agents.

    Args:
        ready: as it came.
        policies: names of all.
        first: whether it is worker 0, which says what policies add.

    Raises:
        ProtocolError: no worker says so.
    """
    by_agent = [rebuild(space) for space in ready.spaces]
    observed, acted = by_agent if len(by_agent) == 2 else (None, None)
    if not (isinstance(ready, Ready) and isinstance(observed, spaces.Dict) and isinstance(acted, spaces.Dict)):
        raise ProtocolError("a worker does not say its agents")
    named = bool(observed.spaces) and list(observed.spaces) == list(acted.spaces)
    require(named, "does not say what each of its agents observes and does")
    for space in (*observed.spaces.values(), *acted.spaces.values()):
        leaves(space)
    if first:
        _check_found(ready.extras, policies, len(agent_groups(observed, acted)))


def _check_found(about: Any, policies: Sequence[str], num_groups: int) -> None:
    is_whole = type(about) is dict and set(about) == {"state", "turns", "infos", "found"}
    require(is_whole and type(about["turns"]) is bool, "does not say what rollouts hold")
    extras_and_carry((), about["state"])
    told, found = about["infos"], about["found"]
    require(type(told) is list and len(told) == num_groups, "does not say what its agents are told")
    for infos in told:
        infos_from_data(infos)
    require(type(found) is dict and set(found) == set(policies), "does not say what each policy adds")
    for group, extras, carry in found.values():
        require(type(group) is int and 1 <= group <= num_groups, "has a policy for agents that there are not")
        extras_and_carry(extras, carry)


def check_agents_commit(commit: Commit, spec: AgentsSpec, share: int) -> None:
    """Check what a worker says of a rollout beside what lies in its slot.

    Args:
        commit: as it came.
        spec: what a rollout consists of.
        share: sub-environments of the worker.

    Raises:
        ProtocolError: no worker says so.
    """
    check_replaced(commit.replaced)
    report = commit.report
    if commit.objects != {} or type(report) is not list or len(report) != 4:
        raise ProtocolError("a worker reports something else than steps, versions, policies and metrics of a rollout")
    env_steps, serial, acting, metrics = report
    most = spec.groups[0].spec.rollout_length * share
    counted = type(env_steps) is int and 0 <= env_steps <= most and type(serial) is int
    require(counted, "does not report how many env steps a rollout has")
    listed = type(acting) is list and all(type(index) is int for index in acting)
    require(listed, "does not report which policies still act")
    check_metrics(metrics)
