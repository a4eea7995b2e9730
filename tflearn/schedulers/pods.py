"""Pods of Kubernetes: the container of a job with its resources, volumes, probes and time to stop."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tflearn.errors import UserValueError
from tflearn.launch.topology import OWN_PORT, WITH_ADDRESS, Job, Resources, Topology, address_of
from tflearn.run_dir import RunDir

Manifest = dict[str, Any]
REPLAY_PORT, WEIGHTS_PORT, WORKER_PORT, SERVE_PORT, METRICS_PORT = 8008, 8010, 2222, 8500, 9100
PORTS = {'replay_server': REPLAY_PORT, 'weights': WEIGHTS_PORT, 'relay': WEIGHTS_PORT}
_ORDINAL = "metadata.labels['apps.kubernetes.io/pod-index']"  # of a pod in a StatefulSet
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
      services: the names of the servers' Services, by kind.
    """

    def __init__(self, topology: Topology, run_dir: RunDir, options: KubernetesOptions):
        self._topology, self._run_dir, self._options = topology, run_dir, options
        self.name = _label(f'tflearn-{run_dir.root.name}')
        names = {'replay_server': 'replay', 'weights': 'weights', 'relay': 'relay'}
        self.services = {kind: f'{self.name}-{name}' for kind, name in names.items()}

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
          job: the job, or the first of its kind; a collector's name is its pod's, a server's has its pod's number.
          restart: the pod's restart policy.
          volumes: further mounts of the container.
        """
        own = ('--collector_name=', '--name=', '--shard=')
        words = [self._filled_in(word, job) for word in _program(job.command) if not word.startswith(own)]
        name, more = self._own_name(job)
        container: Manifest = {'env': [*name, *self._worker_environment(job)], **self._probes(job)}
        words = [*words, *more]
        if job.kind in WITH_ADDRESS:
            container['ports'] = [{'name': port_name(job.kind), 'containerPort': PORTS[job.kind]}]
        if job.workers > 1:
            container['ports'] = [{'name': 'worker', 'containerPort': WORKER_PORT}]
        template = self.template(job.kind, words, job.resources, container, restart, volumes)
        if job.kind == 'replay_server' and len(self._topology.group(job.kind)) == 1:
            metrics = self.metrics()
            template['spec']['containers'] += metrics['spec']['containers']
            template['metadata']['annotations'] = metrics['metadata']['annotations']
        return template

    def _own_name(self, job: Job) -> tuple[list[Manifest], list[str]]:
        """Returns the variable that tells a pod from others of its kind, and the flags that read it."""
        if job.kind == 'collect':
            name = [{'name': 'POD_NAME', 'valueFrom': {'fieldRef': {'fieldPath': 'metadata.name'}}}]
            return name, ['--collector_name=$(POD_NAME)']
        flag = {'relay': '--name=relay_$(ORDINAL)', 'replay_server': '--shard=$(ORDINAL)'}.get(job.kind)
        if flag is None or (job.kind == 'replay_server' and len(self._topology.group(job.kind)) == 1):
            return [], []
        return [{'name': 'ORDINAL', 'valueFrom': {'fieldRef': {'fieldPath': _ORDINAL}}}], [flag]

    def _filled_in(self, word: str, job: Job) -> str:
        """Returns a word of a job's command with the addresses of services and of their pods."""
        for kind in WITH_ADDRESS:
            servers, service, port = self._topology.group(kind), self.services[kind], PORTS[kind]
            for i, server in enumerate(servers):
                host = service if len(servers) == 1 else f'{service}-{i}.{service}'
                word = word.replace(address_of(server.name), f'{host}:{port}')
        return word.replace(OWN_PORT, str(PORTS.get(job.kind, 0)))

    def metrics(self) -> Manifest:
        """Returns the template of the pod that Prometheus asks for the numbers of all jobs."""
        words = ['tflearn-run-metrics', f'--root_dir={self._run_dir.root}', f'--run={self.name}']
        words += ['--host=0.0.0.0', f'--port={METRICS_PORT}']
        container: Manifest = {'ports': [{'name': 'metrics', 'containerPort': METRICS_PORT}]}
        template = self.template('metrics', words, Resources(), container)
        template['metadata']['annotations'] = {
            'prometheus.io/scrape': 'true',
            'prometheus.io/port': str(METRICS_PORT),
        }
        return template

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
        if job.kind in WITH_ADDRESS:
            port = {'tcpSocket': {'port': PORTS[job.kind]}}
            probes['readinessProbe'] = {**port, 'periodSeconds': 5}
            start_secs = max(_START_SECS, round(self._topology.connect_timeout_secs))
            probes['startupProbe'] = {**port, 'periodSeconds': 5, 'failureThreshold': start_secs // 5}
        silent = round(self._topology.silent_timeout_secs)
        if silent and job.workers == 1:  # Only the chief of several reports.
            recent = f'find "$file" -newermt "-{silent} seconds"'
            status = self._run_dir.status('$name')
            script = f'{_status_name(job)}; file="$0/{status.name}"; ! grep -q \'"state": "running\' "$file"'
            script += f' || test -n "$({recent})"'
            probes['livenessProbe'] = {
                'exec': {'command': ['sh', '-c', script, str(status.parent)]},
                'initialDelaySeconds': _START_SECS,
                'periodSeconds': _PERIOD_SECS,
                'timeoutSeconds': 10,
                'failureThreshold': 3,
            }
        return probes


def _status_name(job: Job) -> str:
    """Returns what sets the shell's `name` to that of a pod's status: probes get no values from Kubernetes."""
    if job.kind == 'replay_server':  # The first one's has no number.
        return 'name=replay_server_${ORDINAL:-0}; name=${name%_0}'
    own = {'collect': '$POD_NAME', 'relay': 'relay_$ORDINAL'}
    return f'name={own.get(job.kind, job.name)}'


def port_name(kind: str) -> str:
    """Returns the name of a server's port."""
    return 'replay' if kind == 'replay_server' else 'weights'


def _program(command: Sequence[str]) -> list[str]:
    """Returns a job's command as it is in the image: a console command instead of this Python."""
    program = command[2].rpartition('.')[2].replace('_', '-')
    return [f'tflearn-{program}', *command[3:]]


def _label(text: str) -> str:
    """Returns a DNS label: what names in Kubernetes consist of."""
    return re.sub(r'[^a-z0-9-]+', '-', text.lower())[:40].strip('-')
