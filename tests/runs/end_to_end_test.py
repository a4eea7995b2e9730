"""Complete runs of the real programs, as users start them: to the end, stopped, killed, resumed, by hand, misused.

Everything is small but the waits: with their deadlines the tests stand a machine that has other work to do.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import pstats
import random
import re
import resource
import shutil
import signal

import numpy as np
import pytest
from absl import logging

import gin
from tests.end_to_end import results
from tests.end_to_end.programs import Addresses, Program, metric, pid
from tests.end_to_end.results import Progress, progress, saved
from tests.testing import lanes
from tflearn.config import job_config
from tflearn.config.checks import GIVEN_BY_PROGRAMS
from tflearn.files.manifests import Manifests
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.jobs import train
from tflearn.policies.versions import newest_version
from tflearn.replay.checkpoints import CheckpointDirectory

LAYERS = (16,)
TINY = [
    '--root_dir=run',
    '--gin_file=dqn_cartpole',
    *(
        f'--gin_bindings={binding}'
        for binding in (
            f'networks.NetworkOptions.fc_layer_params={LAYERS}',
            'train.StopConditions.num_train_steps=1_000_000',  # no run takes so many
            'train.Intervals.steps_per_call=50',
            'train.Intervals.publish_interval_steps=50',
            'train.Intervals.export_interval_steps=100',
            'train.LearnerOptions.checkpoint_interval_steps=100',
            'train.SummaryOptions.interval_steps=100',
            'train.ExportOptions.policies=("greedy_policy",)',
            # Few samples for each step of the environment, whose steps take time: training takes seconds, not one.
            'Uniform.samples_per_insert=4.0',
            'BatchItems.per_replica=16',
            'Uniform.min_size=100',
            'evaluate.num_episodes=2',
            'evaluate.target_return=None',
        )
    ),
]
# The run saves when it is asked to, and at its end.
SAVES_LATE = '--gin_bindings=train.LearnerOptions.checkpoint_interval_steps=1_000_000'
MISTAKE_SECS = 30.0


@dataclasses.dataclass(frozen=True)
class Attempt:
    """How a launch ended before its run did. Its directory is not to be touched: work on a copy.

    Attributes:
      run_dir: the run.
      code: of the launch's exit.
      output: what it printed.
      progress: how far the run was then.
      saved_on_request: files that were written to the directories of the checkpoints at SIGUSR2.
    """

    run_dir: RunDir
    code: int
    output: str
    progress: Progress
    saved_on_request: tuple[frozenset[pathlib.Path], ...] = ()

    def copy(self, folder: pathlib.Path) -> RunDir:
        return RunDir(shutil.copytree(self.run_dir.root, folder / 'run'))


@pytest.fixture(scope='module')
def interrupted(tmp_path_factory) -> Attempt:
    """A run that was asked to save in the middle of training, and then met Ctrl-C."""
    folder = tmp_path_factory.mktemp('interrupted')
    run_dir = RunDir(folder / 'run')
    folders = [run_dir.checkpoints, run_dir.replay_checkpoints]
    with Program('launch', *TINY, SAVES_LATE, '--profile_python=profiles', folder=folder) as launch:
        launch.wait_for(lambda: metric(run_dir, 'train', 'train_step') > 200, 'the middle of training')
        before = [{*path.glob('*')} for path in folders]
        launch.send(signal.SIGUSR2)
        new = lambda: [frozenset(path.glob('*')) - known for path, known in zip(folders, before, strict=True)]  # noqa: E731
        launch.wait_for(lambda: all(new()), 'checkpoints')
        saved_on_request = tuple(new())
        launch.send(signal.SIGINT)
        return Attempt(run_dir, launch.end(), launch.output, progress(run_dir), saved_on_request)


@pytest.fixture(scope='module')
def orphaned(interrupted, tmp_path_factory) -> Attempt:
    """The same run: it went on, its train job was killed and started again; then it met Ctrl-C."""
    folder = tmp_path_factory.mktemp('orphaned')
    run_dir = interrupted.copy(folder)
    with Program('launch', *TINY, folder=folder, forked=True) as launch:
        # A new policy is seen sooner than a new status.
        step = interrupted.progress.train_step
        launch.wait_for(lambda: (newest_version(run_dir.greedy_policy) or 0) > step, 'training to go on')
        killed = pid(run_dir, 'train')
        os.kill(killed, signal.SIGKILL)
        launch.wait_for(lambda: pid(run_dir, 'train') != killed, 'another train job')
        launch.send(signal.SIGINT)
        return Attempt(run_dir, launch.end(), launch.output, progress(run_dir))


@pytest.fixture
def start(tmp_path):
    """Starts a program in the test's folder."""
    with contextlib.ExitStack() as programs:
        yield lambda *words, **options: programs.enter_context(Program(*words, folder=tmp_path, **options))


def test_a_signal_saves_now(interrupted):
    of_learner, of_replay = interrupted.saved_on_request
    assert of_learner and of_replay, 'the learner and the replay server have saved before the end'


def test_each_job_s_python_is_profiled(interrupted):
    profiles = interrupted.run_dir.root.parent / 'profiles'
    for job, function in (('train', 'session.py'), ('collect_0', 'actor.py'), ('evaluate', 'evaluate.py')):
        profile = pstats.Stats(str(profiles / f'{job}.prof'))
        assert any(file.endswith(function) for file, _, _ in profile.stats), job


@lanes.classic
def test_ctrl_c_stops_a_run_and_keeps_what_it_learned(interrupted):
    run_dir = interrupted.run_dir
    assert interrupted.code == 128 + signal.SIGINT
    assert interrupted.output.endswith(
        '\nThe run was stopped by SIGINT; what it learned is in run/train/checkpoints. '
        'The same command continues from there.\n'
    )
    assert interrupted.progress.train_step > 200
    for job in ('train', 'evaluate', 'collect_0', 'replay_server'):
        assert read_json(run_dir.status(job))['state'] == 'stopped'
        assert not pathlib.Path(f'/proc/{pid(run_dir, job)}/exe').exists()
    assert not run_dir.done.exists()
    manifest = next(iter(Manifests(run_dir.root, run_dir.manifests, 'reader', 0).whole()))
    saved_replay = CheckpointDirectory(run_dir.replay_checkpoints).newest().name
    assert (manifest.train_step, manifest.replay) == (
        interrupted.progress.train_step,
        {'replay_server': saved_replay},
    ), 'the pair with which it goes on'


@lanes.classic
def test_a_run_continues_and_starts_a_killed_train_job_again(interrupted, orphaned):
    run_dir = orphaned.run_dir
    assert 'restored the replay from' in run_dir.log('replay_server').read_text()
    before, now = (metric(attempt.run_dir, 'replay_server', 'inserts') for attempt in (interrupted, orphaned))
    assert 0 < before < now
    assert orphaned.progress.follows(interrupted.progress)
    assert orphaned.code == 128 + signal.SIGINT
    assert 'train was ended by SIGKILL' in orphaned.output
    # A long entry may begin before the excerpt.
    assert re.search(r'the end of run/logs/train\.log:\n(    .*\n)*?    I 20', orphaned.output)
    assert not run_dir.done.exists()


@pytest.mark.slow
def test_the_same_command_continues_to_the_end_and_then_reports_it(orphaned, start, tmp_path):
    run_dir = orphaned.copy(tmp_path)
    step = orphaned.progress.train_step
    end = f'--gin_bindings=train.StopConditions.num_train_steps={step + 500}'
    launch = start('launch', *TINY, end)
    assert launch.end() == 0, launch.output
    assert f'train step {step}, {run_dir.checkpoints}/ckpt-{step}' in run_dir.log('train').read_text()
    assert progress(run_dir).follows(orphaned.progress)
    check_finished(run_dir, launch.output, tmp_path, step + 500)

    before = saved(run_dir)
    again = start('launch', *TINY, end, name='again')
    assert again.end() == 0
    assert again.output.startswith(f'This run is already finished: num_train_steps {step + 500} reached; ')
    assert again.output.count('\n') == 1
    assert saved(run_dir) == before

    steps = step + 1_000
    more = start('launch', *TINY, f'--gin_bindings=train.StopConditions.num_train_steps = {steps}', name='more')
    assert more.end() == 0, more.output
    changed = f'stop_conditions.StopConditions.num_train_steps {step + 500} -> {steps} (takes effect from now'
    assert changed in more.output
    assert read_json(run_dir.done)['train_step'] == steps
    assert read_json(run_dir.root / 'DONE-1')['train_step'] == step + 500


def check_finished(run_dir: RunDir, output: str, folder: pathlib.Path, end: int) -> None:
    """Checks the run summary that launch prints, and the files of the run directory."""
    done = read_json(run_dir.done)
    assert done['reason'] == f'num_train_steps {end} reached'
    assert done['train_step'] == done['evaluation']['train_step'] == end
    assert done['env_steps'] > 0
    assert done['seconds'] > 0
    assert done['policy'] == f'policies/greedy_policy/{end}'
    assert done['evaluation']['mean_return'] == sum(done['evaluation']['returns']) / 2

    result, *where = output.splitlines()[-6:]
    assert result.startswith(f'The run is done: {done["reason"]}; train step {end:,}, ')
    places = ('run/learning_curve.png', 'run/summaries', 'run/train/checkpoints', f'run/{done["policy"]}')
    for line, place in zip(where, (*places, 'run/commands.txt'), strict=True):
        assert place in line
        assert (folder / place).exists()
    assert run_dir.learning_curve.read_bytes().startswith(b'\x89PNG')
    assert {path.name for path in run_dir.summaries('train').parent.iterdir()} == {'collect', 'evaluate', 'train'}

    evaluations = [json.loads(line) for line in run_dir.evaluations.read_text().splitlines()]
    assert evaluations[0]['train_step'] == 0
    assert evaluations[-1]['train_step'] == end
    for evaluation in evaluations:
        assert {'train_step', 'env_steps', 'mean_return', 'num_episodes', 'returns'} <= evaluation.keys()
        assert len(evaluation['returns']) == evaluation['num_episodes'] == 2

    configured = job_config.configure(train.train, dict.fromkeys(GIVEN_BY_PROGRAMS), run_dir.config)
    assert configured.text == run_dir.config.read_text()
    assert gin.query_parameter('train.StopConditions.num_train_steps') == end
    check_policy(run_dir, folder, end)


def check_policy(run_dir: RunDir, folder: pathlib.Path, step: int) -> None:
    """Checks that the exported policy acts, without us, as the agent in the checkpoint does."""
    observations = np.random.default_rng(0).normal(size=(2, 64, 4)).astype(np.float32)
    policy = run_dir.greedy_policy / str(step)
    actions = results.actions_of_standalone_program(policy, observations, folder)
    live = results.actions_of_the_checkpoint(run_dir, LAYERS, observations)
    np.testing.assert_array_equal(actions['actions'], live)
    np.testing.assert_array_equal(actions['served'], live)


def test_jobs_by_hand_in_any_order_while_collectors_come_and_go(start, tmp_path):
    run_dir = RunDir(tmp_path / 'run')
    flags = [*TINY, '--gin_bindings=train.Intervals.export_interval_steps=1_000']
    addresses = Addresses()
    order = ['replay_server', 'collect', 'train', 'evaluate']
    seed = random.randrange(2**32)
    random.Random(seed).shuffle(order)
    logging.info('seed %d: %s', seed, ', '.join(order))  # Which pytest shows of a failure.
    jobs = {job: start(job, *flags, *addresses.flags(job), forked=True) for job in order}
    trains = jobs['train'].wait_for

    trains(lambda: metric(run_dir, 'train', 'train_step') > 0, 'the beginning of training')
    guests = {
        name: start('collect', *flags, *addresses.flags('collect'), f'--collector_name={name}', name=name, forked=True)
        for name in ('polite', 'rude')
    }
    for name, number, code in (('polite', signal.SIGTERM, 128 + signal.SIGTERM), ('rude', signal.SIGKILL, -9)):
        guests[name].wait_for(lambda name=name: metric(run_dir, name, 'env_steps') > 0, f'{name} to join')
        guests[name].send(number)
        assert guests[name].end() == code, guests[name].output
    left_at = metric(run_dir, 'train', 'train_step')
    trains(lambda: metric(run_dir, 'train', 'train_step') > left_at + 100, 'training without the guests')
    trains(lambda: run_dir.evaluations.exists(), 'an evaluation')

    write_json(run_dir.stop_request, {'reason': 'the test has seen enough'})
    for job in ('train', 'evaluate', 'collect'):
        assert jobs[job].end() == 0, jobs[job].output
    jobs['replay_server'].send(signal.SIGTERM)
    assert jobs['replay_server'].end() == 128 + signal.SIGTERM
    done = read_json(run_dir.done)
    assert done['reason'] == 'the test has seen enough'
    assert done['evaluation']['train_step'] == done['train_step'] > left_at + 100
    for program in (*jobs.values(), *guests.values()):
        assert 'Traceback' not in program.output
        assert 'error' not in program.output


NOBODY_THERE = ['--coordinator_address=localhost:1', '--connect_timeout_secs=5']
# tests/scripts/job_setup_test.py has more, in an empty directory.
MISTAKES = {
    'unknown environment': (
        'launch',
        ['--gin_bindings=gymnasium_env.make.name="CartPol-v1"'],
        "got name='CartPol-v1'; need a registered gymnasium environment",
    ),
    'nobody there to collect for': ('collect', NOBODY_THERE, ' s waiting for the coordinator at localhost:1'),
    'typo': (
        'train',
        ['--gin_bindings=train.num_train_stpes=7'],
        'got train.num_train_stpes in --gin_bindings, but train.train has no parameter',
    ),
    'nobody there to train from': ('train', NOBODY_THERE, ' s waiting for the coordinator at localhost:1'),
}


@lanes.classic
def test_mistakes_take_one_line_and_keep_what_is_saved(interrupted, start, tmp_path):
    run_dir = interrupted.copy(tmp_path)
    before, used = saved(run_dir), processor_secs()
    programs = {
        name: start(job, *TINY, *flags, name=name.replace(' ', '_'), forked=flags is NOBODY_THERE)
        for name, (job, flags, _) in MISTAKES.items()
    }
    for name, (_, _, message) in MISTAKES.items():
        code, program = programs[name].end(), programs[name]
        assert code == (69 if 'nobody' in name else 2), program.output
        assert ': error: ' in program.last_line
        assert message in program.last_line
        assert program.output.count(message) == 1
        assert 'Traceback' not in program.output
    assert saved(run_dir) == before
    # Seconds of a machine that has nothing else to do.
    assert (processor_secs() - used) / len(programs) < MISTAKE_SECS


def processor_secs() -> float:
    """What the processes that have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@lanes.classic
@pytest.mark.slow
def test_what_an_algorithm_cannot_learn_ends_the_launch_before_any_job_runs(tmp_path):
    """Several discrete actions of unequal sizes: one line at the end, and no job is restarted."""
    name = 'tests.environments.example_environments:tflearn_tests/Rover-v0'
    flags = ['--root_dir=run', '--gin_file=impala_cartpole', f"--gin_bindings=gymnasium_env.make.name='{name}'"]
    with Program('launch', *flags, folder=tmp_path) as launch:
        assert launch.end() == 2, launch.output
    assert ' error: got the action ' in launch.last_line
    assert 'with 2, 3 choices; IMPALA needs equally many in each dimension; wrap' in launch.last_line
    assert 'restart' not in launch.output and 'running' not in launch.output
    assert not saved(RunDir(tmp_path / 'run'))


@lanes.classic
@pytest.mark.slow
def test_an_evaluation_longer_than_the_silent_timeout_reports_and_ends(tmp_path):
    """Of an environment without an end: each progress report is a sign of life, and a limit ends the evaluation."""
    name = 'tests.environments.example_environments:tflearn_tests/Switches-v0'
    bindings = [
        f"gymnasium_env.make.name='{name}'",
        'train.StopConditions.num_train_steps=50',
        'from tflearn.jobs import evaluate_settings',
        'evaluate.evaluate.options=@evaluate_settings.EvaluateOptions()',
        'evaluate_settings.EvaluateOptions.max_secs=20.0',
    ]
    flags = [*TINY, '--silent_timeout_secs=12', *(f'--gin_bindings={binding}' for binding in bindings)]
    with Program('launch', *flags, folder=tmp_path) as launch:
        assert launch.end() == 0, launch.output
    assert 'killed' not in launch.output and 'memory' not in launch.output
    assert re.search(r'evaluate: plays episodes: 0 of 2, [\d,]+ steps, \d+ s left', launch.output)
    reason = '20 s (max_secs) were over, 2 of 2 episodes did not end'
    assert f'over 2 episodes (incomplete: {reason}).' in launch.output
    assert read_json(RunDir(tmp_path / 'run').done)['evaluation']['incomplete'] == reason


@lanes.classic
@pytest.mark.slow
def test_a_run_with_environment_steps_alone_shows_the_time_left(start, tmp_path):
    """After a minute within a factor of two of the time that training then takes, with compiling before it."""
    bindings = ('train.StopConditions.num_train_steps=None', 'train.StopConditions.max_env_steps=500_000')
    given = [f'--gin_bindings={binding}' for binding in (*bindings, 'evaluate.evaluate.target_return=None')]
    launch = start('launch', '--root_dir=run', '--gin_file=dqn_cartpole', *given)
    launch.wait_for(RunDir(tmp_path / 'run').done.exists, 'the end of the run', 280.0)
    assert launch.end() == 0, launch.output
    shown = re.search(r'^(\S+) \[1 min 0\d s\] .*\| time left (?:(\d+) min )?(\d+) s', launch.output, re.MULTILINE)
    finished = re.search(r'^(\S+) train\b.*: finished', launch.output, re.MULTILINE)
    assert shown and finished, launch.output
    then, end = (sum(60**i * int(part) for i, part in enumerate(reversed(m[1].split(':')))) for m in (shown, finished))
    left, took = 60 * int(shown[2] or 0) + int(shown[3]), (end - then) % 86_400
    assert took / 2 <= left <= 2 * took, (left, took)
