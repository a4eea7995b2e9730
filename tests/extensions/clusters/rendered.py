"""The manifests of runs on Kubernetes, for tests."""

import dataclasses
import json

from tflearn.extensions.clusters import kubernetes, places
from tflearn.extensions.clusters.kubernetes import KubernetesOptions
from tflearn.files.run_dir import RunDir
from tflearn.launch.topology import OWN_ADDRESS, Addresses, Resources, run_topology

RESOURCES = {
    'train': Resources(cores=8, memory_gb=16.0, accelerators=4, accelerator='nvidia-l4'),
    'collect': Resources(cores=2, memory_gb=1.5, custom={'example.com/simulator': 1}),
}
IMAGE = 'image=registry.example.com/tflearn:1'
OF_FULL = ('namespace=agents', 'queue=learners', 'cluster_queue=gpus', 'max_collectors=64', 'serve_replicas=2')
OF_FULL += ('pod_monitor=release=prometheus', 'deadline_secs=86400', 'sub_path=teams/rl')
FULL = places.read_options(KubernetesOptions, [IMAGE, *OF_FULL, 'token_secret=cartpole'])
SERVE = places.read_options(KubernetesOptions, [IMAGE, *OF_FULL, 'part=serve'])
TPU = places.read_options(KubernetesOptions, [IMAGE, 'tpu_topology=2x4'])
SMALL = places.read_options(KubernetesOptions, [IMAGE])
ALONE = Addresses(replay=(OWN_ADDRESS,) * 3, relays=(OWN_ADDRESS,) * 2, alone=True, flags=('--run_dir=/runs/a',))


def manifests(
    its_options=FULL, num_workers=2, resources=RESOURCES, num_collectors=16, name='My_Run', gin_files=(), **more
):
    gin_files = dict(gin_files)
    flags = [f'--root_dir=/runs/{name}']
    counts = {'num_collectors': num_collectors, 'num_workers': num_workers, **more}
    topology = run_topology(package='scripts', flags=flags, resources=resources, **counts)
    topology = dataclasses.replace(topology, gin_files=gin_files)
    made = kubernetes.manifests(topology, RunDir(f'/runs/{name}'), its_options)
    return json.loads(json.dumps(made)), topology


def by_kind(made, kind, end=''):
    (found,) = [item for item in made if item['kind'] == kind and item['metadata']['name'].endswith(end)]
    return found


def templates(made):
    """The templates of pods, by the job's kind."""
    found = [job['template'] for job in gang(made).values()]
    found += [item['spec']['template'] for item in made if 'template' in item.get('spec', {})]
    return {template['metadata']['labels']['tflearn/job']: template for template in found}


def gang(made):
    """The Jobs of the JobSet, by their names."""
    sets = [item['spec'] for item in made if item['kind'] == 'JobSet']
    return {job['name']: job['template']['spec'] for each in sets for job in each['replicatedJobs']}


def container(made, kind):
    (one,) = templates(made)[kind]['spec']['containers']
    return one
