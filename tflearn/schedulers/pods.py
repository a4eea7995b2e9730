"""Pods of Kubernetes: the container of a job with its resources, volumes, probes and time to stop."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tflearn.errors import UserValueError
from tflearn.launch.topology import REPLAY_ADDRESS, Job, Resources, Topology
from tflearn.run_dir import RunDir

Manifest = dict[str, Any]
REPLAY_PORT, WORKER_PORT, SERVE_PORT, METRICS_PORT = 8008, 2222, 8500, 9100
_STOP_MARGIN_SECS = 30  # what Kubernetes needs besides the job
_START_SECS = 120  # loading the libraries
_PERIOD_SECS = 30
_USER = 1000  # of docker/Dockerfile
_GPU, _TPU = 'nvidia.com/gpu', 'google.com/tpu'
_NODE_LABELS = {
    _GPU: 'cloud.google.com/gke-accelerator',
    _TPU: 'cloud.google.com/gke-tpu-accelerator',
}
_TPU_TOPOLOGY = 'cloud.google.com/gke-tpu-topology'


@dataclasses.dataclass(frozen=True)
class KubernetesOptions:
    """What the manifests say besides the jobs' resources.

    Attributes:
      image: the container image, see docs/docker.md.
      namespace: where everything is.
      queue: the LocalQueue of Kueue that the learner waits in; '': none.
      cluster_queue: the ClusterQueue that `queue` is made for; '': it is there already.
      storage_class: of the volumes; '' is the cluster's default. That of the run directory is mounted by many machines.
      storage_gb: the size of each volume [GB].
      max_collectors: up to how many collectors the autoscaler starts; 0: their number stays.
      metric: the external metric that the autoscaler reads: the share of time that the learner waits for data.
      tpu_topology: the layout of the TPU chips, such as 2x4; accelerators are TPU chips then, else GPUs.
      serve_replicas: servers of the policies; 0: none.
    """

    image: str = 'tflearn:latest'
    namespace: str = 'default'
    queue: str = ''
    cluster_queue: str = ''
    storage_class: str = ''
    storage_gb: int = 50
    max_collectors: int = 0
    metric: str = 'tflearn_train_data_wait_share'
    tpu_topology: str = ''
    serve_replicas: int = 1

    def __post_init__(self) -> None:
        if self.cluster_queue and not self.queue:
            raise UserValueError('got cluster_queue without queue; need the name of the queue to make; set queue=NAME')
        if self.tpu_topology and not re.fullmatch(r'\d+x\d+(x\d+)?', self.tpu_topology):
            raise UserValueError(f'got tpu_topology={self.tpu_topology}; need a layout such as 2x4 or 2x2x4')


class Pods:
    """Makes the pods of one run.

    Attributes:
      name: begins the name of everything that the run has.
      replay_service: the name of the replay server's Service.
    """

    def __init__(self, topology: Topology, run_dir: RunDir, options: KubernetesOptions):
        self._topology, self._run_dir, self._options = topology, run_dir, options
        self.name = _label(f'tflearn-{run_dir.root.name}')
        self.replay_service = f'{self.name}-replay'

    def labels(self, kind: str) -> dict[str, str]:
        """Returns the labels of the pods of a kind."""
        return {'app.kubernetes.io/name': 'tflearn', 'app.kubernetes.io/instance': self.name, 'tflearn/job': kind}

    def selector(self, *kinds: str) -> Manifest:
        """Returns the selector of all pods of this run, or of some kinds."""
        own: Manifest = {'matchLabels': {'app.kubernetes.io/instance': self.name}}
        if kinds:
            own['matchExpressions'] = [{'key': 'tflearn/job', 'operator': 'In', 'values': list(kinds)}]
        return own

    def of_job(self, job: Job, restart: str = 'Always', volumes: Sequence[Manifest] = ()) -> Manifest:
        """Returns the template of the pods of a job.

        Args:
          job: the job; a collector's name is its pod's.
          restart: the pod's restart policy.
          volumes: further mounts of the container.
        """
        words = [word for word in _program(job.command) if not word.startswith('--collector_name=')]
        address = f'{self.replay_service}:{REPLAY_PORT}'
        words = [word.replace(REPLAY_ADDRESS, address) for word in words]
        environment: list[Manifest] = []
        if job.kind == 'collect':
            environment = [{'name': 'POD_NAME', 'valueFrom': {'fieldRef': {'fieldPath': 'metadata.name'}}}]
            words = [*words, '--collector_name=$(POD_NAME)']
        container: Manifest = {'env': [*environment, *self._worker_environment(job)]}
        container |= self._probes(job)
        if job.kind == 'replay_server':
            container['ports'] = [{'name': 'replay', 'containerPort': REPLAY_PORT}]
        if job.workers > 1:
            container['ports'] = [{'name': 'worker', 'containerPort': WORKER_PORT}]
        template = self.template(job.kind, words, job.resources, container, restart, volumes)
        if job.kind == 'replay_server':
            template['spec']['containers'].append(self._metrics())
            template['metadata']['annotations'] = {
                'prometheus.io/scrape': 'true',
                'prometheus.io/port': str(METRICS_PORT),
            }
        return template

    def _metrics(self) -> Manifest:
        """Returns the container that Prometheus asks for the numbers of all jobs."""
        words = ['tflearn-run-metrics', f'--root_dir={self._run_dir.root}', f'--run={self.name}']
        words += ['--host=0.0.0.0', f'--port={METRICS_PORT}']
        container: Manifest = {'ports': [{'name': 'metrics', 'containerPort': METRICS_PORT}]}
        (made,) = self.template('metrics', words, Resources(), container)['spec']['containers']
        return dict(made)

    def template(
        self,
        kind: str,
        words: Sequence[str],
        resources: Resources,
        container: Manifest,
        restart: str = 'Always',
        volumes: Sequence[Manifest] = (),
    ) -> Manifest:
        """Returns the template of pods that run the program `words`, with more keys of their container."""
        mounts = [{'name': 'run', 'mountPath': str(self._run_dir.root)}, *volumes]
        main: Manifest = {
            'name': _label(kind),
            'image': self._options.image,
            'command': [words[0]],
            'args': list(words[1:]),
            'volumeMounts': mounts,
            'resources': self._amounts(resources),
            'securityContext': {'allowPrivilegeEscalation': False, 'capabilities': {'drop': ['ALL']}},
            **{key: value for key, value in container.items() if value},
        }
        pod: Manifest = {
            'restartPolicy': restart,
            'terminationGracePeriodSeconds': self.grace_secs,
            'securityContext': {'runAsNonRoot': True, 'runAsUser': _USER, 'fsGroup': _USER},
            'automountServiceAccountToken': False,
            'containers': [main],
            'volumes': [{'name': 'run', 'persistentVolumeClaim': {'claimName': f'{self.name}-run'}}],
        }
        if nodes := self._node_selector(resources):
            pod['nodeSelector'] = nodes
        return {'metadata': {'labels': self.labels(kind)}, 'spec': pod}

    @property
    def grace_secs(self) -> int:
        """The time between SIGTERM and SIGKILL: more than a job takes to stop [s]."""
        return round(self._topology.stop_timeout_secs) + _STOP_MARGIN_SECS

    def _amounts(self, resources: Resources) -> Manifest:
        requests: Manifest = {'cpu': str(resources.cores)} if resources.cores else {}
        limits: Manifest = {}
        if resources.memory_gb:
            requests['memory'] = limits['memory'] = f'{round(resources.memory_gb * 1000)}M'
        counted: Mapping[str, int] = resources.custom
        if resources.accelerators:
            counted = {**counted, self._device: resources.accelerators}
        limits |= {name: str(count) for name, count in counted.items()}
        requests |= {name: str(count) for name, count in counted.items()}
        return {key: value for key, value in (('requests', requests), ('limits', limits)) if value}

    @property
    def _device(self) -> str:
        return _TPU if self._options.tpu_topology else _GPU

    def _node_selector(self, resources: Resources) -> dict[str, str]:
        if not resources.accelerators:
            return {}
        nodes = {_NODE_LABELS[self._device]: resources.accelerator} if resources.accelerator else {}
        return nodes | ({_TPU_TOPOLOGY: self._options.tpu_topology} if self._options.tpu_topology else {})

    def _worker_environment(self, job: Job) -> list[Manifest]:
        """Returns TF_CONFIG for the pods of an indexed job in a JobSet, whose names are known beforehand."""
        if job.workers == 1:
            return []
        hosts = ','.join(f'"{self.name}-learner-0-{i}.{self.name}:{WORKER_PORT}"' for i in range(job.workers))
        task = '"task": {"type": "worker", "index": $(WORKER_INDEX)}'
        index = {'fieldPath': "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
        return [
            {'name': 'WORKER_INDEX', 'valueFrom': {'fieldRef': index}},
            {'name': 'TF_CONFIG', 'value': f'{{"cluster": {{"worker": [{hosts}]}}, {task}}}'},
        ]

    def _probes(self, job: Job) -> Manifest:
        """Returns the probes: a port that listens; a job that reports while it runs, as the local supervisor asks."""
        probes: Manifest = {}
        if job.kind == 'replay_server':
            port = {'tcpSocket': {'port': REPLAY_PORT}}
            probes['readinessProbe'] = {**port, 'periodSeconds': 5}
            start_secs = max(_START_SECS, round(self._topology.connect_timeout_secs))
            probes['startupProbe'] = {**port, 'periodSeconds': 5, 'failureThreshold': start_secs // 5}
        silent = round(self._topology.silent_timeout_secs)
        if silent and job.workers == 1:  # Only the chief of several reports.
            # The shell puts a collector's name in: Kubernetes does not, in probes.
            status = self._run_dir.status('${POD_NAME:-' + job.name + '}')
            recent = f'find "$file" -newermt "-{silent} seconds"'
            script = f'file="$0/{status.name}"; ! grep -q \'"state": "running\' "$file" || test -n "$({recent})"'
            probes['livenessProbe'] = {
                'exec': {'command': ['sh', '-c', script, str(status.parent)]},
                'initialDelaySeconds': _START_SECS,
                'periodSeconds': _PERIOD_SECS,
                'timeoutSeconds': 10,
                'failureThreshold': 3,
            }
        return probes


def _program(command: Sequence[str]) -> list[str]:
    """Returns a job's command as it is in the image: a console command instead of this Python."""
    program = command[2].rpartition('.')[2].replace('_', '-')
    return [f'tflearn-{program}', *command[3:]]


def _label(text: str) -> str:
    """Returns a DNS label: what names in Kubernetes consist of."""
    return re.sub(r'[^a-z0-9-]+', '-', text.lower())[:40].strip('-')
