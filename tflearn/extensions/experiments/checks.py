"""Checks of a run's metrics for the signs that learning goes wrong.

A check is a pure function of the metrics' series. `docs/watching.md` says of each what it means
and what helps; the bounds are rules of thumb, not laws: Andrychowicz et al. 2020, "What Matters In
On-Policy Reinforcement Learning?" (arXiv 2006.05990), and Schulman 2017, "The Nuts and Bolts of
Deep RL Experimentation", name most of them.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

_LEAST_POINTS = 6  # of a metric, before its course means something
PAGE = 'docs/watching.md'


@dataclasses.dataclass(frozen=True)
class Points:
    """One metric's course: `steps` int64 [n], rising, and its finite `values` float64 [n] there."""

    steps: np.ndarray
    values: np.ndarray

    @functools.cached_property
    def quarters(self) -> tuple[np.ndarray, np.ndarray]:
        """The values of the first and of the last quarter of the points, at least two each."""
        size = max(2, len(self.values) // 4)
        return self.values[:size], self.values[-size:]


Series = Mapping[str, Points]  # by tag, such as 'train/extra/entropy'
# Returns whether it looks wrong, and what was seen; raises LookupError if too little is recorded.
Check = Callable[[Series], tuple[bool, str]]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check says.

    Attributes:
      check: the check's name, which is the heading's anchor in `PAGE`.
      wrong: whether it looks wrong; None if the run has not recorded what is needed, or too little
        of it.
      text: what was seen, with the figure; of an unmeasured check what is needed.
    """

    check: str
    wrong: bool | None
    text: str

    @property
    def link(self) -> str:
        """Where the documentation says what it means and what helps."""
        return f'{PAGE}#{self.check}'


def _course(series: Series, *tags: str) -> tuple[str, Points]:
    """Returns the first of these metrics that has enough points.
    Raises LookupError if there is none.
    """
    for tag in tags:
        if tag in series and len(series[tag].values) >= _LEAST_POINTS:
            return tag, series[tag]
    raise LookupError(tags)


def _returns(series: Series) -> tuple[str, Points]:
    return _course(series, 'evaluate/mean_return', 'collect/mean_return', 'train/mean_return')


def _of_variables(series: Series, end: str) -> dict[str, Points]:
    """Returns the metrics with enough points that have this end, by what is before it."""
    found = {tag.removesuffix(end): points for tag, points in series.items() if tag.endswith(end)}
    if known := {name: points for name, points in found.items() if len(points.values) >= _LEAST_POINTS}:
        return known
    raise LookupError(end)


def _change(points: Points) -> tuple[float, float, float]:
    """Returns the means of the first and the last quarter,
    and the standard deviation from one point to the next.
    """
    first, last = points.quarters
    noise = float(np.std(np.diff(points.values)) / np.sqrt(2.0))
    return float(first.mean()), float(last.mean()), noise


def returns_flat(series: Series) -> tuple[bool, str]:
    """The return is where it was: its change is within what one evaluation differs from the next."""
    tag, points = _returns(series)
    first, last, noise = _change(points)
    return last - first <= noise, f'{tag} went from {first:.4g} to {last:.4g} (noise {noise:.2g})'


def returns_fell(series: Series) -> tuple[bool, str]:
    """The return lost more than half of what it had gained."""
    tag, points = _returns(series)
    first, last, noise = _change(points)
    width = len(points.quarters[0])
    best = float(np.convolve(points.values, np.full(width, 1 / width), 'valid').max())
    fell = best - first > 2 * noise and best - last > max(0.5 * (best - first), noise)
    return fell, f'{tag} is {last:.4g} after a best of {best:.4g} (mean of {width} points)'


def entropy_collapsed(series: Series) -> tuple[bool, str]:
    """A discrete policy has lost nearly all of its entropy [nats] within the first half of the run."""
    tag, points = _course(series, 'train/extra/entropy')
    first, half = float(points.values[:2].mean()), float(points.values[: len(points.values) // 2 + 1][-2:].mean())
    # Below 0 it is a density's, which means nothing.
    wrong = first > 0 and 0 <= half < max(0.05 * first, 0.01)
    return wrong, f'{tag} went from {first:.3g} to {half:.3g} in half of the run'


def values_grow(series: Series) -> tuple[bool, str]:
    """Values are far beyond the discounted returns that episodes had."""
    tag, points = _course(series, 'train/extra/mean_value', 'train/extra/value', 'train/extra/mean_q')
    _, returns = _course(series, 'collect/mean_discounted_return')
    value, seen = float(np.abs(points.quarters[1]).mean()), float(np.abs(returns.values).max())
    return value > 3 * seen, f'the mean of |{tag}| is {value:.4g}; the greatest mean discounted return was {seen:.4g}'


def critic_loss_grows(series: Series) -> tuple[bool, str]:
    """The loss of the values becomes ten times as large, and goes on growing."""
    names = ('critic_loss', 'value_loss', 'td_loss')
    tag, points = _course(series, *(f'train/extra/{name}' for name in names), 'train/loss')
    first, last = (float(np.median(np.abs(part))) for part in points.quarters)
    middle = float(np.median(np.abs(points.values[len(points.values) // 2 :])))
    return last > 10 * first and last > middle, f'{tag} went from {first:.4g} to {last:.4g}'


def _last_above(tag: str, bound: float, what: str) -> tuple[str, Check]:
    """Returns a check of whether a metric's mean over the last quarter is above a bound,
    and what it needs.
    """

    def check(series: Series) -> tuple[bool, str]:
        last = float(_course(series, tag)[1].quarters[1].mean())
        return last > bound, f'{tag} is {last:.3g}; {what} is at most {bound:g}'

    return tag, check


def explained_variance(series: Series) -> tuple[bool, str]:
    """The values explain nothing of the returns that they should predict."""
    tag, points = _course(series, 'train/extra/explained_variance')
    last = float(points.quarters[1].mean())
    return last < 0.05, f'{tag} is {last:.2f}; 1 is perfect, 0 is a constant'


def gradients_clipped(series: Series) -> tuple[bool, str]:
    """Nearly every gradient is clipped to a tenth of its norm or less."""
    ratios = {}
    for tag, before in _of_variables(series, '/norm').items():
        if clipped := series.get(f'{tag}/clipped_norm'):
            after = np.interp(before.steps, clipped.steps, clipped.values)
            ratios[tag.split('/')[1]] = float(np.median(before.values / np.maximum(after, 1e-12)))
    if not ratios:
        raise LookupError('clipped_norm')
    name = max(ratios, key=lambda each: ratios[each])
    return ratios[name] > 10, f"the norm of {name}'s gradient is {ratios[name]:.3g} times the clipped one (median)"


def dead_layers(series: Series) -> tuple[bool, str]:
    """The gradients of some layers are zero, in all of the last quarter:
    their units are dead, or cut off.
    """
    known = _of_variables(series, '/gradient_norm')
    dead = [name for name, points in known.items() if not points.quarters[1].any()]
    text = f'{len(dead)} of {len(known)} variables have no gradient' + (f', such as {dead[0]}' if dead else '')
    return bool(dead), text


def dead_units(series: Series) -> tuple[bool, str]:
    """More than half of a layer's units have no gradient on a batch:
    after ReLU, no example of it makes them active.
    """
    shares = {name: points.quarters[1].mean() for name, points in _of_variables(series, '/zero_gradient_share').items()}
    most = max(shares, key=lambda name: shares[name])
    text = f'{shares[most]:.2g} of the units of {most} have no gradient; of a healthy layer it is at most 0.5'
    return shares[most] > 0.5, text


def lost_data(series: Series) -> tuple[bool, str]:
    """Episodes are interrupted, environments rebuilt or steps lost,
    more than one for a hundred episodes.
    """
    _, episodes = _course(series, 'collect/episodes')
    names = ('dropped_episodes', 'rebuilt_environments')
    counts = {name: float(series[f'collect/{name}'].values[-1]) for name in names if f'collect/{name}' in series}
    share = sum(counts.values()) / max(float(episodes.values[-1]), 1.0)
    seen = ', '.join(f'{count:.0f} {name.replace("_", " ")}' for name, count in counts.items())
    return share > 0.01, f'{seen} in {episodes.values[-1]:.0f} episodes'


def unused_data(series: Series) -> tuple[bool, str]:
    """More than one of a hundred steps is never trained on,
    since its episode is too short or too long for an item.
    """
    try:
        share = float(_course(series, 'train/extra/ignored_share')[1].quarters[1].mean())
    except LookupError:
        _, unused = _course(series, 'collect/unused_steps', 'train/unused_steps')
        _, steps = _course(series, 'collect/env_steps', 'train/env_steps')
        share = float(unused.values[-1] / max(steps.values[-1], 1.0))
    return share > 0.01, f'{share:.2g} of the steps are never trained on'


_RETURN = 'evaluate/mean_return or collect/mean_return'
CHECKS: Mapping[str, tuple[str, Check]] = {  # what is needed, and the check
    'returns-flat': (_RETURN, returns_flat),
    'returns-fell': (_RETURN, returns_fell),
    'entropy-collapsed': ('train/extra/entropy', entropy_collapsed),
    'values-grow': ('train/extra/mean_value or value, and collect/mean_discounted_return', values_grow),
    'critic-loss-grows': ('train/extra/critic_loss, value_loss or td_loss', critic_loss_grows),
    'explained-variance': ('train/extra/explained_variance', explained_variance),
    'clipped-share': _last_above('train/extra/clipped_share', 0.3, 'a usual share'),
    'policy-divergence': _last_above('train/extra/kl_to_behaviour', 0.05, 'a careful update'),
    'gradients-clipped': ('gradients/*/norm and clipped_norm', gradients_clipped),
    'dead-layers': ('gradients/*/gradient_norm', dead_layers),
    'dead-units': ('gradients/*/zero_gradient_share', dead_units),
    'nonfinite-steps': _last_above('train/nonfinite_steps', 0.0, 'what is right'),
    'data-wait': _last_above('train/data_wait_share', 0.5, 'that of a busy learner'),
    'off-policy': _last_above('train/extra/mean_abs_log_rho', 0.5, 'that of nearly on-policy data'),
    'replay-ratio': _last_above('train/samples_per_insert', 5120, 'that of a packaged run'),
    'unused-data': ('train/extra/ignored_share, or collect/unused_steps', unused_data),
    'lost-data': ('collect/episodes', lost_data),
}


def summary(findings: Sequence[Finding]) -> str:
    """Returns in words how many checks look wrong of those that could be made."""
    made = [finding.wrong for finding in findings if finding.wrong is not None]
    if not made:
        return (
            f'no check could be made, all {len(findings)} are unknown: the run was too short (a check needs '
            f'{_LEAST_POINTS} points of a metric, one for each train.SummaryOptions.interval_steps train steps)'
        )
    unknown = f'; {len(findings) - len(made)} are unknown' if len(made) < len(findings) else ''
    return f'{sum(made)} of {len(made)} checks look wrong{unknown}'


def run_all(series: Series) -> list[Finding]:
    """Returns what each check says, those that look wrong first."""
    found = []
    for name, (needs, check) in CHECKS.items():
        try:
            wrong, text = check(series)
            found.append(Finding(name, bool(wrong), text))
        except LookupError:
            found.append(Finding(name, None, f'needs {_LEAST_POINTS} points of {needs}'))
    return sorted(found, key=lambda finding: {True: 0, False: 1, None: 2}[finding.wrong])
