"""What is rendered for Cloud TPU, and submitted to a program that records it; no TPU has run it."""

import dataclasses
import os
import subprocess

import pytest

from tests.testing import command_lines
from tflearn.extensions.clusters import places, queued_resources
from tflearn.extensions.clusters.queued_resources import QueuedResourcesOptions
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.topology import load, run_topology

OPTIONS = QueuedResourcesOptions('us-central2-b', gcloud='--spot --network="a b"', setup='mount /shared', python='py')


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path / 'My run')


def topology(**given):
    return run_topology(package='p', flags=['--x=a b'], num_collectors=2, **given)


def test_the_vm_supervises_all_jobs_after_its_setup(run_dir, tmp_path):
    command, _, script = queued_resources.render(topology(), run_dir, 'p', OPTIONS).partition('\n')
    name = places.run_name(run_dir)
    assert name.startswith('tflearn-my-run-') and name != places.run_name(RunDir(tmp_path / 'other' / 'My run'))
    assert command == (
        f'# gcloud compute tpus queued-resources create {name} --node-id={name} --zone=us-central2-b '
        "--accelerator-type=v4-8 --runtime-version=tpu-ubuntu2204-base --spot '--network=a b' "
        f"'--metadata-from-file=startup-script={run_dir.root}/startup.sh'"
    )
    run_dir.logs.mkdir(parents=True)
    assert on_host('0', script, tmp_path) == ['mount /shared'] and jobs_of(run_dir) == topology_jobs(run_dir)


def on_host(number, script, tmp_path):
    """Runs a startup script as a host of the VM. Returns the commands other than the jobs that it ran."""
    echo = f'echo $(basename $0) $* >> {tmp_path}/ran'
    programs = {'curl': f'echo {number}', 'mount': echo, 'start_grpc_tpu_worker': echo, 'py': 'echo $*'}
    for name, body in programs.items():
        (tmp_path / name).write_text(f'#!/bin/bash\n{body}\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / 'ran').unlink(missing_ok=True)
    environment = {**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}'}
    subprocess.run(['bash', '-c', script], env=environment, check=True, timeout=30)
    return (tmp_path / 'ran').read_text().splitlines()


def jobs_of(run_dir):
    """What each job's log has."""
    return {path.stem: path.read_text() for path in run_dir.logs.iterdir()}


def topology_jobs(run_dir):
    jobs = ('replay_server', 'train', 'evaluate', 'collect_0', 'collect_1')
    return {f'tpu_{job}': f'-m p.supervise --root_dir={run_dir.root} --job={job}\n' for job in jobs}


def test_each_host_of_several_runs_the_server_and_the_first_the_jobs(run_dir, tmp_path):
    options = dataclasses.replace(OPTIONS, accelerator_type='v5litepod-16')
    command, _, script = queued_resources.render(topology(), run_dir, 'p', options).partition('\n')
    assert '--runtime-version=v2-alpha-tpuv5-lite ' in command
    run_dir.logs.mkdir(parents=True)
    for host, jobs in ('1', {}), ('0', topology_jobs(run_dir)):
        assert on_host(host, script, tmp_path) == ['mount /shared', 'start_grpc_tpu_worker']
        assert jobs_of(run_dir) == jobs


def test_a_launch_renders_what_it_would_submit(tmp_path):
    flags = [f'--root_dir={tmp_path / "run"}', '--gin_file=dqn_cartpole', '--backend=queued_resources', '--render']
    done = command_lines.run('launch', *flags, '--backend_option=zone=us-central2-b', timeout=60.0)
    assert done.returncode == 0, done.stderr
    assert '--accelerator-type=v4-8' in done.stdout and '-m scripts.supervise' in done.stdout
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('kind', ['v5litepod-8', 'v4-16'])
def test_submits_the_run_with_the_commands_of_the_vm(kind, run_dir, tmp_path, monkeypatch):
    (tmp_path / 'gcloud').write_text(f'#!/bin/bash\necho "$*" >> "{tmp_path}/calls"\n')
    (tmp_path / 'gcloud').chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    options = dataclasses.replace(OPTIONS, accelerator_type=kind)
    text = queued_resources.submit(topology(), run_dir, 'p', options)
    name = places.run_name(run_dir)
    assert f'gcloud compute tpus queued-resources delete {name} --zone=us-central2-b --force' in text
    assert (tmp_path / 'calls').read_text().startswith(f'compute tpus queued-resources create {name} ')
    assert (run_dir.root / 'startup.sh').read_text().startswith('#!/bin/bash\n')
    train = next(job for job in load(run_dir).jobs if job.name == 'train')
    address = 'local' if kind == 'v5litepod-8' else name
    assert train.command[:3] == ('py', '-m', 'p.train') and train.command[-1] == f'--strategy=tpu:{address}'
    assert read_json(run_dir.submitted) == {'queued_resources': name}


def test_refuses_what_cannot_be_on_one_vm(run_dir):
    with pytest.raises(ValueError, match='got no zone for --backend=queued_resources; need --backend_option=zone='):
        queued_resources.submit(topology(), run_dir, 'p', QueuedResourcesOptions())
    refused = {'v4': "; need a TPU's kind and size, such as v4-8", 'v6e-16': ', of several hosts, whose server'}
    for kind, reason in refused.items():
        with pytest.raises(ValueError, match=f'got accelerator_type={kind}{reason}'):
            queued_resources.submit(topology(), run_dir, 'p', dataclasses.replace(OPTIONS, accelerator_type=kind))
    with pytest.raises(ValueError, match='got --num_workers for a TPU'):
        queued_resources.submit(topology(num_workers=2), run_dir, 'p', OPTIONS)
    assert not run_dir.root.exists()
