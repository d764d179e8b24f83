"""Writes ``results/`` into ``RESULTS.md``, ``scaling.md`` and the page on when parallelism helps.

In the guide that is what stands between ``<!-- name -->`` and ``<!-- end of name -->``.

python benchmarks/tables/table.py
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import devices
import field
import growth
import on_paper
import one_machine
import sentences

HERE = Path(__file__).parents[1]
GUIDE = HERE.parent / "docs" / "explanation" / "when-parallelism-helps.md"
RESULTS, SCALING = HERE / "RESULTS.md", HERE / "scaling.md"
DRIVER = "driver's processor, rollout of a worker, "
IN_GUIDE = (
    "1,024 CartPoles", "8 Pongs", "first pool", "memory per", "driver's work", "PPO on", "DQN on", "gradients of",
    "accelerate,", "a pool over", "pool,", "64 workers", "4,096", "a trace", "vector env, step, under",
    "vector env, send and recv, under", "a SIGKILLed", "a hung",
)  # fmt: skip
TABLES = """
Measured on {machine}. Values are medians. All systems ran in turn, each in its own process.
`make bench` repeats the measurements, with the other libraries in their own virtual environments.
[All measurements](../measurements.md) has every variant, the pictures, and the systems that could not be measured.

Stepping a vector env with random actions, as a share of two independent processes that only step. Each row is the best
variant of a library. EnvPool steps its own environments in C++, and no environments in Python. The best value and
ties are bold:

{stepping}

Rollouts and sleeping environments as a share of independent processes. The other columns are times. Each row is the
best variant of a library:

{others}

Libraries that start faster fork the main process, which is safe only before it has threads or a GPU. parenv never
forks the main process.
For parenv, it is the time of the second vector env of a process. The first takes {first:.2g} s.
The env steps to 475 compare the PPO of each library with the same settings, and not its workers.

{own}
"""
RESULTS_FILE = """# Results

Measured on {machine}. Values are medians. `python benchmarks/tables/table.py` writes this page from the files under
`results/`, each of which contains its command and its machine. `make bench` repeats everything.

## Compared with other libraries

Stepping with random actions, as a share of two independent processes that only step (`peers/stepping.py`). EnvPool
steps
its own environments in C++, and no environments in Python. It is a reference only.

{stepping}

![Stepping vector envs](results/peers_stepping.png)

The other comparisons (`peers/rollouts.py`, `sleeping.py`, `startup.py`, `weights.py`, `reduction.py`, `to_475.py`).
Workers get their own copy of the weights and acknowledge it, except for "one copy for all". "fork" in a start means
that the main process is forked, which is safe only before it has threads or a GPU. parenv never forks it.

{others}

![64 environments that sleep](results/peers_sleeping.png)
![Starting 8 workers](results/peers_startup.png)

## parenv alone

The ideal loop runs the same environments and forward passes in the same number of independent processes. Faults come
at random,
one per 2 s on average: SIGKILL, SIGSEGV, SIGSTOP with and without SIGCONT, and environments that raise, segfault or
exit. `make soak` repeats them.

{own}

![Share of the limit that vector envs reach](results/vector_env.png)

## How the overhead grows

The time per unit at each size, measured by `scaling.py`. The name of a curve contains the unit. Two functions are
fitted to
the time of n units: a + b n, by relative errors, and c times n to the power of the exponent. The exponent is 1 if
the time is
linear, and less if a unit becomes faster. "Rises by" compares the largest size with the fastest one. It is bold if
their
repeats do not overlap. Independent processes and copies are the references. If they rise, the machine does.
Steps of many workers take longer when the cores are full (second table). In sync mode all workers wait for the
slowest.

{growth}

![How cost grows](results/scaling.png)
"""


def read(name: str) -> Any:
    """One file of results."""
    return json.loads((HERE / "results" / f"{name}.json").read_text())


def blocks() -> dict[str, str]:
    """Return the generated parts of the guide with their markers, by name."""
    vector_env, cores = read("vector_env"), read("peers_cores")["results"]
    parts = {
        "when it pays": sentences.when_it_pays(vector_env),
        "shared machine": sentences.shared_machine(vector_env),
        "results": tables(),
        "a GPU": f"\n{devices.gpu(read('gpu')['results'])}\n",
        "rollouts on a GPU": f"\n{devices.on_gpu(read('batches_gpu')['results'])}\n",
        "its machine": devices.described(read("gpu")["machine"]),
        **{f"cores, {case}": f"\n{devices.cores(cores, case)}\n" for case in ("cartpole", "halfcheetah", "rollouts")},
    }
    return {name: f"<!-- {name} -->{text}<!-- end of {name} -->" for name, text in parts.items()}


def filled(guide: str) -> str:
    """Return the guide with all blocks renewed."""
    found = blocks()
    return re.sub(r"<!-- ([^>]+) -->.*?<!-- end of \1 -->", lambda match: found[match[1]], guide, flags=re.DOTALL)


def interpreters() -> list[tuple[str, str]]:
    """Return rows on sub-environments in another interpreter."""
    found = read("interpreters")["results"]
    steps = [f"{case} {found[case]['seconds per step, ratio']:.2f}" for case in ("cartpole-64", "halfcheetah-16")]
    start = found["start_s"]
    return [
        ("time per step in another interpreter / in an ordinary worker", ", ".join(steps)),
        ("start of 2 workers in another interpreter", f"{start['another interpreter']:.2f} s"),
    ]


def evaluation() -> tuple[str, str]:
    """Return the row on evaluations beside static batches."""
    found = read("evaluation")["results"]
    times = (
        found[f"{kind}, static batches"]["times parenv.evaluate, 2 workers"]
        for kind in ("SyncVectorEnv", "AsyncVectorEnv")
    )
    return (
        "96 episodes whose lengths differ tenfold: static batches of SyncVectorEnv / AsyncVectorEnv",
        " / ".join(f"{time:.1f}" for time in times) + " times the seconds of `parenv.evaluate` with 2 workers",
    )


def rows() -> list[tuple[str, str]]:
    """Parenv's own figures: what, and how much."""
    cartpole, sleeping, pong = (read(f"rollouts_{case}")["results"] for case in ("cartpole", "sleeping", "pong"))
    startup, driver, publish = (read(name)["results"] for name in ("startup", "driver", "publish"))
    curves = read("learning_curves")["results"]
    vector_env, nemesis, faults = (read(name)["results"] for name in ("vector_env", "nemesis", "faults"))
    gradients, gradient_curves, learners = (
        read(name)["results"] for name in ("gradients", "gradient_curves", "learners")
    )
    scaling, tracing = read("scaling")["results"], read("tracing")["results"]
    sb3, batches = read("sb3_accelerate")["results"], read("batches")["results"]
    collecting, learning = ([case for case in sb3 if case.startswith(word)] for word in ("collecting", "PPO"))
    reduction = gradients["reduction, ms"]
    by_workers = gradients["samples per second by number of workers"]
    driver_share = gradients["driver's processor time over the time of a round"]

    def all_to_475(name: str) -> str:
        found = gradient_curves[name]
        return f"{found['median_env_steps']:,.0f} env steps, {found['median_seconds']:.0f} s"

    def times(part: str, curve: str) -> str:
        return f"{scaling[part]['curves'][curve]['largest over smallest']:.2f}"

    def last_row(name: str, column: str) -> float:
        return float(statistics.median(rows[-1][column] for rows in learners[name]))

    def times_beside(cases: Iterable[str], system: str) -> str:
        found = [1 / sb3[case][system]["ratio_to_accelerate"] for case in cases]
        return " / ".join(f"{times:.2f}" for times in found)

    def ends_of(runs: Any) -> str:
        ends = [run[-1][1] for run in runs]
        return f"{statistics.mean(ends):.0f} ± {statistics.stdev(ends):.0f}"

    def share_of_loop(loop: str) -> str:
        return " / ".join(f"{found['pool']['median'] / found[loop]['median']:.2f}" for found in batches.values())

    def share(found: Any, mode: str) -> str:
        return f"{found[mode]['ratio_to_ideal']:.2f}"

    def to_475(algorithm: str, label: str) -> str:
        found = curves[f"{algorithm}, {label}"]
        return f"{found['median_env_steps']:,.0f} env steps, {found['median_seconds']:.0f} s"

    def stepping(case: str) -> str:
        found = vector_env[case]
        rate = found["parenv"]["median"]
        shares = (found["parenv"]["ratio_to_limit"], found["parenv halves"]["ratio_to_limit"])
        times = (rate / found["sync"]["median"], rate / found["async"]["median"])
        return (
            f"{shares[0]:.2f} / {shares[1]:.2f} of two bare loops; step is {times[0]:.2f} times SyncVectorEnv, "
            f"{times[1]:.1f} times AsyncVectorEnv"
        )

    def under_faults(found: Any) -> str:
        recover = found["seconds_to_recover"]
        wrong = " / ".join(str(found[kind]) for kind in ("lost", "duplicated", "torn"))
        return (
            f"{found['transitions']:,} transitions, {found['deaths']} deaths; {wrong} / {len(found['residue'])}; back "
            f"after {recover['median']:.2f} s, at worst {recover['worst']:.2f} s; {found['throughput_ratio']:.2f} of "
            "the throughput without"
        )

    many = vector_env["many-1024"]
    steps = ("cartpole-8", "cartpole-64", "cartpole-256", "lunarlander-16", "halfcheetah-16", "pong-8")
    return [
        *((f"vector env, {case}: step / send and recv", stepping(case)) for case in steps),
        (
            "vector env, 64 that sleep 2 ms, send and recv",
            f"{vector_env['sleeping-64']['parenv send/recv']['ratio_to_limit']:.2f} of the sum of their own rates",
        ),
        (
            "1,024 CartPoles, start and memory: 16 workers / AsyncVectorEnv",
            " / ".join(f"{found['seconds']:.1f} s, {found['pss_mb']:,.0f} MB" for found in many.values()),
        ),
        ("64 CartPoles, MLP, async", f"{share(cartpole, 'async')} of the ideal loop"),
        ("64 CartPoles, MLP, sync", f"{share(cartpole, 'sync')} of the ideal loop"),
        ("64 environments that sleep 2 ms, 64 workers, async", f"{share(sleeping, 'async')} of the ideal loop"),
        (
            "8 Pongs from pixels, convolutions, async / sync",
            f"{share(pong['convolutions'], 'async')} / {share(pong['convolutions'], 'sync')} of the ideal loop",
        ),
        *interpreters(),
        evaluation(),
        ("8 workers ready, helper running", f"{startup['seconds_to_8_workers_with_the_zygote_ready']:.2f} s"),
        ("first pool of a process", f"import torch + {startup['first_pool_beyond_import_torch']:.2f} s"),
        ("memory per further worker with torch", f"{startup['pss_mb_per_further_worker']:.0f} MB (PSS)"),
        (
            "driver's work per rollout, seldom / back to back",
            f"{driver['driver_us_per_rollout']:.0f} / {driver['driver_us_per_rollout_back_to_back']:.0f} µs",
        ),
        ("publish 1 / 40 MB until 4 workers hold it", " / ".join(
            f"{publish[size]['publish, ms']['median']:.2g} ms" for size in ("1 MB", "40 MB")
        )),
        ("PPO on CartPole to 475, plain", to_475("PPO", "plain, one process")),
        ("PPO on CartPole to 475, pool (sync)", to_475("PPO", "with the pool, 2 workers")),
        ("DQN on CartPole to 475, plain", to_475("DQN", "plain, one process")),
        ("DQN on CartPole to 475, pool (sync)", to_475("DQN", "with the pool, 2 workers")),
        (
            "gradients of 1.7 million parameters, 1 ms a step: 2 workers / the driver's share of a round",
            f"{by_workers['2']['ratio_to_1']:.2f} times one worker / {100 * driver_share['2']:.1f} %",
        ),
        (
            "reducing 4 gradients of 40 MB",
            f"{reduction['4 x 40 MB']['ratio_to_reading 4 x 40 MB']:.2f} times reading them once",
        ),
        (
            "reducing 2 gradients of 40 MB / gloo all_reduce of 2 processes",
            (
                f"{reduction['2 x 40 MB']['median']:.1f} ms / "
                f"{reduction['gloo all_reduce, 2 processes, 40 MB']['median']:.0f} ms"
            ),
        ),
        (
            "accelerate, PPO of Stable-Baselines3 collecting, 16 HalfCheetahs / 64 CartPoles",
            (
                f"{times_beside(collecting, 'DummyVecEnv')} times a DummyVecEnv, "
                f"{times_beside(collecting, 'SubprocVecEnv')} times a SubprocVecEnv"
            ),
        ),
        (
            "accelerate, PPO of Stable-Baselines3 on CartPole to 475, 8 / 64 environments",
            f"{times_beside(learning, 'DummyVecEnv')} times the seconds with a DummyVecEnv",
        ),
        *(
            (
                f"accelerate, {name.removeprefix('curves: ')}, mean return, {len(curve['accelerate'])} seeds: "
                + " / ".join(curve),
                " / ".join(ends_of(runs) for runs in curve.values()),
            )
            for name, curve in sb3.items()
            if name.startswith("curves: ")
        ),
        (
            "a pool over a native vector env, " + " / ".join(batches),
            (
                f"{share_of_loop('bare loop')} of a bare loop, "
                f"{share_of_loop('bare loop, keeping')} of one that keeps as much"
            ),
        ),
        *((f"{name} on CartPole to 475, 4 seeds", all_to_475(name)) for name in gradient_curves),
        (
            "DQN, 1,000 iterations (128,000 env steps): one learner / two, on the same 2 cores",
            " / ".join(
                f"{last_row(name, 'seconds'):.0f} s, {last_row(name, 'steps_balanced'):.0f} steps balanced"
                for name in learners
            ),
        ),
        *(
            (f"{name}, under faults: lost / duplicated / torn / left behind", under_faults(found))
            for name, found in nemesis.items()
        ),
        (
            "64 workers against 1, driver's work for a worker's rollout: async / sync; start of a worker",
            (
                f"{times('workers', DRIVER + 'async')} / "
                f"{times('workers', DRIVER + 'sync')}; "
                f"{times('workers', 'start, per worker')} times"
            ),
        ),
        (
            "64 workers against 1, an env step that sleeps 2 ms: async / sync",
            " / ".join(times("workers", f"env step of a worker, {mode}") for mode in ("async", "sync")) + " times",
        ),
        (
            "4,096 sub-environments against 64, time per env step: pool / vector env / bare loops",
            (
                f"{times('environments', 'env step with MLP, async pool')} / "
                f"{times('environments', 'env step, ParallelVectorEnv')} / "
                f"{times('environments', 'env step, bare loops')} times"
            ),
        ),
        (
            "a trace, its work over the time of a rollout of 128 steps, 64 CartPoles: async / sync",
            " / ".join(f"{100 * tracing[mode]['the trace by itself']['share']:.2f} %" for mode in ("async", "sync")),
        ),
        (
            "a SIGKILLed worker is noticed / another one steps, CartPole with a torch policy",
            (
                f"{faults['until noticed, ms']['median']:.0f} ms, at worst "
                f"{faults['until noticed, ms']['worst']:.0f} ms / "
                f"{faults['until another one steps, s']['median']:.2f} s, at worst "
                f"{faults['until another one steps, s']['worst']:.2f} s"
            ),
        ),
        (
            "a hung step is cut, over a limit of 0.5 s / 1 s / 2 s",
            " / ".join(f"{faults[f'hung, over a limit of {limit} s']['median']:.2f}" for limit in ("0.5", "1", "2")),
        ),
    ]  # fmt: skip


def machine() -> str:
    """Return the machines of all figures except those that are named beside their figures."""
    names = {file.stem for file in (HERE / "results").glob("*.json")} - {
        "remote",
        "gpu",
        "batches_gpu",
        "peers_cores",
        "by_hand",
    }
    machines = [read(name)["machine"] for name in names]
    described = "{cpu}, {cores} cores, Python {python}, torch {torch}"
    return "; ".join(sorted({described.format(**facts) for facts in machines}))


def table(figures: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of Markdown."""
    return ["| | |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in figures)]


def tables() -> str:
    """Return the guide's summary of what to expect."""
    own = [(what, figure) for what, figure in rows() if what.startswith(IN_GUIDE)]
    return TABLES.format(
        machine=machine(),
        stepping="\n".join(field.by_library(field.stepping())),
        others="\n".join(field.by_library(field.others())),
        own="\n".join(table(own)),
        first=field.start_s("parenv ParallelVectorEnv, the first"),
    )


def everything() -> str:
    """The file of results."""
    return RESULTS_FILE.format(
        machine=machine(),
        stepping="\n".join(field.by_system(field.stepping())),
        others="\n\n".join("\n".join(field.by_system([column])) for column in field.others()),
        own="\n".join(table(rows())),
        growth=growth.tables(read("scaling")["results"]),
    )


def scaling() -> str:
    """The file of limits on paper."""
    published = json.loads((HERE / "tables" / "published.json").read_text())
    return on_paper.scaling(read("remote")) + one_machine.one_machine(
        read("many_workers"), read("collecting"), published
    )


if __name__ == "__main__":
    GUIDE.write_text(filled(GUIDE.read_text()))
    RESULTS.write_text(everything())
    SCALING.write_text(scaling())
