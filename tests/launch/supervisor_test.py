"""Jobs that die: which death ends the run, which job is started again, and what is reported."""

import os
import re
import signal

from tests.launch.fake_run import RUN, RUNNING, WAIT, ended, gone, launched, pids, topology, wait_for
from tflearn.files.run_dir import read_json


def test_run_ends_when_a_job_without_restarts_dies(run, run_dir):
    code, out, err = run(replay_server=RUN, train=['say=out of paint', 'exit=7'], evaluate=RUN, collect_0=RUN)
    assert code == 1
    assert err == f'tflearn-launch: error: train ended with exit code 7; its log is {run_dir.log("train")}\n'
    assert 'train ended with exit code 7; the end of' in out
    assert '    out of paint\n' in out
    assert 'The run is done' not in out


def test_kills_child_processes_of_an_ended_job(run, run_dir):
    run(train=[RUNNING, 'child', 'exit=1'], evaluate=RUN)
    child = int((run_dir.root / 'child_of_train').read_text())
    wait_for(lambda: gone(child), 'the end of the child')


def test_fails_when_a_server_ends_before_train(run):
    code, _, err = run(replay_server=[RUNNING], train=RUN, evaluate=RUN)
    assert code == 1
    assert 'replay_server ended with exit code 0' in err


def test_ignores_the_end_of_a_server_after_train(run):
    code, _, err = run(
        replay_server=['await=trained', 'wait=0.5', 'exit=1'],
        train=['write=trained'],
        evaluate=['await=trained', 'wait=1', 'done'],
    )
    assert (code, err) == (0, '')


def test_restarts_collectors(run, run_dir):
    code, out, err = run(
        train=['await=second_life'],
        evaluate=['await=second_life', 'done'],
        collect_0=['say=hello', 'once=exit=5', 'write=second_life', WAIT],
    )
    assert (code, err) == (0, '')
    assert (
        f'collect_0 ended with exit code 5; failed start 1 of 3; the end of {run_dir.log("collect_0")}:\n    hello'
        in out
    )
    assert out.count('failed start 1 of 3') == 1


def test_the_numbers_of_restarts_survive_the_launch(run, run_dir):
    def restarts():
        again = ['once=exit=5', 'write=second_life', WAIT]
        run(train=['await=second_life', 'exit=1'], evaluate=RUN, collect_0=again)
        for name in ('once_collect_0', 'second_life'):
            (run_dir.root / name).unlink()
        return read_json(run_dir.status('launch'))['restarts']

    assert restarts() == {'train': 0, 'evaluate': 0, 'collect_0': 1}
    assert restarts() == {'train': 0, 'evaluate': 0, 'collect_0': 2}


def test_run_ends_without_collectors(run):
    code, out, err = run(train=RUN, evaluate=RUN, collect_0=['say=oh no', 'exit=5'])
    assert code == 1
    assert 'tflearn-launch: error: collect_0 ended with exit code 5 after 3 restarts; its log is' in err
    assert out.count('oh no') == 4
    assert [f'failed start {i} of 3' in out for i in (1, 2, 3, 4)] == [True, True, True, False]
    assert 'given up' in out


def test_the_run_goes_on_with_other_collectors(run_dir):
    others = {name: ['await=given_up'] for name in ('train', 'collect_1')}
    jobs = topology(run_dir, evaluate=['await=given_up', 'done'], collect_0=['exit=5'], **others)
    with launched(run_dir, jobs) as process:
        log = run_dir.log('launch')
        wait_for(lambda: log.exists() and 'given up' in log.read_text(), 'the last death of collect_0')
        (run_dir.root / 'given_up').touch()
        code, _, err = ended(process)
    assert (code, err) == (0, '')


MISTAKE = 'tflearn-{}: error: got dnq; need a binding that exists; did you mean dqn?'


def test_prints_only_the_line_of_a_user_error(run):
    jobs = {name: [f'say={MISTAKE.format(name)}', 'exit=2'] for name in ('train', 'evaluate', 'collect_0')}
    code, out, err = run(replay_server=RUN, **jobs)
    assert code == 2
    assert err in {MISTAKE.format(name) + '\n' for name in jobs}
    assert 'dnq' not in out
    assert 'restart' not in out


def test_user_error_comes_before_another_failure(run):
    code, _, err = run(
        train=['await=stubborn', 'say=connection lost', 'exit=1'],
        evaluate=['stubborn', f'say={MISTAKE.format("evaluate")}', 'write=stubborn', 'wait=0.5', 'exit=2'],
    )
    assert code == 2
    assert err == MISTAKE.format('evaluate') + '\n'


def test_restarts_a_collector_that_ran_after_a_user_error(run):
    code, out, _ = run(
        train=['await=second_life'],
        evaluate=['await=second_life', 'done'],
        collect_0=[RUNNING, 'wait=0.8', f'say={MISTAKE.format("collect")}', 'once=exit=2', 'write=second_life', WAIT],
    )
    assert code == 0
    assert 'restart 1 of 20 within 10 min; the end of' in out


def test_ignores_a_user_error_after_the_end_of_train(run):
    code, out, err = run(
        train=['write=trained'],
        evaluate=['await=trained', 'wait=1', 'done'],
        collect_0=['await=trained', 'wait=0.5', f'say={MISTAKE.format("collect")}', 'exit=2'],
    )
    assert (code, err) == (0, '')
    assert 'collect_0 ended with exit code 2; the end of' in out


def test_each_killed_job_is_started_again(run_dir):
    jobs = {name: [RUNNING, 'wait=600'] for name in ('replay_server', 'train', 'evaluate', 'collect_0')}
    with launched(run_dir, topology(run_dir, **jobs)) as process:
        alive = dict(zip(jobs, pids(run_dir, *jobs), strict=True))
        for killed, first in list(alive.items()):
            os.kill(first, signal.SIGKILL)
            wait_for(lambda killed=killed, first=first: pids(run_dir, killed) != [first], 'its second life')
            (alive[killed],) = pids(run_dir, killed)
            assert pids(run_dir, *jobs) == [*alive.values()], 'the others are as they were'
        process.send_signal(signal.SIGTERM)
        code, out, err = ended(process)
    assert (code, err) == (143, '')
    for killed in jobs:
        assert f'{killed} was ended by SIGKILL, as happens when memory runs out; ' in out


def test_a_job_that_asks_for_another_try_is_started_again(run):
    code, out, err = run(train=['once=exit=75'], evaluate=['wait=0.5', 'done'])
    assert (code, err) == (0, '')
    assert 'train ended with exit code 75; failed start 1 of 3' in out


def test_an_evaluator_that_dies_again_and_again_does_not_end_the_training(run_dir):
    jobs = topology(run_dir, train=[RUNNING, 'await=end'], evaluate=['say=no screen', 'exit=1'])
    with launched(run_dir, jobs) as process:
        log = run_dir.log('launch')
        wait_for(lambda: log.exists() and 'the run continues without it' in log.read_text(), 'the last start')
        assert log.read_text().count('no screen') == 4
        (run_dir.root / 'end').touch()
        code, out, err = ended(process)
    assert code == 1
    assert out.count('no screen') == 5, 'it is started once more at the end'
    assert 'evaluate ended with exit code 1 after 4 restarts; its log is' in err
    assert f'the others are done, the policies are in {run_dir.policies}' in err


def test_a_silent_job_writes_its_stacks_and_is_started_again(run_dir):
    jobs = {name: [RUNNING, *['wait=0.5', RUNNING] * 60] for name in ('train', 'evaluate')}
    silent = [RUNNING, 'write=silent', 'await=never']
    with launched(run_dir, topology(run_dir, collect_0=silent, **jobs), silent_timeout_secs=11.0) as process:
        (first,) = pids(run_dir, 'collect_0')
        wait_for(lambda: pids(run_dir, 'collect_0') != [first], 'its second life')
        process.send_signal(signal.SIGTERM)
        _, out, _ = ended(process)
    assert re.search(r'collect_0 has not reported for \d\d s: killed; where its threads were is at the end of', out)
    killed = (
        r'collect_0 was killed by launch, since it did not report for \d\d s \(--silent_timeout_secs=11\); restart 1'
    )
    assert re.search(killed, out)
    assert 'memory' not in out
    assert 'in await_file' in run_dir.log('collect_0').read_text()


def test_reports_an_unclean_stop(run_dir):
    error = 'tflearn-train: error: got no end of the job within 30 s after SIGTERM'
    jobs = topology(run_dir, train=['last_words=' + error, *RUN], evaluate=RUN)
    with launched(run_dir, jobs) as process:
        pids(run_dir, 'train', 'evaluate')
        process.send_signal(signal.SIGTERM)
        code, out, _ = ended(process)
    assert code == 143
    assert f'train ended with exit code 143; the end of {run_dir.log("train")}:\n    {error}' in out
    assert 'evaluate ended' not in out
