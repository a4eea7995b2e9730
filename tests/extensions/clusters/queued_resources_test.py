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
    programs = {'curl': 'echo ${HOST:-0}', 'mount': f'echo mount $* > {tmp_path}/first', 'py': 'echo $*'}
    for name, body in programs.items():
        (tmp_path / name).write_text(f'#!/bin/bash\n{body}\n')
        (tmp_path / name).chmod(0o755)
    run_dir.logs.mkdir(parents=True)
    environment = {**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}'}
    for host in ('1', '0'):
        assert not [*run_dir.logs.iterdir()], 'the second host of a VM does nothing'
        subprocess.run(['bash', '-c', script], env={**environment, 'HOST': host}, check=True, timeout=30)
    assert (tmp_path / 'first').read_text() == 'mount /shared\n'
    jobs = ('replay_server', 'train', 'evaluate', 'collect_0', 'collect_1')
    found = {path.stem: path.read_text() for path in run_dir.logs.iterdir()}
    assert found == {f'tpu_{job}': f'-m p.supervise --root_dir={run_dir.root} --job={job}\n' for job in jobs}


def test_a_launch_renders_what_it_would_submit(tmp_path):
    flags = [f'--root_dir={tmp_path / "run"}', '--gin_file=dqn_cartpole', '--backend=queued_resources', '--render']
    done = command_lines.run('launch', *flags, '--backend_option=zone=us-central2-b', timeout=60.0)
    assert done.returncode == 0, done.stderr
    assert '--accelerator-type=v4-8' in done.stdout and '-m scripts.supervise' in done.stdout
    assert not (tmp_path / 'run').exists()


def test_submits_the_run_with_the_commands_of_the_vm(run_dir, tmp_path, monkeypatch):
    (tmp_path / 'gcloud').write_text(f'#!/bin/bash\necho "$*" >> "{tmp_path}/calls"\n')
    (tmp_path / 'gcloud').chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    text = queued_resources.submit(topology(), run_dir, 'p', OPTIONS)
    name = places.run_name(run_dir)
    assert f'gcloud compute tpus queued-resources delete {name} --zone=us-central2-b --force' in text
    assert (tmp_path / 'calls').read_text().startswith(f'compute tpus queued-resources create {name} ')
    assert (run_dir.root / 'startup.sh').read_text().startswith('#!/bin/bash\n')
    train = next(job for job in load(run_dir).jobs if job.name == 'train')
    assert train.command[:3] == ('py', '-m', 'p.train') and train.command[-1] == '--strategy=tpu:local'
    assert read_json(run_dir.submitted) == {'queued_resources': name}


def test_refuses_what_cannot_be_on_one_vm(run_dir):
    with pytest.raises(ValueError, match='got no zone for --backend=queued_resources; need --backend_option=zone='):
        queued_resources.submit(topology(), run_dir, 'p', QueuedResourcesOptions())
    refused = {'v4': "; need a TPU's kind and size, such as v4-8", 'v5litepod-16': ', of several hosts, with strategy='}
    for kind, reason in refused.items():
        with pytest.raises(ValueError, match=f'got accelerator_type={kind}{reason}'):
            queued_resources.submit(topology(), run_dir, 'p', dataclasses.replace(OPTIONS, accelerator_type=kind))
    with pytest.raises(ValueError, match='got --num_workers for a TPU'):
        queued_resources.submit(topology(num_workers=2), run_dir, 'p', OPTIONS)
    assert not run_dir.root.exists()
