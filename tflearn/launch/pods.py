"""Pods of Kubernetes: the container of a job with its resources, volumes, probes and time to stop.

They meet the `restricted` pod security standard. What a cluster needs besides (secrets, tolerations, ...) is in a file
of one's own, which is merged into them.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tflearn.core.errors import UserValueError
from tflearn.core.settings import NonNegativeInt, checked_dataclass
from tflearn.files.run_dir import RunDir
from tflearn.launch.topology import OWN_PORT, WITH_ADDRESS, Job, Resources, Topology, address_of

Manifest = dict[str, Any]
REPLAY_PORT, WEIGHTS_PORT, WORKER_PORT, SERVE_PORT, METRICS_PORT = 8008, 8010, 2222, 8500, 9100
PORTS = {'replay_server': REPLAY_PORT, 'weights': WEIGHTS_PORT, 'relay': WEIGHTS_PORT}
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"  # of a pod of an indexed Job
_ORDINAL = "metadata.labels['apps.kubernetes.io/pod-index']"  # of a pod in a StatefulSet
_STOP_MARGIN_SECS = 30  # what Kubernetes needs besides the job
_START_SECS = 120  # loading the libraries
_PERIOD_SECS = 30
_USER = 1000  # of docker/Dockerfile
GIN_FOLDER = '/etc/tflearn/gin'  # in the containers, where the run's own gin files are
_GPU, _TPU = 'nvidia.com/gpu', 'google.com/tpu'
_NODE_LABELS = {
    _GPU: 'cloud.google.com/gke-accelerator',
    _TPU: 'cloud.google.com/gke-tpu-accelerator',
}
# What is asked for where --resources says nothing: a pod that asks for nothing is the first to be evicted.
_LEAST = {
    'train': {'cpu': '2', 'memory': '4G'},
    'replay_server': {'cpu': '1', 'memory': '4G'},
    'collect': {'cpu': '1', 'memory': '2G'},
    'evaluate': {'cpu': '1', 'memory': '2G'},
    'serve': {'cpu': '1', 'memory': '2G'},
    'weights': {'cpu': '1', 'memory': '1G'},
    'relay': {'cpu': '1', 'memory': '1G'},
    'metrics': {'cpu': '100m', 'memory': '256M'},
}
_MAX_CONFIG_BYTES = 1_000_000
_PATCHED = ('metadata', 'pod', 'container')
_ALL_KINDS = '*'
_TPU_TOPOLOGY = 'cloud.google.com/gke-tpu-topology'


@dataclasses.dataclass(frozen=True)
class PodOptions:
    """The run's pods.

    Attributes:
      image: the container image, see docs/docker.md; required.
      patch: a JSON file of what is merged into the pods of each kind of job, see docs/clusters.md; '': nothing.
      accelerator_label: the node label that an accelerator's kind is compared with; '' is GKE's.
      tpu_topology: the layout of the TPU chips, such as 2x4; accelerators are TPU chips then, else GPUs.
    """

    image: str = ''
    patch: str = ''
    accelerator_label: str = ''
    tpu_topology: str = ''

    def __post_init__(self) -> None:
        if self.tpu_topology and not re.fullmatch(r'\d+x\d+(x\d+)?', self.tpu_topology):
            raise UserValueError(f'got tpu_topology={self.tpu_topology}; need a layout such as 2x4 or 2x2x4')


@dataclasses.dataclass(frozen=True)
class VolumeOptions:
    """The volume of the run directory, which all machines mount.

    Attributes:
      claim: the name of a PersistentVolumeClaim that is there; '': the run's own, which part=claims renders.
      storage_class: of the run's own claim; '' is the cluster's default.
      storage_gb: the size of the run's own claim [GB].
    """

    claim: str = ''
    storage_class: str = ''
    storage_gb: int = 50


@dataclasses.dataclass(frozen=True)
class QueueOptions:
    """Kueue's queue for the learner.

    Attributes:
      queue: the LocalQueue that the learner waits in; '': none.
      cluster_queue: the ClusterQueue that `queue` is made for; '': it is there already.
    """

    queue: str = ''
    cluster_queue: str = ''

    def __post_init__(self) -> None:
        if self.cluster_queue and not self.queue:
            raise UserValueError('got cluster_queue without queue; need the name of the queue to make; set queue=NAME')


@checked_dataclass(frozen=True)
class KubernetesOptions:
    """What the manifests say besides the jobs' resources.

    Attributes:
      part: 'run': what `kubectl delete` may delete at the run's end; 'claims': the claim of its directory.
      namespace: where everything is.
      max_collectors: up to how many collectors the autoscaler starts; 0: their number stays, and they end with the run.
      metric: the external metric that the autoscaler reads: the share of time that the learner waits for data.
      serve_replicas: servers of the policies; 0: none.
    """

    pods: PodOptions = PodOptions()
    volume: VolumeOptions = VolumeOptions()
    queueing: QueueOptions = QueueOptions()
    part: Literal['run', 'claims'] = 'run'
    namespace: str = 'default'
    max_collectors: NonNegativeInt = 0
    metric: str = 'tflearn_train_data_wait_share'
    serve_replicas: NonNegativeInt = 1

    def __post_init__(self) -> None:
        if self.part == 'claims' and self.volume.claim:
            raise UserValueError(f'got part=claims and claim={self.volume.claim}, which is there; need one of them')
        if self.part == 'run' and not self.pods.image:
            raise UserValueError(
                'got no image; need --backend_option=image=REGISTRY/NAME:TAG; docs/docker.md says how to build one'
            )


def _read_patch(file: str, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what the file merges into pods, by kind of job.

    Raises:
      ValueError: if it cannot be read, or has keys that nothing reads.
    """
    if not file:
        return {}
    try:
        patch = json.loads(pathlib.Path(file).read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise UserValueError(f'got patch={file}, which cannot be read ({error}); need a file of JSON') from error
    of_kinds = patch if isinstance(patch, dict) else {}
    unknown = [str(kind) for kind in of_kinds if kind not in (_ALL_KINDS, *kinds)]
    for kind, parts in of_kinds.items():
        parts = parts if isinstance(parts, dict) else {'': None}
        unknown += [f'{kind}.{key}' for key, value in parts.items() if key not in _PATCHED or type(value) is not dict]
    if not isinstance(patch, dict) or unknown:
        raise UserValueError(
            f'got patch={file} with {", ".join(unknown) or "no object"}; need {{KIND: {{PART: {{...}}}}}} of the kinds '
            f'{_ALL_KINDS}, {", ".join(kinds)} and the parts {", ".join(_PATCHED)}'
        )
    return patch


def _merged(own: Any, more: Any) -> Any:
    """Returns `own` with `more`: keys are added, lists appended, and other values replaced."""
    if isinstance(own, dict) and isinstance(more, dict):
        return {**own, **{key: _merged(own[key], value) if key in own else value for key, value in more.items()}}
    return [*own, *more] if isinstance(own, list) and isinstance(more, list) else more


class Pods:
    """Makes the pods of one run.

    Attributes:
      name: begins the name of everything that the run has.
      claim: the name of the claim of the run directory's volume.
      services: the names of the servers' Services, by kind.
    """

    def __init__(self, topology: Topology, run_dir: RunDir, options: KubernetesOptions):
        self._topology, self._run_dir, self._options = topology, run_dir, options.pods
        self.name = _label(f'tflearn-{run_dir.root.name}')
        self.claim = options.volume.claim or f'{self.name}-run'
        self._patch = _read_patch(options.pods.patch, [*_LEAST])
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

    def of_job(self, job: Job, restart: str = 'Always') -> Manifest:
        """Returns the template of the pods of a job.

        Args:
          job: the job, or the first of its kind; a server's name has its pod's number, a collector's its index, or is
            its pod's where pods have none.
          restart: the pod's restart policy.
        """
        own = ('--collector_name=', '--name=', '--shard=')
        words = [self._filled_in(word, job) for word in _program(job.command) if not word.startswith(own)]
        name, more = self._own_name(job, restart)
        container: Manifest = {'env': [*name, *self._worker_environment(job)], **self._probes(job, restart)}
        words = [*words, *more]
        if job.kind in WITH_ADDRESS:
            container['ports'] = [{'name': port_name(job.kind), 'containerPort': PORTS[job.kind]}]
        if job.workers > 1:
            container['ports'] = [{'name': 'worker', 'containerPort': WORKER_PORT}]
        template = self.template(job.kind, words, job.resources, container, restart)
        if job.kind == 'replay_server' and len(self._topology.group(job.kind)) == 1:
            metrics = self.metrics()
            template['spec']['containers'] += metrics['spec']['containers']
            template['metadata'] = _merged(metrics['metadata'], template['metadata'])
        if job.kind == 'train':  # A scale-down of the cluster is no reason to interrupt it.
            safe = {'cluster-autoscaler.kubernetes.io/safe-to-evict': 'false'}
            template['metadata'] = _merged(template['metadata'], {'annotations': safe})
        return template

    def _own_name(self, job: Job, restart: str) -> tuple[list[Manifest], list[str]]:
        """Returns the variable that tells a pod from others of its kind, and the flags that read it."""
        if job.kind == 'collect' and restart == 'Never':  # The pods of an indexed Job.
            index = [{'name': 'INDEX', 'valueFrom': {'fieldRef': {'fieldPath': _INDEX}}}]
            return index, ['--collector_name=collect_$(INDEX)']
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
        return self.template('metrics', words, Resources(), container)

    def template(
        self,
        kind: str,
        words: Sequence[str],
        resources: Resources,
        container: Manifest,
        restart: str = 'Always',
    ) -> Manifest:
        """Returns the template of pods that run the program `words`, with more keys of their container."""
        mounts: list[Manifest] = [{'name': 'run', 'mountPath': str(self._run_dir.root)}]
        volumes: list[Manifest] = [{'name': 'run', 'persistentVolumeClaim': {'claimName': self.claim}}]
        if any(word.startswith(f'--gin_file={GIN_FOLDER}/') for word in words):
            mounts.append({'name': 'gin', 'mountPath': GIN_FOLDER, 'readOnly': True})
            items = [{'key': _key(path), 'path': path} for path in self._topology.gin_files]
            volumes.append({'name': 'gin', 'configMap': {'name': f'{self.name}-gin', 'items': items}})
        main: Manifest = {
            'name': _label(kind),
            'image': self._options.image,
            'command': [words[0]],
            'args': list(words[1:]),
            'volumeMounts': mounts,
            'resources': self._amounts(kind, resources),
            'securityContext': {'allowPrivilegeEscalation': False, 'capabilities': {'drop': ['ALL']}},
            **{key: value for key, value in container.items() if value},
        }
        pod: Manifest = {
            'restartPolicy': restart,
            'terminationGracePeriodSeconds': self.grace_secs,
            'securityContext': {
                'runAsNonRoot': True,
                'runAsUser': _USER,
                'fsGroup': _USER,
                'fsGroupChangePolicy': 'OnRootMismatch',  # Else each pod's start changes all files of the volume.
                'seccompProfile': {'type': 'RuntimeDefault'},
            },
            'automountServiceAccountToken': False,
            'volumes': volumes,
        }
        if nodes := self._node_selector(resources):
            pod['nodeSelector'] = nodes
        template: Manifest = {'metadata': {'labels': self.labels(kind)}, 'pod': pod, 'container': main}
        if any(port['name'] == 'metrics' for port in container.get('ports', ())):
            scraped = {'prometheus.io/scrape': 'true', 'prometheus.io/port': str(METRICS_PORT)}
            template['metadata']['annotations'] = scraped
        for patched in (_ALL_KINDS, kind):
            template = _merged(template, self._patch.get(patched, {}))
        spec = {**template['pod'], 'containers': [template['container']]}
        return {'metadata': template['metadata'], 'spec': spec}

    def config_map(self) -> list[Manifest]:
        """Returns the run's own gin files; nothing if an image has all that the run reads."""
        if not self._topology.gin_files:
            return []
        data = {_key(path): text for path, text in self._topology.gin_files.items()}
        if (size := sum(len(text.encode()) for text in data.values())) > _MAX_CONFIG_BYTES:
            raise UserValueError(
                f'got {size} bytes of gin files; need at most {_MAX_CONFIG_BYTES}, which a ConfigMap takes; put them '
                'into the image, under the folder of the packaged ones'
            )
        return [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{self.name}-gin'}, 'data': data}]

    @property
    def grace_secs(self) -> int:
        """The time between SIGTERM and SIGKILL: more than a job takes to stop [s]."""
        return round(self._topology.stop_timeout_secs) + _STOP_MARGIN_SECS

    def _amounts(self, kind: str, resources: Resources) -> Manifest:
        requests: Manifest = {**_LEAST[kind], **({'cpu': str(resources.cores)} if resources.cores else {})}
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
        label = self._options.accelerator_label or _NODE_LABELS[self._device]
        nodes = {label: resources.accelerator} if resources.accelerator else {}
        return nodes | ({_TPU_TOPOLOGY: self._options.tpu_topology} if self._options.tpu_topology else {})

    def _worker_environment(self, job: Job) -> list[Manifest]:
        """Returns TF_CONFIG for the pods of an indexed job in a JobSet, whose names are known beforehand."""
        if job.workers == 1:
            return []
        hosts = ','.join(f'"{self.name}-learner-0-{i}.{self.name}:{WORKER_PORT}"' for i in range(job.workers))
        task = '"task": {"type": "worker", "index": $(WORKER_INDEX)}'
        index = {'fieldPath': _INDEX}
        return [
            {'name': 'WORKER_INDEX', 'valueFrom': {'fieldRef': index}},
            {'name': 'TF_CONFIG', 'value': f'{{"cluster": {{"worker": [{hosts}]}}, {task}}}'},
        ]

    def _probes(self, job: Job, restart: str) -> Manifest:
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
            script = f'{_status_name(job, restart)}; file="$0/{status.name}"; ! grep -q \'"state": "running\' "$file"'
            script += f' || test -n "$({recent})"'
            probes['livenessProbe'] = {
                'exec': {'command': ['sh', '-c', script, str(status.parent)]},
                'initialDelaySeconds': _START_SECS,
                'periodSeconds': _PERIOD_SECS,
                'timeoutSeconds': 10,
                'failureThreshold': 3,
            }
        return probes


def _status_name(job: Job, restart: str) -> str:
    """Returns what sets the shell's `name` to that of a pod's status: probes get no values from Kubernetes."""
    if job.kind == 'replay_server':  # The first one's has no number.
        return 'name=replay_server_${ORDINAL:-0}; name=${name%_0}'
    own = {'collect': 'collect_$INDEX' if restart == 'Never' else '$POD_NAME', 'relay': 'relay_$ORDINAL'}
    return f'name={own.get(job.kind, job.name)}'


def port_name(kind: str) -> str:
    """Returns the name of a server's port."""
    return 'replay' if kind == 'replay_server' else 'weights'


def _program(command: Sequence[str]) -> list[str]:
    """Returns a job's command as it is in the image: a console command instead of this Python."""
    program = command[2].rpartition('.')[2].replace('_', '-')
    return [f'tflearn-{program}', *command[3:]]


def _key(path: str) -> str:
    """Returns the key of a file in a ConfigMap, which has no folders."""
    return re.sub(r'[^-._a-zA-Z0-9]', lambda found: f'_{ord(found[0]):x}_', path)


def _label(text: str) -> str:
    """Returns a DNS label: what names in Kubernetes consist of."""
    return re.sub(r'[^a-z0-9-]+', '-', text.lower())[:40].strip('-')
