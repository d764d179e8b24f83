"""Command ``parenv play``: episodes of an exported agent, without torch."""

from __future__ import annotations

import argparse
import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from parenv.argument_checks import at_least
from parenv.bench.environment import environment_factory, is_env_id, refused
from parenv.bench.output_files import check_writable
from parenv.cli.help import ENV_HELP, add_command, given
from parenv.envs.video import DEFAULT_FPS, write_video
from parenv.errors import ConfigurationError
from parenv.exporting.onnx_policy import OnnxPolicy
from parenv.memory.spaces import flatten, leaves, stacked, unflatten
from parenv.memory.trees import own_copy


def add_play_command(commands: Any) -> None:
    """Add the command."""
    one = add_command(
        commands,
        "play",
        "play episodes with an exported agent",
        "Play whole episodes with an agent that parenv.export has written, and print their returns. Needs no torch.",
        [
            "parenv play agent.onnx CartPole-v1 --episodes 20",
            "parenv play agent.onnx my_package.envs:make_env --seed 1 --video agent.gif",
        ],
        _run,
    )
    one.add_argument("agent", type=Path, metavar="AGENT", help="File of parenv.export, such as agent.onnx.")
    one.add_argument("env", help=ENV_HELP)
    one.add_argument("--episodes", type=int, default=10, metavar="N", help="Number of episodes (default: 10).")
    one.add_argument(
        "--seed", type=int, default=0, help="Seed of the first episode. Episode i has seed + i (default: 0)."
    )
    one.add_argument(
        "--video", type=Path, metavar="PATH", help="Video file of the first episode: .gif, or a format of imageio."
    )


def _run(options: argparse.Namespace) -> None:
    returns, lengths = play(**given(options))
    spread = f" ± {np.std(returns):.2f}" if len(returns) > 1 else ""
    print(f"{len(returns)} episodes: mean return {np.mean(returns):.2f}{spread}, mean length {np.mean(lengths):.1f}")
    if options.video is not None:
        print(f"video: {options.video}")


def play(agent: Path, env: Any, episodes: int, seed: int, video: Path | None) -> tuple[list[float], list[int]]:
    """Play episodes, and print the return of each.

    Args:
        agent: File of :func:`parenv.export`.
        env: Env id, ``module:factory``, or a callable.
        episodes: Number of episodes.
        seed: Seed of the first episode.
        video: Video file of the first episode, or ``None``.

    Returns:
        Returns and lengths of the episodes.

    Raises:
        ConfigurationError: The agent does not fit this environment, or the video cannot be written.
    """
    at_least("episodes", episodes, 1)
    at_least("seed", seed, 0)
    policy = OnnxPolicy(agent)
    check_writable(video)
    one = _made(env, rendered=video is not None)
    returns, lengths = list[float](), list[int]()
    with contextlib.closing(one):
        policy.check_fits(one.observation_space)
        for episode in range(episodes):
            frames: list[Any] | None = [] if video is not None and not episode else None
            found, steps = _episode(policy, one, seed + episode, frames)
            returns.append(found)
            lengths.append(steps)
            print(f"episode {episode}: return {found:g} in {steps:,} env steps")
            if frames is not None and video is not None:
                write_video(video, frames, one.metadata.get("render_fps", DEFAULT_FPS))
    return returns, lengths


def _made(env: Any, rendered: bool) -> Any:
    make = environment_factory(env)
    if rendered and is_env_id(env):
        make = partial(gym.make, env, render_mode="rgb_array")
    with refused(f"{env} raised while being made"):
        one = make()
    if rendered and getattr(one, "render_mode", None) != "rgb_array":
        one.close()
        raise ConfigurationError(f'--video needs an environment with render_mode="rgb_array", got {env}')
    return one


def _episode(policy: OnnxPolicy, env: Any, seed: int, frames: list[Any] | None) -> tuple[float, int]:
    observation, _ = env.reset(seed=seed)
    carry, total, steps, ended = policy.initial_carry(1), 0.0, 0, False
    while not ended:
        if frames is not None:
            # The environment may draw every frame into the same array.
            frames.append(own_copy(env.render()))
        batch = unflatten(policy.observations, stacked(policy.observations, [observation]))
        found = policy.act(batch, carry)
        carry = found.carry
        observation, reward, terminated, truncated, _ = env.step(_action(env.action_space, found.actions))
        total, steps, ended = total + float(reward), steps + 1, terminated or truncated
    return total, steps


def _action(space: gym.Space[Any], actions: Any) -> Any:
    """Convert a batch of one action to an action of the environment."""
    of = leaves(space)
    try:
        values = [np.asarray(one[0]) for one in flatten(of, actions)]
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigurationError(
            f"the agent's actions must have the structure of {space}. Use the environment of its training."
        ) from error
    for leaf, value in zip(of, values, strict=True):
        if value.shape != leaf.shape:
            raise ConfigurationError(
                f"the agent's action{leaf.name} must have shape {leaf.shape} as in {space}, got {value.shape}. Use the "
                "environment of its training."
            )
    cast = [int(value) if leaf.integral else value.astype(leaf.dtype) for leaf, value in zip(of, values, strict=True)]
    return unflatten(of, cast)
