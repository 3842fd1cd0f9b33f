"""The health of a training run: bounds on its metrics, what a crossed bound usually means, and what to change.

Every bound is on the mean of the last :data:`WINDOW` steps, so that one odd step is no sign. This module depends only
on a run's metrics, from which it cannot tell for certain why a bound was crossed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

WINDOW = 5
BEFORE = 20
"""The usual size of a gradient is the median of this many steps before the window."""
LEAST_REWARD = 0.1
"""If the best reward is below this, it is mostly noise, and nothing is lost when it falls."""
Points = Mapping[str, Sequence[tuple[int, float]]]
LR = "verl.actor_rollout_ref.actor.optim.lr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A bound on one measured quantity.

    ``metrics`` are its names, of which the first that a run logs counts. A run crosses the bound if the mean of its
    last steps is below ``least`` times, or above ``most`` times, what ``compared`` returns. ``source`` is where the
    bound comes from.
    """

    name: str
    metrics: tuple[str, ...]
    compared: Callable[[pd.Series], pd.Series | float]
    to: str
    means: str
    change: str
    source: str
    least: float | None = None
    most: float | None = None


class Sign(NamedTuple):
    """A crossed bound: the first step of the crossing, the mean of the last steps, and the bound as a number."""

    bound: Bound
    step: int
    value: float
    limit: float

    @property
    def seen(self) -> str:
        """What was measured: ``entropy 0.02 is below 0.1, a tenth of its first 5 steps, since step 12``."""
        side = "below" if self.bound.least is not None else "above"
        of = f", {self.bound.to}" if self.bound.to else ""
        return f"{self.bound.name} {self.value:.3g} is {side} {self.limit:.3g}{of}, since step {self.step}"

    @property
    def text(self) -> str:
        return f"{self.seen}: {self.bound.means}; {self.bound.change}"


def _first(values: pd.Series) -> float:
    return float(values.iloc[:WINDOW].median())


def _before(values: pd.Series) -> pd.Series:
    return values.shift(WINDOW).rolling(BEFORE, min_periods=WINDOW).median()


def _best(values: pd.Series) -> pd.Series:
    best = values.rolling(WINDOW).mean().cummax()
    return best.where(best >= LEAST_REWARD, 0.0)  # a limit of 0 is never crossed


def _one(values: pd.Series) -> float:
    return 1.0


BOUNDS = (
    Bound(
        name="entropy",
        metrics=("actor/entropy", "rollout/entropy"),
        least=0.1,
        compared=_first,
        to=f"a tenth of its first {WINDOW} steps",
        means="the policy is almost certain of every token, so the rollouts of a group are alike and teach nothing",
        change=f"lower {LR}, raise actor.clip_ratio_high to 0.28, or set actor.entropy_coeff to 0.001",
        source="DAPO, arXiv 2503.14476, section 3.1; arXiv 2505.22617",
    ),
    Bound(
        name="entropy",
        metrics=("actor/entropy", "rollout/entropy"),
        most=3.0,
        compared=_first,
        to=f"three times that of its first {WINDOW} steps",
        means="replies turn to noise, usually because the updates are too large",
        change=f"lower {LR}, or stay closer to the first policy with actor.use_kl_loss",
        source="arXiv 2505.22617; the factor is from runs of a small policy",
    ),
    Bound(
        name="gradient norm",
        metrics=("actor/grad_norm",),
        most=5.0,
        compared=_before,
        to=f"five times its median of the {BEFORE} steps before",
        means="a few rows dominate the update, or the policy has left the region where its rollouts were drawn",
        change=f"lower {LR}; actor.optim.clip_grad limits each update, but this norm is that before clipping",
        source="ZClip, arXiv 2504.02507",
    ),
    Bound(
        name="reply length",
        metrics=("response_length/mean",),
        most=2.0,
        compared=_first,
        to=f"twice that of its first {WINDOW} steps",
        means="replies grow without better answers, or repeat themselves",
        change='set train.overlong = "penalty", and look at a rollout',
        source="Dr. GRPO, arXiv 2503.20783; DAPO, section 3.4",
    ),
    Bound(
        name="share of groups without spread",
        metrics=("rollout/equal_groups",),
        most=0.75,
        compared=_one,
        to="",
        means="most prompts are answered always or never, and teach nothing",
        change="mix in shorter documents if the reward is low and longer ones if it is high, or train.dynamic_sampling",
        source="DAPO, section 3.2",
    ),
    Bound(
        name="share of memories cut at their limit",
        metrics=("rollout/cut_share",),
        most=0.1,
        compared=_one,
        to="",
        means="memories grow into reading.memory_tokens, and what comes last in them is lost",
        change='raise reading.memory_tokens, or set train.overlong = "penalty"',
        source="MemAgent, arXiv 2507.02259, bounds its memories to 1,024 tokens",
    ),
    Bound(
        name="reward",
        metrics=("critic/score/mean",),
        least=0.5,
        compared=_best,
        to=f"half of its best {WINDOW} steps",
        means="the policy has lost what it had learnt",
        change=f"lower {LR}, and continue from a checkpoint before the fall",
        source="DAPO, section 4.3, which reads collapse from reward, length and entropy",
    ),
)


def signs(points: Points) -> list[Sign]:
    """Return the bounds that a run crosses at its last step, in the order of :data:`BOUNDS`.

    ``points`` has the (step, value) pairs of every metric. A bound needs :data:`WINDOW` steps, and twice as many if it
    compares with earlier ones.
    """
    import pandas as pd

    found = []
    for bound in BOUNDS:
        logged = next((points[name] for name in bound.metrics if points.get(name)), ())
        values = pd.Series(dict(logged), dtype=float)
        compares = bound.compared is not _one
        if len(values) < WINDOW * (1 + compares):
            continue
        recent = values.rolling(WINDOW).mean()
        limit = (bound.least or bound.most) * pd.Series(bound.compared(values), index=values.index)
        crossed = recent < limit if bound.least is not None else recent > limit
        crossed &= limit > 0  # groups without spread have no gradient at first, and any would cross five times nothing
        crossed.iloc[: WINDOW * (1 + compares) - 1] = False
        if crossed.iloc[-1]:
            healthy = crossed.index[~crossed]
            since = crossed.index[crossed.index > healthy[-1]][0]
            found.append(Sign(bound, int(since), float(recent.iloc[-1]), float(limit.iloc[-1])))
    return found


def points_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return the (step, value) pairs of every metric in the rows of a run's metrics."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row["metrics"].items():
            points.setdefault(name, []).append((row["step"], value))
    return points
