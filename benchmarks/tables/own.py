"""Sections about parenv alone, each from one file of results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from sections import Section, measured, read, span, table

MAIN_PROCESS_WORK = "driver's processor, rollout of a worker, "
STEPPING_CASES = ("cartpole-8", "cartpole-64", "cartpole-256", "lunarlander-16", "halfcheetah-16", "pong-8")


def sections() -> list[Section]:
    """Return all sections."""
    return [
        choice(), pinning(), stepping(), many_environments(), rollouts(), driver(), startup(), publishing(),
        interpreters(), evaluation(), native(), learning(), accelerated_collecting(), accelerated_learning(),
        accelerated_returns(), gradient_workers(), reduction(), gradient_learning(), learners(), faults(),
        random_faults(), many_workers(), many_rows(), tracing(),
    ]  # fmt: skip


def choice() -> Section:
    """Return what the default chooses, and its speed beside that of the other settings."""
    found = read("choice")
    names = {"parenv": "default", "SyncVectorEnv": "SyncVectorEnv", "AsyncVectorEnv": "AsyncVectorEnv"}
    rows = [
        [
            f"{case}, {condition}",
            one["chosen"].partition(", because")[0],
            f"{max(one['starts'].values())} of {sum(one['starts'].values())}",
            f"{one['share of the best setting']:.2f}",
            *(f"{one['ratio to SyncVectorEnv'][name]:.2f}" for name in names),
        ]
        for condition, cases in found.items()
        for case, one in cases.items()
    ]
    shares = [one["share of the best setting"] for cases in found.values() for one in cases.values()]
    return Section(
        f"Without options, `ParallelVectorEnv` reaches {span(shares)} of its best setting",
        "choice",
        "The last three columns are multiples of `SyncVectorEnv`. The third one counts the starts with the most\n"
        "frequent choice.\n\n" + table(["", "chosen", "starts", "share of the best setting", *names.values()], rows),
    )


def pinning() -> Section:
    """Return the speed of workers with one core each, or with the cores of a NUMA node."""
    found = read("pinning")
    rules = ("one core each", "the cores of one NUMA node")
    rows = [
        [f"{case}, {condition}", *(f"{one[rule]['ratio to all cores']:.2f}" for rule in rules)]
        for condition, cases in found.items()
        for case, one in cases.items()
    ]
    ratios = [one[rules[0]]["ratio to all cores"] for cases in found.values() for one in cases.values()]
    return Section(
        f"Two workers with one core each are {span(ratios)} times as fast as workers that may use all cores",
        "pinning",
        "The machine has one NUMA node, so the last column compares equal settings and shows the noise.\n\n"
        + table(["", *rules], rows),
    )


def stepping() -> Section:
    """Return the rates of vector envs."""
    found = read("vector_env")
    times = {
        case: [found[case]["parenv"]["median"] / found[case][other]["median"] for other in ("sync", "async")]
        for case in STEPPING_CASES
    }
    rows = [
        [
            case,
            *(f"{found[case][name]['ratio_to_limit']:.2f}" for name in ("parenv", "parenv halves")),
            f"{times[case][0]:.2f}",
            f"{times[case][1]:.1f}",
        ]
        for case in STEPPING_CASES
    ]
    rows.append(["sleeping-64", "", f"{found['sleeping-64']['parenv send/recv']['ratio_to_limit']:.2f}", "", ""])
    faster = [sum(pair[number] > 1 for pair in times.values()) for number in (0, 1)]
    heads = ("step", "send and recv", "step, times as fast as SyncVectorEnv", "times as fast as AsyncVectorEnv")
    return Section(
        f"`step` with 2 workers is faster than `SyncVectorEnv` in {faster[0]} of {len(times)} cases, and than "
        f"`AsyncVectorEnv` in {faster[1]} of {len(times)}",
        "vector_env",
        "The first two columns are shares of the upper bound: two independent processes that only step. For the 64\n"
        "environments that sleep 2 ms, the upper bound is the sum of their own rates.\n\n"
        + table(["", *heads], rows)
        + "\n\n![Share of the upper bound that vector envs reach](results/vector_env.png)\n"
        f"*Share of the upper bound that vector envs reach. {measured('vector_env')}*",
    )


def many_environments() -> Section:
    """Return start and memory of a large vector env."""
    found = read("vector_env")["many-1024"]
    ours, theirs = found.values()
    rows = [
        [name, f"{one['seconds']:.1f} s", f"{one['pss_mb']:,.0f} MB"]
        for name, one in (("parenv, 16 workers", ours), ("AsyncVectorEnv", theirs))
    ]
    return Section(
        f"1,024 CartPoles start in {ours['seconds']:.1f} s with 16 workers, and in {theirs['seconds']:.1f} s with "
        "`AsyncVectorEnv`",
        "vector_env",
        table(["", "start", "memory (PSS)"], rows),
    )


def rollouts() -> Section:
    """Return the share of the upper bound that rollouts reach."""
    cases = {
        "64 CartPoles with an MLP, 2 workers": ("rollouts_cartpole", ("async", "sync")),
        "8 Pongs from pixels with convolutions, 2 workers": ("rollouts_pong", ("async", "sync")),
        "64 environments that sleep 2 ms, 64 workers": ("rollouts_sleeping", ("async",)),
    }
    found = {}
    for case, (name, modes) in cases.items():
        results = read(name)
        results = results.get("convolutions", results)
        found[case] = [results[mode]["ratio_to_ideal"] for mode in modes]
    rows = [[case, *(f"{share:.2f}" for share in shares), *[""] * (2 - len(shares))] for case, shares in found.items()]
    return Section(
        f"Rollouts reach {span([share for shares in found.values() for share in shares])} of the upper bound",
        "rollouts_cartpole",
        "The upper bound is the same environments and forward passes in as many independent processes.\n\n"
        + table(["", "async", "sync"], rows),
    )


def driver_ms() -> str:
    """Return the processor time of the main process for a rollout, from the shortest to the longest."""
    found = read("driver")
    names = "driver_us_per_rollout_back_to_back", "driver_us_per_rollout"
    return span([found[name] / 1000 for name in names]) + " ms"


def driver() -> Section:
    """Return the work of the main process for a rollout."""
    found = read("driver")
    rare, close = found["driver_us_per_rollout"], found["driver_us_per_rollout_back_to_back"]
    rows = [
        ["rare rollouts, which find cold caches", f"{rare:.0f} µs"],
        ["rollouts one after the other", f"{close:.0f} µs"],
    ]
    return Section(
        f"A rollout takes {close:.0f} to {rare:.0f} µs of the main process",
        "driver",
        table(["", "processor time of the main process per rollout"], rows),
    )


def startup() -> Section:
    """Return the time to start, and the memory of a worker."""
    found = read("startup")
    ready = found["seconds_to_8_workers_with_the_zygote_ready"]
    memory = found["pss_mb_per_further_worker"]
    rows = [
        ["8 workers, if the fork server runs already", f"{ready:.2f} s"],
        ["first pool of a process, beyond `import torch`", f"{found['first_pool_beyond_import_torch']:.2f} s"],
        ["memory of each further worker, with torch", f"{memory:.0f} MB (PSS)"],
    ]
    return Section(
        f"8 workers start in {ready:.2f} s, and each worker takes {memory:.0f} MB",
        "startup",
        table(["", "time or memory"], rows),
    )


def publishing() -> Section:
    """Return the time to publish weights."""
    found = {size: one["publish, ms"]["median"] for size, one in read("publish").items()}
    rows = [[size, f"{milliseconds:.2g} ms"] for size, milliseconds in found.items()]
    return Section(
        f"4 workers have new weights of 40 MB after {found['40 MB']:.2g} ms",
        "publish",
        table(["weights", "time until 4 workers have loaded them"], rows),
    )


def interpreters() -> Section:
    """Return the overhead of sub-environments in another interpreter."""
    found = read("interpreters")
    ratios = {case: found[case]["seconds per step, ratio"] for case in ("cartpole-64", "halfcheetah-16")}
    start = found["start_s"]["another interpreter"]
    return Section(
        f"A step in another interpreter takes {span(list(ratios.values()))} times as long as in an ordinary worker",
        "interpreters",
        f"2 workers in another interpreter start in {start:.2f} s.\n\n"
        + table(
            ["", "time per step, relative to an ordinary worker"],
            [[case, f"{ratio:.2f}"] for case, ratio in ratios.items()],
        ),
    )


def evaluation() -> Section:
    """Return the time of evaluations in static batches."""
    found = read("evaluation")
    kinds = ("SyncVectorEnv", "AsyncVectorEnv")
    times = [found[f"{kind}, static batches"]["times parenv.evaluate, 2 workers"] for kind in kinds]
    return Section(
        f"Static batches take {span(times, 1)} times as long as `parenv.evaluate` with 2 workers",
        "evaluation",
        "96 episodes whose lengths differ tenfold:\n\n"
        + table(
            ["static batches of", "time, relative to `parenv.evaluate`"],
            [[f"`{kind}`", f"{time:.1f}"] for kind, time in zip(kinds, times, strict=True)],
        ),
    )


def native() -> Section:
    """Return the share of a loop over native vector envs that a pool reaches."""
    loops = ("bare loop", "bare loop, keeping")
    found = {
        case: [one["pool"]["median"] / one[loop]["median"] for loop in loops] for case, one in read("batches").items()
    }
    return Section(
        f"A pool over a native vector env reaches {span([shares[1] for shares in found.values()])} of a loop that "
        "stores as much",
        "batches",
        table(
            ["", "share of a loop that only steps", "share of a loop that also stores transitions"],
            [[case, *(f"{share:.2f}" for share in shares)] for case, shares in found.items()],
        ),
    )


def learning() -> Section:
    """Return the time of PPO and DQN to a mean return of 475."""
    found = read("learning_curves")
    kinds = ("with the pool, 2 workers", "plain, one process")
    rows = [_goal(found[f"{name}, {kind}"], f"{name}, {kind}") for name in ("PPO", "DQN") for kind in kinds]
    seconds = {
        name: [f"{found[f'{name}, {kind}']['median_seconds']:.0f} s" for kind in kinds] for name in ("PPO", "DQN")
    }
    return Section(
        "To a mean return of 475 on CartPole, "
        + ", and ".join(f"{name} takes {ours} with a pool, {plain} without" for name, (ours, plain) in seconds.items()),
        "learning_curves",
        "Medians of 3 seeds. The pool is in sync mode.\n\n" + table(["", "env steps", "time"], rows),
    )


def gradient_learning() -> Section:
    """Return the time of A2C and A3C to a mean return of 475."""
    found = read("gradient_curves")
    seconds = [one["median_seconds"] for one in found.values()]
    return Section(
        f"A2C and A3C take {min(seconds):.0f} to {max(seconds):.0f} s to a mean return of 475 on CartPole",
        "gradient_curves",
        "Medians of 4 seeds, whose results differ by more than the variants.\n\n"
        + table(["", "env steps", "time"], [_goal(one, name) for name, one in found.items()])
        + "\n\n![A2C and A3C: return over env steps, and policy lag](results/gradient_curves.png)\n"
        + f"*Median and range of the seeds, and policy lag. {measured('gradient_curves')}*",
    )


def _goal(run: Any, name: str) -> list[str]:
    return [name, f"{run['median_env_steps']:,.0f}", f"{run['median_seconds']:.0f} s"]


def accelerated_collecting() -> Section:
    """Return how much faster Stable-Baselines3 collects with ``accelerate``."""
    cases = {"16 HalfCheetahs": "collecting, 16 HalfCheetah", "64 CartPoles": "collecting, 64 CartPole"}
    systems = ("DummyVecEnv", "SubprocVecEnv")
    found = {name: [_relative(case, system) for system in systems] for name, case in cases.items()}
    return Section(
        f"With `accelerate`, PPO of Stable-Baselines3 collects {span([times[0] for times in found.values()])} times as "
        "fast as with a `DummyVecEnv`",
        "sb3_accelerate",
        table(
            ["", *(f"times as fast as with a {system}" for system in systems)],
            [[name, *(f"{time:.2f}" for time in times)] for name, times in found.items()],
        ),
    )


def accelerated_learning() -> Section:
    """Return the time of PPO of Stable-Baselines3 with ``accelerate``."""
    cases = {
        "8 environments": "PPO to 475, 8 environments, as in the zoo, seconds",
        "64 environments": "PPO to 475, 64 environments, seconds",
    }
    found = {name: _relative(case, "DummyVecEnv") for name, case in cases.items()}
    return Section(
        f"With `accelerate`, PPO of Stable-Baselines3 trains {span(list(found.values()))} times as long as with a "
        "`DummyVecEnv`",
        "sb3_accelerate",
        "CartPole, to a mean return of 475.\n\n"
        + table(["", "time, relative to a `DummyVecEnv`"], [[name, f"{time:.2f}"] for name, time in found.items()]),
    )


def _relative(case: str, system: str) -> float:
    return float(1 / read("sb3_accelerate")[case][system]["ratio_to_accelerate"])


def accelerated_returns() -> Section:
    """Return the final mean returns of Stable-Baselines3 with and without ``accelerate``."""
    curves = {
        name.removeprefix("curves: "): {kind: _ends(runs) for kind, runs in found.items()}
        for name, found in read("sb3_accelerate").items()
        if name.startswith("curves: ")
    }
    seeds = {len(runs) for name, found in read("sb3_accelerate").items() if "curves" in name for runs in found.values()}
    equal = sum(found["DummyVecEnv"] == found["accelerate"] for found in curves.values())
    kinds = ("DummyVecEnv", "accelerate", "accelerate async")
    return Section(
        f"`accelerate` reaches the same mean return as a `DummyVecEnv` in {equal} of {len(curves)} cases",
        "sb3_accelerate",
        f"Mean and standard deviation over {span(list(seeds), 0)} seeds of the mean return at the end of training.\n\n"
        + table(["", *kinds], [[name, *(found.get(kind, "") for kind in kinds)] for name, found in curves.items()]),
    )


def _ends(runs: Any) -> str:
    ends = [run[-1][1] for run in runs]
    return f"{statistics.mean(ends):.0f} ± {statistics.stdev(ends):.0f}"


def gradient_workers() -> Section:
    """Return what a second worker brings to gradient parallelism."""
    found = read("gradients")
    times = found["samples per second by number of workers"]["2"]["ratio_to_1"]
    share = found["driver's processor time over the time of a round"]["2"]
    return Section(
        f"2 workers compute gradients {times:.2f} times as fast as one",
        "gradients",
        "The policy has 1.7 million parameters, and an env step takes 1 ms. The main process takes "
        f"{100 * share:.1f} % of a\nround.",
    )


def reduction() -> Section:
    """Return the time to add up gradients."""
    found = read("gradients")["reduction, ms"]
    ours, gloo = found["2 x 40 MB"]["median"], found["gloo all_reduce, 2 processes, 40 MB"]["median"]
    times = found["4 x 40 MB"]["ratio_to_reading 4 x 40 MB"]
    rows = [
        ["2 gradients of 40 MB", f"{ours:.1f} ms"],
        ["2 gradients of 40 MB, gloo `all_reduce` of 2 processes", f"{gloo:.0f} ms"],
        ["4 gradients of 40 MB", f"{times:.2f} times the time to read them once"],
    ]
    return Section(
        f"The main process adds up 2 gradients of 40 MB in {ours:.1f} ms, gloo in {gloo:.0f} ms",
        "gradients",
        table(["", "time"], rows),
    )


def learners() -> Section:
    """Return the time of one and of two learners."""
    found = {
        name: {column: statistics.median(rows[-1][column] for rows in runs) for column in ("seconds", "steps_balanced")}
        for name, runs in read("learners").items()
    }
    one, two = (run["seconds"] for run in found.values())
    rows = [[name, f"{run['seconds']:.0f} s", f"{run['steps_balanced']:.0f}"] for name, run in found.items()]
    return Section(
        f"On the same 2 cores, two learners take {two:.0f} s for 1,000 iterations of DQN, and one learner {one:.0f} s",
        "learners",
        "Medians of 3 seeds after 1,000 iterations, which are 128,000 env steps in both cases.\n\n"
        + table(["", "time", "steps balanced"], rows)
        + "\n\n![DQN with one learner and with two](results/learners.png)\n"
        "*Time, loss and balanced steps of DQN on CartPole with one learner and with two, a line for each seed. "
        f"{measured('learners')}*",
    )


def faults() -> Section:
    """Return the time until a failure is noticed and repaired."""
    found = read("faults")
    noticed, again = found["until noticed, ms"], found["until another one steps, s"]
    rows = [
        ["a SIGKILL is noticed", f"{noticed['median']:.0f} ms", f"{noticed['worst']:.0f} ms"],
        ["the replacement takes its first step", f"{again['median']:.2f} s", f"{again['worst']:.2f} s"],
    ]
    limits = {limit: found[f"hung, over a limit of {limit} s"]["median"] for limit in ("0.5", "1", "2")}
    hung = " / ".join(f"{time:.2f}" for time in limits.values())
    return Section(
        f"{again['median']:.2f} s after a SIGKILL, the replacement of a worker takes its first step",
        "faults",
        "CartPole with a torch policy. A worker whose step hangs is killed after "
        f"{hung} times its limit of {' / '.join(limits)} s.\n\n" + table(["", "median", "worst"], rows),
    )


def random_faults() -> Section:
    """Return what is lost under random faults."""
    found = read("nemesis")
    lost, duplicated, torn, transitions = (
        sum(one[kind] for one in found.values()) for kind in ("lost", "duplicated", "torn", "transitions")
    )
    return Section(
        f"Of {transitions:,} transitions under random faults, {lost} are lost, {duplicated} duplicated and {torn} torn",
        "nemesis",
        "One fault occurs per 2 s on average: SIGKILL, SIGSEGV, SIGSTOP with and without SIGCONT, and environments\n"
        "that raise, segfault or exit. The throughput is relative to slices without faults. `make soak` repeats the\n"
        "test.\n\n"
        + table(
            [
                "", "transitions", "deaths", "lost", "duplicated", "torn", "left behind", "recovery, median", "worst",
                "throughput",
            ],
            [[name, *_under_faults(one)] for name, one in found.items()],
        ),
    )  # fmt: skip


def _under_faults(found: Mapping[str, Any]) -> list[str]:
    recover = found["seconds_to_recover"]
    return [
        f"{found['transitions']:,}",
        *(str(found[kind]) for kind in ("deaths", "lost", "duplicated", "torn")),
        str(len(found["residue"])),
        f"{recover['median']:.2f} s",
        f"{recover['worst']:.2f} s",
        f"{found['throughput_ratio']:.2f}",
    ]


def many_workers() -> Section:
    """Return how cost per worker changes from 1 to 64 workers."""
    found = read("scaling")["workers"]["curves"]
    times = {name: f"{one['largest over smallest']:.2f}" for name, one in found.items()}
    work, steps = (
        [times[curve + mode] for mode in ("async", "sync")] for curve in (MAIN_PROCESS_WORK, "env step of a worker, ")
    )
    rows = [
        ["processor time of the main process for a rollout", *work],
        ["env step that sleeps 2 ms", *steps],
        ["start of a worker", times["start, per worker"], times["start, per worker"]],
    ]
    return Section(
        f"With 64 workers, a rollout takes {work[0]} (async) and {work[1]} times (sync) the main process's time with "
        "one",
        "scaling",
        "Time with 64 workers, relative to one worker:\n\n" + table(["", "async", "sync"], rows),
    )


def many_rows() -> Section:
    """Return how the time per env step changes from 64 to 4,096 sub-environments."""
    found = read("scaling")["environments"]["curves"]
    names = {"env step with MLP, async pool": "pool", "env step, ParallelVectorEnv": "vector env"}
    names["env step, bare loops"] = "independent processes"
    times = {name: found[key]["largest over smallest"] for key, name in names.items()}
    return Section(
        f"With 4,096 sub-environments, an env step of a pool takes {times['pool']:.2f} times as long as with 64",
        "scaling",
        "CartPoles on 2 workers.\n\n"
        + table(
            ["", "time per env step with 4,096, relative to 64"],
            [[name, f"{time:.2f}"] for name, time in times.items()],
        ),
    )


def tracing() -> Section:
    """Return the overhead of a trace."""
    shares = {mode: 100 * read("tracing")[mode]["the trace by itself"]["share"] for mode in ("async", "sync")}
    return Section(
        f"A trace takes {span(list(shares.values()))} % of the time between rollouts",
        "tracing",
        "Rollouts of 128 steps with 64 CartPoles.\n\n"
        + table(["", "work of the trace"], [[mode, f"{share:.2f} %"] for mode, share in shares.items()]),
    )
