"""Finding out what a policy and ``postprocess`` return, before the first rollout is laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from parenv.errors import PolicyOutputError
from parenv.experience.assembly import assemble
from parenv.experience.rollout import Rollout
from parenv.memory.layout import Extra, RolloutSpec
from parenv.memory.spaces import Leaf
from parenv.worker.acting import NO_INFOS, Actor, carry_of, check_actions, extras_of
from parenv.worker.collecting import private_writer


def probe(
    actor: Actor,
    spec: RolloutSpec,
    action_space: Space[Any],
    rows: Sequence[Any],
    batch: int,
    infos: Mapping[str, Any] = NO_INFOS,
) -> tuple[tuple[Extra, ...], tuple[Leaf, ...]]:
    """Act once on real observations.

    Args:
        actor: with a copy of the policy that is thrown away afterwards.
        spec: of the spaces.
        action_space: of one row.
        rows: one array or list ``[batch, ...]`` per leaf.
        batch: how many.
        infos: what came with them.

    Returns:
        What has to be laid out beside the spaces: extras, and leaves of the carry.

    Raises:
        PolicyOutputError: actions or extras do not fit.
    """
    initial = actor.initial_carry(batch)
    carry = carry_of(initial, batch)
    try:
        actions, extras, following = actor.act(rows, initial, infos)
    except Exception as error:
        shapes = ", ".join(str(getattr(part, "shape", f"({batch},)")) for part in rows)
        error.add_note(f"The policy was given a batch, observations of shape {shapes}: a row for each sub-environment.")
        raise
    check_actions(spec.actions, action_space, actor.actions.fitted(actions, batch), batch)
    if carry and carry_of(following, batch) != carry:
        raise PolicyOutputError(
            f"the policy's carry must keep its structure, shapes and dtypes: it began as {carry} and became "
            f"{carry_of(following, batch)}"
        )
    return extras_of(extras, (batch,), "policy"), carry


def probe_postprocess(
    actor: Actor,
    spec: RolloutSpec,
    postprocess: Any,
    rows: Sequence[Any],
    batch: int,
    infos: Mapping[str, Any],
    of: Callable[[Rollout], Rollout] = lambda rollout: rollout,
) -> tuple[Extra, ...]:
    """Postprocess a rollout in which nothing moves.

    Args:
        actor: as in :func:`probe`.
        spec: what a rollout holds beside what comes of this.
        postprocess: the user's.
        rows: the first observations.
        batch: how many.
        infos: what came with them.
        of: makes of the rollout what ``postprocess`` is given.

    Raises:
        PolicyOutputError: what it returns does not fit.
    """
    initial = actor.initial_carry(batch)
    actions, extras, _ = actor.act(rows, initial, infos)
    writer = private_writer(spec, batch)
    writer.begin(rows)
    writer.write_carry(initial)
    for step in range(spec.rollout_length):
        writer.write_actions(step, actions, extras)
        for block, row in zip(writer.observations[step + 1], rows, strict=True):
            block[:] = row
    writer.write_ends([], [])
    about: dict[str, Any] = {"env_ids": np.arange(batch), "worker": 0, "policy_version": 0, "policy_lag": 0}
    names = [extra.name for extra in spec.extras]
    rollout = assemble(spec, writer.arrays, [writer.columns], **about, extras=names)
    returned = actor.postprocess(postprocess, of(rollout))
    more = extras_of(returned, (spec.rollout_length, batch), "postprocess")
    both = {extra.name for extra in spec.extras} & {extra.name for extra in more}
    if both:
        raise PolicyOutputError(f"policy and postprocess both return {sorted(both)}: choose other names")
    return more
