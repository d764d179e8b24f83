"""Learning curves of the examples and of reference implementations: return over env steps and over seconds.

The script runs all systems for one seed after the other, each run in a separate process. It writes the results to
``results/gallery_NAME.json`` and draws a plot. The script also updates the page ``docs/gallery.md``.

python benchmarks/gallery.py cartpole-ppo
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from lib.common import RESULTS, save, save_picture, spread

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "gallery.md"
SEEDS = (1, 2, 3, 4, 5)
SHORT = ("cartpole-ppo", "cartpole-dqn")
POINTS, STORED = 200, 60
"""Maximal number of points of a curve of one run, and number of points of the stored curves of all runs."""
AXES = ("env steps", "seconds")
WINDOW = 100
"""Number of episodes in a mean return. The example ``sac`` averages fewer, because it runs few episodes."""
SAC_WINDOW = 20
Point = tuple[float, float, float]
COLOURS = ("#1f6fb4", "#8a9099", "#d98032")


class Subject(NamedTuple):
    """One plot of the gallery.

    Args:
        title: Title of the plot.
        goal: Mean return that ends a run, infinite for none.
        systems: Functions of the seed that return a curve of (env steps, seconds, mean return), by label. The first one
            is parenv.
    """

    title: str
    goal: float
    systems: Mapping[str, Callable[[int], Sequence[Point]]]


def program(name: str) -> Any:
    """Import and return a program of ``examples/``."""
    sys.path.insert(0, str(ROOT / "examples"))
    return importlib.import_module(name)


def example(name: str, *arguments: str) -> Callable[[int], Sequence[Point]]:
    """Return a function that runs a program of ``examples/`` with a seed and returns its curve."""

    def run(seed: int) -> Sequence[Point]:
        curve: Sequence[Point] = program(name).main(["--seed", str(seed), *arguments]).points
        return list(dropwhile(lambda point: point[2] == 0.0, curve))  # Before the end of the first episode.

    return run


def stable_baselines(
    algorithm: str,
    env_id: str,
    num_envs: int,
    env_steps: int,
    goal: float,
    window: int = WINDOW,
    **settings: Any,
) -> Callable[[int], Sequence[Point]]:
    """Return a function that runs an algorithm of Stable-Baselines3 with a seed and returns its curve.

    Args:
        algorithm: Class name of the algorithm, such as ``"PPO"``.
        env_id: Gymnasium id of the environment.
        num_envs: Number of sub-environments, all in this process.
        env_steps: Env steps after which the run ends.
        goal: Mean return that ends the run.
        window: Number of episodes in a mean return.
        **settings: Further arguments of the algorithm.
    """

    def run(seed: int) -> Sequence[Point]:
        import stable_baselines3
        import torch
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.env_util import make_vec_env

        torch.set_num_threads(1)
        points: list[Point] = []
        began = time.perf_counter()

        class Note(BaseCallback):
            def _on_step(self) -> bool:
                episodes = self.model.ep_info_buffer
                mean = float(np.mean([episode["r"] for episode in episodes])) if episodes else -np.inf
                if episodes and (not points or self.num_timesteps - points[-1][0] >= env_steps / POINTS):
                    points.append((self.num_timesteps, time.perf_counter() - began, mean))
                return len(episodes) < window or mean < goal

        # Given an id, make_vec_env enables rendering, and LunarLander then also simulates the particles of its flames.
        envs = make_vec_env(partial(gym.make, env_id), num_envs, seed)
        model = getattr(stable_baselines3, algorithm)(
            "MlpPolicy", envs, seed=seed, device="cpu", stats_window_size=window, **settings
        )
        model.learn(env_steps, Note())
        envs.close()
        return points

    return run


AS_IN_THE_ZOO = ("--num-envs", "8", "--epochs", "20", "--total-env-steps", "100000")
"""Settings of RL Baselines3 Zoo for CartPole-v1, except that the clip range is constant."""

SUBJECTS = {
    "cartpole-ppo": Subject(
        "PPO on CartPole-v1",
        475.0,
        {
            "parenv, 2 workers": example("ppo", *AS_IN_THE_ZOO),
            "the same in one process": example("ppo_plain", *AS_IN_THE_ZOO),
            "Stable-Baselines3": stable_baselines(
                "PPO", "CartPole-v1", 8, 100_000, 475.0, n_steps=32, batch_size=256, n_epochs=20, gamma=0.98,
                gae_lambda=0.8, ent_coef=0.0, learning_rate=lambda left: 1e-3 * left,
            ),
        },
    ),
    "cartpole-dqn": Subject(
        "Double DQN on CartPole-v1",
        475.0,
        {"parenv, 2 workers": example("dqn"), "the same in one process": example("dqn_plain")},
    ),
    "lunarlander-ppo": Subject(
        "PPO on LunarLander-v3",
        200.0,
        {
            "parenv, 2 workers": example(
                "ppo", "--env-id", "LunarLander-v3", "--total-env-steps", "1000000", "--stop-return", "200",
                "--rollout-length", "1024", "--learning-rate", "0.0003", "--gamma", "0.999", "--gae-lambda", "0.98",
                "--epochs", "4", "--minibatch-size", "64", "--entropy-coef", "0.01",
            ),
            "Stable-Baselines3": stable_baselines(
                "PPO", "LunarLander-v3", 16, 1_000_000, 200.0, n_steps=1024, batch_size=64, gae_lambda=0.98,
                gamma=0.999, n_epochs=4, ent_coef=0.01, learning_rate=lambda left: 3e-4 * left,
            ),
        },
    ),
    "halfcheetah-sac": Subject(
        "SAC on HalfCheetah-v5",
        float("inf"),
        {
            "parenv, 2 workers": example(
                "sac", "--env-id", "HalfCheetah-v5", "--total-env-steps", "30000", "--learning-starts", "2000"
            ),
            "Stable-Baselines3": stable_baselines(
                "SAC", "HalfCheetah-v5", 1, 30_000, float("inf"), window=SAC_WINDOW, learning_starts=2_000,
                batch_size=128, learning_rate=1e-3, train_freq=2, gradient_steps=1,
                policy_kwargs={"net_arch": [128, 128]},
            ),
        },
    ),
}  # fmt: skip


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most :data:`POINTS` points of a curve, with the first and the last one."""
    places = np.unique(np.linspace(0, len(points) - 1, min(POINTS, len(points))).round().astype(int))
    return [tuple(round(float(value), 3) for value in points[place]) for place in places]  # type: ignore[misc]


def band(curves: Sequence[Sequence[Point]], column: int) -> tuple[Any, Any, Any, Any]:
    """Return positions, and the median, minimum and maximum of several curves there, each ``[STORED]``.

    A curve that has ended keeps its last value.

    Args:
        curves: One curve per seed.
        column: 0 for positions in env steps, 1 for positions in seconds.
    """
    ends = [curve[-1][column] for curve in curves]
    places = np.linspace(min(curve[0][column] for curve in curves), max(ends), STORED)
    values = [np.interp(places, [p[column] for p in curve], [p[2] for p in curve]) for curve in curves]
    return places, np.median(values, 0), np.min(values, 0), np.max(values, 0)


def stored(curves: Sequence[Sequence[Point]]) -> dict[str, Any]:
    """Return what the repository keeps of the runs of one system: their ends, and a band over both axes."""
    ends = {name: spread([curve[-1][column] for curve in curves]) for column, name in enumerate((*AXES, "mean return"))}
    over = {}
    for column, name in enumerate(AXES):
        places, *rows = band(curves, column)
        over[name] = {"from": places[0], "to": places[-1]} | {
            row: values.tolist() for row, values in zip(("median", "min", "max"), rows, strict=True)
        }
    return {"ends": ends, "over": over}


def draw(name: str, found: Mapping[str, Any]) -> Any:
    """Return a figure of the return over env steps and over seconds.

    Lines are medians of the seeds, and bands reach from minimum to maximum.

    Args:
        name: Name of the plot.
        found: Results of :func:`stored`, by label.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    subject = SUBJECTS[name]
    figure, axes = plt.subplots(2, 1, figsize=(7.2, 7), sharey=True, layout="constrained")
    for axis, unit in zip(axes, AXES, strict=True):
        for (label, one), colour in zip(found.items(), COLOURS, strict=False):
            over = one["over"][unit]
            places = np.linspace(over["from"], over["to"], len(over["median"]))
            axis.fill_between(places, over["min"], over["max"], color=colour, alpha=0.2, linewidth=0)
            axis.plot(places, over["median"], color=colour, linewidth=1.8, label=label)
        if np.isfinite(subject.goal):
            axis.axhline(subject.goal, color="black", linestyle=":", linewidth=1)
        axis.set(xlabel=unit, ylabel="mean return")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(loc="lower right", frameon=False)
    axes[0].set_title(subject.title)
    return figure


def block() -> str:
    """Return the generated part of the page, including its markers."""
    kept = [name for name in SUBJECTS if (RESULTS / f"gallery_{name}.json").exists()]
    parts = [_entry(name, json.loads((RESULTS / f"gallery_{name}.json").read_text())) for name in kept]
    return "<!-- curves -->\n" + ("\n".join(parts) or "No curves are kept yet.\n") + "<!-- end of curves -->"


def filled(page: str) -> str:
    """Return the page with its generated part replaced."""
    return re.sub(r"<!-- curves -->.*<!-- end of curves -->", lambda _: block(), page, flags=re.DOTALL)


def _entry(name: str, kept: Any) -> str:
    subject, facts = SUBJECTS[name], kept["machine"]
    rows = "\n".join(
        "| {} | {:,.0f} | {:,.1f} | {:,.1f} |".format(label, *(end["median"] for end in one["ends"].values()))
        for label, one in kept["results"].items()
    )
    return f"""## {subject.title}

![Return over env steps and over seconds](../benchmarks/results/gallery_{name}.png)

`python benchmarks/gallery.py {name}`, on {facts["cpu"]}, {facts["cores"]} cores; medians at the end of the runs:

| | env steps | seconds | mean return |
|---|---|---|---|
{rows}
"""


def run_all(name: str, seeds: Sequence[int]) -> dict[str, list[list[Point]]]:
    """Run all systems of a plot for each seed in turn, and return the curves by label."""
    found: dict[str, list[list[Point]]] = {label: [] for label in SUBJECTS[name].systems}
    for seed in seeds:
        for number, label in enumerate(found):
            print(f"== {name}: {label}, seed {seed}", flush=True)
            command = [sys.executable, __file__, name, "--one", str(number), str(seed)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[label].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def main() -> None:
    """Run and draw the plots that the command line names, or a single run for the parent process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"Plots to draw, out of {', '.join(SUBJECTS)} (default: {', '.join(SHORT)}).",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="Seeds of the runs (default: 1 to 5).")
    parser.add_argument("--one", type=int, nargs=2, metavar=("SYSTEM", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.names or SHORT
    if unknown := set(names) - SUBJECTS.keys():
        parser.error(f"unknown names: {', '.join(sorted(unknown))}")
    if options.one:
        system, seed = options.one
        print(json.dumps(thinned(list(SUBJECTS[names[0]].systems.values())[system](seed))))
        return
    for name in names:
        found = {label: stored(curves) for label, curves in run_all(name, options.seeds).items()}
        save_picture(draw(name, found), f"gallery_{name}", 110)
        save(f"gallery_{name}", found)
        PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
