"""The verbs of this extension: promotion of one version, and the product loop."""

import pathlib
import sys

from absl import flags

from tflearn.core import preflight
from tflearn.core.errors import UserValueError
from tflearn.core.verbs import Verb, values_of
from tflearn.files.run_dir import RunDir, local_path
from tflearn.policies import states


def _promote(switches: flags.FlagValues) -> int:
    """Promotes a version of a policy that is not worse than the incumbent, and takes it back.

    tflearn promote --root_dir=DIR --candidate=VERSION --data=HELD_OUT --margin=0.01   stable, if it passes the gate
    tflearn promote --root_dir=DIR --candidate=VERSION --to=canary --share=0.1 ...     answers a share of the requests
    tflearn promote --root_dir=DIR --candidate=VERSION --to=shadow                     its answers are only logged
    tflearn promote --root_dir=DIR --candidate=VERSION --apprentice=LOG                stable, if it matches the product
    tflearn promote --root_dir=DIR --rollback                                          back to the one before
    tflearn promote --root_dir=DIR                                                     prints states and changes

    A VERSION is a train step of the policy, or the path of a version of another run, which is copied. tflearn-serve
    --root_dir=DIR follows within a second. The exit status is 1 if the candidate does not pass.
    """
    directory = RunDir(local_path(switches.root_dir, '--root_dir')).policy(switches.policy)
    if switches.rollback and switches.candidate:
        raise UserValueError(f'got --rollback and --candidate={switches.candidate}; need one of them')
    if switches.rollback:
        print(states.rollback(directory, switches.why or 'by hand').text())
        return 0
    if switches.apprentice:
        return _promote_apprentice(switches, directory)
    if not switches.candidate:
        found = states.read(directory)
        print(found.text() if found else f'no version of {directory} has a state; the newest one answers')
        return 0
    return _promote_candidate(switches, directory)


def _promote_apprentice(switches: flags.FlagValues, directory: pathlib.Path) -> int:
    """Reports how often versions would have decided as the product; a candidate that does so often enough acts."""
    if switches.data or switches.ungated or switches.to != states.STABLE:
        raise UserValueError(
            'got --apprentice with --data, --ungated or --to; need it alone: the agreement takes the place of the gate'
        )
    from tflearn.extensions.product import agreement

    found = agreement.read(switches.apprentice, switches.policy, switches.decisions)
    number = switches.candidate
    if number and number not in map(str, found):
        raise UserValueError(f'got --candidate={number}; need a version that was asked: {", ".join(map(str, found))}')
    needed = f'need {switches.agreement:.1%} of the last {switches.decisions:,}'
    for version, each in found.items():
        verdict = 'ready' if each.is_ready(switches.agreement) else 'not ready'
        print(f'version {version}: {each.text()}; {needed}: {verdict}')
    if not number:
        return 0
    candidate = found[int(number)]
    if not candidate.is_ready(switches.agreement):
        return 1
    why = f'{switches.why}: {candidate.text()}' if switches.why else candidate.text()
    print(states.promote(directory, int(number), 'stable', why).text())
    return 0


def _promote_candidate(switches: flags.FlagValues, directory: pathlib.Path) -> int:
    if (switches.to == states.CANARY) != bool(switches.share):
        raise UserValueError(f'got --to={switches.to} with --share={switches.share}; need a share for a canary only')
    if switches.to != states.SHADOW and switches.ungated == bool(switches.data):
        raise UserValueError(
            f'got --data={",".join(switches.data)} with --ungated={switches.ungated}; need held-out episodes, such as '
            '--data=data/parts/held_out, or --ungated alone'
        )
    names = 'margin', 'level', 'longest', 'greatest_weight', 'gamma', 'epsilon', 'temperature'
    gate = values_of(switches, *names)
    gate |= {'low': switches.reward_low, 'high': switches.reward_high, 'clips': switches.clip_rewards}
    gate['whole'] = switches.whole_sessions
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.extensions.product import promotion  # It loads TensorFlow.
    from tflearn.extensions.product.scaled_log import Limit

    gate['limits'] = [Limit.parse(each) for each in switches.limit]

    text, done = promotion.promote(
        directory, switches.candidate, switches.to, switches.why, switches.incumbent, switches.data,
        switches.share or 0.0, switches.new_train, **gate,
    )  # fmt: skip
    print(text)
    return 0 if done else 1


def _loop(switches: flags.FlagValues) -> int:
    """Turns a product's log into its next policies, round by round: tflearn loop --root_dir=DIR --gin_file=FILE.

    The gin file binds the arguments of tflearn.extensions.product.loop.loop. A round joins decisions with outcomes,
    holds a part out, trains on the rest, and promotes the new policy if it proves itself on the part. The same command
    goes on with what was stopped or killed. The rounds are in ROOT_DIR/rounds, and on a page, ROOT_DIR/index.html.
    """
    from tflearn.api import process_run
    from tflearn.config import files, job_config
    from tflearn.extensions.product import loop

    root = local_path(switches.root_dir, '--root_dir')
    run = loop.Run(root, process_run.programs(), switches.once, sys.stdout)
    gin_file = files.resolve(switches.gin_file)
    configured = job_config.configure(loop.loop, {'run': run}, gin_file, switches.gin_bindings)
    return int(configured.run()())


VERBS = {
    'promote': Verb(_promote, ('promote',), required=('root_dir',)),
    'loop': Verb(_loop, ('loop',), required=('root_dir', 'gin_file')),
}
