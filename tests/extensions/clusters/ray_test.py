"""The plan for Ray's driver, and its actors as plain objects; real clusters are in ray_run_test.py."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import pytest

from tests.launch.fake_run import DEADLINE_SECS, gone, wait_for
from tflearn.extensions.clusters import places, ray_cluster, ray_driver
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.files.status import Status
from tflearn.launch.topology import (
    COORDINATOR_ADDRESS,
    OWN_ADDRESS,
    Addresses,
    Resources,
    load,
    replay_servers,
    run_topology,
)

RESOURCES = {
    'train': Resources(cores=4, memory_gb=8.0, accelerators=2, accelerator='A100'),
    'collect': Resources(accelerators=0, custom={'sim': 1}),
}
OPTIONS = ray_cluster.RayOptions(python='/shared/python', ray_python='/opt/ray/python', strategy='SPREAD')


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path / 'run')


def topology(**more):
    return run_topology(package='p', flags=['--x=a b'], num_collectors=2, resources=RESOURCES, **more)


def test_each_process_of_a_run_has_an_actor_with_its_resources(run_dir):
    plan = json.loads(json.dumps(ray_cluster.plan(topology(num_workers=2), run_dir, 'p', OPTIONS)))
    jobs = {job['name']: job for job in plan['jobs']}
    assert list(jobs) == ['replay_server', 'train', 'train_1', 'evaluate', 'collect_0', 'collect_1']
    supervise = ['/shared/python', '-m', 'p.supervise', f'--root_dir={run_dir.root}']
    assert jobs['collect_1']['command'] == [*supervise, '--job=collect_1']
    assert jobs['train_1']['command'] == [*supervise, '--job=train']
    assert jobs['train']['resources'] == {'CPU': 4, 'memory': 8e9, 'GPU': 2, 'accelerator_type:A100': 0.001}
    assert jobs['collect_0']['resources'] == {'CPU': 1, 'sim': 1}
    assert jobs['collect_0']['environment'] == {'CUDA_VISIBLE_DEVICES': ''}
    assert [jobs[name]['environment'] for name in ('train', 'train_1')] == [
        {'TFLEARN_WORKER': '0/2'},
        {'TFLEARN_WORKER': '1/2'},
    ]
    assert [jobs[name]['stop_stage'] for name in ('train', 'evaluate', 'collect_0', 'replay_server')] == [0, 0, 0, 1]
    assert [name for name, job in jobs.items() if job['can_be_missed']] == ['collect_0', 'collect_1']
    assert len({job['log'] for job in plan['jobs']}) == len(jobs)


def test_supervisors_run_the_programs_by_the_python_of_the_jobs(run_dir):
    jobs = {
        job.name: job.command for job in ray_cluster.with_python(topology(num_workers=2), run_dir, 'p', OPTIONS).jobs
    }
    worker = ('/shared/python', '-m', 'p.worker', str(run_dir.root), '300.0')
    shared = ('--x=a b', f'--coordinator_address={COORDINATOR_ADDRESS}')
    assert jobs['train'] == (*worker, '/shared/python', '-m', 'p.train', *shared, '--strategy=multi_worker')
    assert jobs['evaluate'] == ('/shared/python', '-m', 'p.evaluate', *shared)


def test_shards_and_relays_have_actors_too(run_dir):
    addresses = Addresses(replay=(OWN_ADDRESS,) * 2, relays=(OWN_ADDRESS,), alone=True)
    text = ray_cluster.render(topology(addresses=addresses), run_dir, 'p', OPTIONS)
    plan = json.loads(re.search(r'^\{$.*^\}$', text, re.M | re.S)[0])
    names = [job['name'] for job in plan['jobs']]
    assert names[:4] == ['coordinator', *replay_servers(2), 'relay_0']
    assert text.startswith('# /opt/ray/python -I ') and '# train: /shared/python -m p.train ' in text


def test_what_ray_does_not_know_is_refused(run_dir, tmp_path):
    with pytest.raises(ValueError, match="got RayOptions.strategy='WIDE'; need one of PACK, SPREAD"):
        places.read_options(ray_cluster.RayOptions, ['strategy=WIDE'])
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\necho no module named ray >&2\nexit 1\n')
    python.chmod(0o755)
    with pytest.raises(ValueError, match=r'got no Ray in .*; need a Python with the same Ray.*ray_python='):
        ray_cluster.submit(topology(), run_dir, 'p', ray_cluster.RayOptions(ray_python=str(python)))


def test_a_launch_becomes_the_driver(tmp_path):
    run_dir, python = RunDir(tmp_path / 'run'), tmp_path / 'python'
    python.write_text(f'#!/bin/sh\n[ "$2" = -c ] || (echo "$@" > {tmp_path}/called; cat > {tmp_path}/plan)\n')
    python.chmod(0o755)
    run_dir.make()
    run_dir.failure.write_text('{}')
    code = 'import sys; from tests.extensions.clusters import ray_test as t; t.ray_cluster.submit(t.topology(), '
    code += 't.RunDir(sys.argv[1]), "p", t.ray_cluster.RayOptions(ray_python=sys.argv[2]))'
    command = [sys.executable, '-c', code, str(run_dir.root), str(python)]
    assert subprocess.run(command, timeout=DEADLINE_SECS, check=False).returncode == 0
    assert (tmp_path / 'called').read_text().split()[:2] == ['-I', ray_driver.__file__]
    # The plan is no file of the run, which others could change before the driver reads it.
    assert read_json(tmp_path / 'plan')['root'] == str(run_dir.root) and not run_dir.failure.exists()
    assert not any('stop_timeout_secs' in path.read_text() for path in run_dir.root.glob('ray*'))
    assert load(run_dir).group('train')[0].command[0] == sys.executable


def actor(tmp_path, script, stop_timeout_secs=2.0):
    plan = ray_cluster.plan(topology(), RunDir(tmp_path), 'p', OPTIONS)
    job = next(job for job in plan['jobs'] if job['name'] == 'train')
    job |= {'command': ['sh', '-c', script], 'stop_timeout_secs': stop_timeout_secs}
    return ray_driver.JobActor(job, {'OF_LAUNCHER': 'yes', 'CUDA_VISIBLE_DEVICES': 'of launcher'})


def log(tmp_path):
    path = RunDir(tmp_path).log('ray_train')
    return path.read_text() if path.exists() else ''


def test_an_actor_runs_a_job_with_the_variables_of_launcher_and_node(tmp_path, monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3')
    monkeypatch.setenv('RAY_NODE', 'x')
    script = 'echo $OF_LAUNCHER $CUDA_VISIBLE_DEVICES $TFLEARN_HOST "[$RAY_NODE]"; exit 7'
    assert actor(tmp_path, script).supervise('n (1)', '10.0.0.1', moved=False) == 7
    first, second = log(tmp_path).splitlines()
    assert first.startswith('===== ') and first.endswith(' on node n (1)')
    assert second == 'yes 3 10.0.0.1 []'


def test_an_actor_stops_its_job_and_starts_no_other(tmp_path):
    made, codes = actor(tmp_path, 'trap "exit 143" TERM; echo runs; while :; do sleep 0.05; done'), []
    thread = threading.Thread(target=lambda: codes.append(made.supervise('n', 'h', moved=False)))
    thread.start()
    wait_for(lambda: 'runs' in log(tmp_path), 'the job')
    made.stop()
    thread.join(DEADLINE_SECS)
    assert codes == [143]
    assert made.supervise('n', 'h', moved=True) == 143 and log(tmp_path).count('runs') == 1


def test_a_killed_supervisor_is_started_again(tmp_path):
    script = f'[ -e {tmp_path}/again ] && exit 0; touch {tmp_path}/again; kill -KILL $$'
    assert actor(tmp_path, script, stop_timeout_secs=0.1).supervise('n', 'h', moved=False) == 0
    assert log(tmp_path).count('=====') == 2


def test_a_job_ends_with_its_actor(tmp_path):
    code = 'import sys, pathlib; from tests.extensions.clusters import ray_test as t; '
    code += 't.actor(pathlib.Path(sys.argv[1]), "echo $$; exec sleep 60").supervise("n", "h", moved=False)'
    process = subprocess.Popen([sys.executable, '-c', code, str(tmp_path)])
    pid = int(wait_for(lambda: re.findall(r'^\d+$', log(tmp_path), re.M), 'the job')[0])
    os.kill(process.pid, signal.SIGKILL)
    process.wait(DEADLINE_SECS)
    wait_for(lambda: gone(pid), 'the end of the job')


def test_the_driver_needs_no_other_library():
    text = pathlib.Path(ray_driver.__file__).read_text()
    imported = set(re.findall(r'^ *(?:from|import) (\w+)', text, re.M))
    assert imported - sys.stdlib_module_names == {'ray'}


def test_the_driver_shows_the_run_as_its_jobs_report(run_dir, capfd):
    view = ray_driver.View(ray_cluster.plan(topology(), run_dir, 'scripts', OPTIONS))
    run_dir.make()
    view.poll()
    Status(run_dir.status('train')).update('running', train_step=1_234, env_steps=5_678)
    shown = []

    def is_shown():
        view.poll()
        shown.append(capfd.readouterr().out)
        return 'train: running' in ''.join(shown)

    wait_for(is_shown, 'the first line')
    done = {'reason': 'num_train_steps 2000', 'train_step': 2_000, 'env_steps': 9_000, 'seconds': 75.2}
    write_json(run_dir.done, done)
    view.close()
    text = ''.join([*shown, capfd.readouterr().out])
    assert text.count('train: running') == 1 and 'num_train_steps 2000' in text
