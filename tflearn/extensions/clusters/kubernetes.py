"""Kubernetes: the manifests of a run, as one JSON list that `kubectl apply -f` takes. Nothing is submitted.

What they are stands in `kubernetes.yaml`; this fills it in. What a cluster needs besides (secrets,
tolerations, ...) is in a file of one's own, which is merged into the pods.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NoReturn

from tflearn.core import extras
from tflearn.core.errors import UserValueError
from tflearn.core.settings import NonNegativeInt, PositiveInt, checked_dataclass
from tflearn.extensions.clusters import places
from tflearn.files.run_dir import RunDir
from tflearn.launch.topology import (
    COORDINATOR_ADDRESS,
    MAX_RESTARTS,
    OWN_ADDRESS,
    WITH_ADDRESS,
    Job,
    Resources,
    Topology,
)

Manifest = dict[str, Any]
with extras.needed_by('--backend=kubernetes'):
    import yaml

GIN_FOLDER = '/etc/tflearn/gin'  # in the containers, where the run's own gin files are
_TEMPLATE = pathlib.Path(__file__).with_name('kubernetes.yaml')
_STOP_MARGIN_SECS = 30  # what Kubernetes needs besides the job
_START_SECS = 120  # loading the libraries
_KEPT_SECS = 7 * 24 * 3600  # what has ended can be looked at for so long
_GPU, _TPU = 'nvidia.com/gpu', 'google.com/tpu'
_NODE_LABELS = {_GPU: 'cloud.google.com/gke-accelerator', _TPU: 'cloud.google.com/gke-tpu-accelerator'}
_TPU_TOPOLOGY = 'cloud.google.com/gke-tpu-topology'
_MAX_CONFIG_BYTES = 1_000_000
_PATCHED = ('metadata', 'pod', 'container')
_ALL_KINDS = '*'
_GANG = 'run'  # the JobSet, which has metadata alone
_TOKEN_VARIABLE = 'TFLEARN_COORDINATOR_TOKEN'


@dataclasses.dataclass(frozen=True)
class PodOptions:
    """The run's pods.

    Attributes:
      image: the container image, see docs/clusters.md; required.
      patch: a file of JSON or YAML that is merged into the pods of each kind of job, see
        docs/clusters.md; '': nothing.
      accelerator_label: the node label that an accelerator's kind is compared with; '' is GKE's.
      tpu_topology: the layout of the TPU chips, such as 2x4; accelerators are TPU chips then, else
        GPUs.
      token_secret: a Secret, whose key `token` holds the coordinator's token; '': it asks for none.
    """

    image: str = ''
    patch: str = ''
    accelerator_label: str = ''
    tpu_topology: str = ''
    token_secret: str = ''

    def __post_init__(self) -> None:
        if self.tpu_topology and not re.fullmatch(r'\d+x\d+(x\d+)?', self.tpu_topology):
            raise UserValueError(f'got tpu_topology={self.tpu_topology}; need a layout such as 2x4 or 2x2x4')


@dataclasses.dataclass(frozen=True)
class VolumeOptions:
    """The volume of the run directory, which all machines mount.

    Attributes:
      claim: the name of a PersistentVolumeClaim that is there; '': the run's own, which part=claims
        renders.
      sub_path: the folder of the claim that is the run directory; '': all of the claim.
      storage_class: of the run's own claim; '' is the cluster's default.
      storage_gb: the size of the run's own claim [GB].
    """

    claim: str = ''
    sub_path: str = ''
    storage_class: str = ''
    storage_gb: int = 50


@checked_dataclass(frozen=True)
class KubernetesOptions:
    """What the manifests say besides the jobs' resources.

    Attributes:
      queue: Kueue's LocalQueue that the run waits in; '': none.
      cluster_queue: the ClusterQueue that `queue` is made for; '': it is there already.
      part: 'run': what `kubectl delete` may delete at the run's end; 'claims': the claim of its
        directory; 'serve': the servers of its policies alone, which outlive it.
      namespace: where everything is.
      max_collectors: up to how many collectors the autoscaler starts; 0: their number stays, and
        they end with the run.
      metric: the external metric that the autoscaler reads: the share of time that the learner
        waits for data.
      serve_replicas: servers of the policies, of part=serve.
      deadline_secs: the learner is stopped so long after it was started, and the run has failed
        [s]; 0: never.
      pod_monitor: 'KEY=VALUE', the label by which Prometheus' operator selects a PodMonitor; '':
        there is none.
    """

    pods: PodOptions = PodOptions()
    volume: VolumeOptions = VolumeOptions()
    queue: str = ''
    cluster_queue: str = ''
    part: Literal['run', 'claims', 'serve'] = 'run'
    namespace: str = 'default'
    max_collectors: NonNegativeInt = 0
    metric: str = 'tflearn_train_data_wait_share'
    serve_replicas: PositiveInt = 1
    deadline_secs: NonNegativeInt = 0
    pod_monitor: str = ''

    def __post_init__(self) -> None:
        if self.cluster_queue and not self.queue:
            raise UserValueError('got cluster_queue without queue; need the name of the queue to make; set queue=NAME')
        if self.part == 'claims' and self.volume.claim:
            raise UserValueError(f'got part=claims and claim={self.volume.claim}, which is there; need one of them')
        if self.part == 'serve' and self.pods.token_secret:
            raise UserValueError(
                'got part=serve and token_secret, which servers of policies do not ask for; leave it out; their '
                'tokens are those of --clients, see docs/clusters.md'
            )
        if self.pod_monitor and not re.fullmatch(r'[\w./-]+=[\w.-]+', self.pod_monitor):
            raise UserValueError(
                f'got pod_monitor={self.pod_monitor}; need the label KEY=VALUE by which Prometheus selects '
                'PodMonitors, such as release=prometheus'
            )
        if self.part != 'claims' and not self.pods.image:
            raise UserValueError(
                'got no image; need --backend_option=image=REGISTRY/NAME:TAG; docs/clusters.md says how to build one'
            )


def read_options(texts: Sequence[str]) -> KubernetesOptions:
    """Returns the options of 'name=value' texts; see `places.read_options`."""
    return places.read_options(KubernetesOptions, texts)


def render(topology: Topology, run_dir: RunDir, package: str, options: KubernetesOptions) -> str:
    """Returns the manifests as JSON, which is YAML too.

    Args:
      topology: the run's jobs.
      run_dir: the run's directory in the containers, where the volume is mounted.
      package: not used: the image has console commands.
      options: what the jobs' resources do not say.
    """
    del package
    return json.dumps({'apiVersion': 'v1', 'kind': 'List', 'items': manifests(topology, run_dir, options)}, indent=2)


def submit(topology: Topology, run_dir: RunDir, package: str, options: KubernetesOptions) -> NoReturn:
    """Submits nothing. Raises ValueError, which says what to do."""
    raise UserValueError(
        'got --backend=kubernetes without --render; need kubectl to submit it: '
        'tflearn-launch ... --render | kubectl apply -f -'
    )


def manifests(topology: Topology, run_dir: RunDir, options: KubernetesOptions) -> list[Manifest]:
    """Returns all objects of a run, in the order in which they are made."""
    layout = options.pods.tpu_topology
    run = _Run(places.on_tpu(topology, 'tpu:local', layout) if layout else topology, run_dir, options)
    made = {'claims': run.claims, 'run': run.objects, 'serve': run.servers}[options.part]()
    for manifest in made:
        own = {'namespace': options.namespace, 'labels': run.labels('run')}
        manifest['metadata'] = {**own, **manifest['metadata']}
    return made


class _Run:
    """The objects of one run; `name` begins the name of each of them."""

    def __init__(self, topology: Topology, run_dir: RunDir, options: KubernetesOptions):
        self._topology, self._run_dir, self._options = topology, run_dir, options
        self._template = yaml.safe_load(_TEMPLATE.read_text(encoding='utf-8'))
        self._patch = _read_patch(options.pods.patch, self._template['requests'])
        self.name = places.run_name(run_dir, options.volume.claim, options.volume.sub_path)
        self._of_all = {
            'run': self.name,
            'claim': options.volume.claim or f'{self.name}-run',
            'sub_path': options.volume.sub_path or None,
            'image': options.pods.image,
            'root_dir': str(run_dir.root),
            'grace_secs': round(topology.stop_timeout_secs) + _STOP_MARGIN_SECS,
            # All jobs are started again with each worker of the learner, which may fail as often as another job.
            'max_restarts': MAX_RESTARTS * topology.group('train')[0].workers,
            'kept_secs': _KEPT_SECS,
            'user_error': self._template['user_error'],
            'gin_items': [{'key': _key(path), 'path': path} for path in topology.gin_files],
        }

    def claims(self) -> list[Manifest]:
        """Returns the claim of the volume that all jobs share."""
        volume = self._options.volume
        return self._made('claims', storage_gb=volume.storage_gb, storage_class=volume.storage_class or None)

    def objects(self) -> list[Manifest]:
        """Returns all other objects but the servers of policies."""
        options = self._options
        made = self._gin_files()
        if options.cluster_queue:
            made += self._made('queue', queue=options.queue, cluster_queue=options.cluster_queue)
        made += [*self._gang(), *self._scaled_collectors()]
        made += self._made('metrics', labels=self.labels('metrics'), pod=self._metrics_pod())
        made += [*self._monitor('metrics'), *self._network()]
        return made + (self._disruption('collect', '25%') if options.max_collectors else [])

    def servers(self) -> list[Manifest]:
        """Returns the servers of the exported policies."""
        # Not those that explore; `args` of a patch come later and name others.
        words = ['tflearn-serve', f'--root_dir={self._run_dir.root}', '--policies=greedy_policy', '--host=0.0.0.0']
        words += ['--port=8500', '--rest_port=8501', '--metrics_port=9100', '--lame_duck_secs=10']
        pod = self._program_pod('serve', words, Resources(), ('serve', 'scraped'))
        made = self._made('serve', labels=self.labels('serve'), replicas=self._options.serve_replicas, pod=pod)
        return [*made, *self._monitor('serve'), *self._disruption('serve', 1)]

    def _monitor(self, kind: str) -> list[Manifest]:
        """Returns what Prometheus' operator finds the pods of a kind by, if it is there."""
        if not self._options.pod_monitor:
            return []
        key, _, value = self._options.pod_monitor.partition('=')
        return self._made(
            'monitor', kind=kind, labels=self.labels(kind), monitor_labels={**self.labels('run'), key: value}
        )

    def labels(self, kind: str) -> Manifest:
        """Returns the labels of the pods of a kind."""
        return {'app.kubernetes.io/name': 'tflearn', 'app.kubernetes.io/instance': self.name, 'tflearn/job': kind}

    def _made(self, part: str, **values: Any) -> Any:
        """Returns a part of the template, filled in."""
        return _filled(self._template[part], {**self._of_all, **values})

    def _ports(self, kind: str) -> dict[str, Manifest]:
        """Returns the ports of a kind by name, the first one first: its own, and the coordinator's if it is that."""
        jobs = self._topology.group(kind)
        there = {'coordinator': kind == self._topology.host, 'worker': bool(jobs) and jobs[0].workers > 1}
        return {name: port for name, port in self._template['ports'].get(kind, {}).items() if there.get(name, True)}

    def _address(self, kind: str, pod: str, port: int) -> str:
        """Returns the address of a server; `pod` is its number among those of its kind."""
        return f'{self._pod_name(kind, pod)}.{self.name}:{port}'

    def _pod_name(self, kind: str, pod: str) -> str:
        """Returns the name of a pod of the JobSet, by which its Service finds it."""
        return f'{self.name}-{self._template["names"][kind]}-0-{pod}'

    def _gin_files(self) -> list[Manifest]:
        """Returns the run's own gin files; nothing if an image has all that the run reads."""
        data = {_key(path): text for path, text in self._topology.gin_files.items()}
        if (size := sum(len(text.encode()) for text in data.values())) > _MAX_CONFIG_BYTES:
            raise UserValueError(
                f'got {size} bytes of gin files; need at most {_MAX_CONFIG_BYTES}, which a ConfigMap takes; put them '
                'into the image, under the folder of the packaged ones'
            )
        return self._made('gin_files', gin_files=data) if data else []

    def _gang(self) -> list[Manifest]:
        """Returns the JobSet of all jobs, but for collectors that an autoscaler counts."""
        options = self._options
        own = [kind for kind in self._template['names'] if kind != 'collect' or not options.max_collectors]
        queued = {'kueue.x-k8s.io/queue-name': options.queue} if options.queue else {}
        (gang,) = self._made(
            'gang',
            labels=self.labels('run') | queued,
            jobs=[self._job(kind) for kind in own if self._topology.group(kind)],
        )
        return [_merged(gang, self._patch.get(_GANG, {}))]

    def _job(self, kind: str) -> Manifest:
        """Returns the part of the JobSet for the jobs of a kind."""
        jobs = self._topology.group(kind)
        train_as_one = jobs[0].workers > 1
        on_tpu = {'alpha.jobset.sigs.k8s.io/exclusive-topology': 'cloud.google.com/gke-nodepool'}
        return self._made(
            'job',
            name=self._template['names'][kind],
            count=jobs[0].workers if train_as_one else len(jobs),
            exclusive=on_tpu if self._options.pods.tpu_topology and kind == 'train' else None,
            # The learner's alone: it has saved when the others, which have none, end with it.
            deadline_secs=self._options.deadline_secs or None if kind == 'train' else None,
            as_one=0 if train_as_one else None,
            by_itself=None if train_as_one else MAX_RESTARTS,
            # The run goes on without a collector, but not without the others.
            missing=None if train_as_one or kind == 'collect' else 0,
            evictions=[] if train_as_one else self._template['evictions'],
            pod=self._pod(jobs[0], 'Never'),
        )

    def _scaled_collectors(self) -> list[Manifest]:
        """Returns the collectors of an autoscaler, which starts more while the learner waits."""
        jobs, options = self._topology.group('collect'), self._options
        if not options.max_collectors:
            return []
        if options.max_collectors < len(jobs):
            raise UserValueError(
                f'got max_collectors={options.max_collectors} and --num_collectors={len(jobs)}; need at least as '
                'many; raise max_collectors'
            )
        return self._made(
            'scaled_collectors',
            labels=self.labels('collect'),
            replicas=len(jobs),
            max_collectors=options.max_collectors,
            metric=options.metric,
            pod=self._pod(jobs[0]),
        )

    def _network(self) -> list[Manifest]:
        rules = []
        for kind in self._template['ports']:
            for port in self._ports(kind).values() if self._topology.group(kind) else ():
                clients = [client for client in port['clients'] if self._topology.group(client)]
                rules.append(self._made('rule', pods=self._selector(clients), port=port['number']))
        return self._made('network', pods=self._selector([job.kind for job in self._topology.jobs]), rules=rules)

    def _selector(self, kinds: Sequence[str]) -> Manifest:
        return self._made('selector', kinds=list(dict.fromkeys(kinds)))

    def _disruption(self, kind: str, most: int | str) -> list[Manifest]:
        return self._made('disruption', kind=places.label(kind), labels=self.labels(kind), most=most)

    def _pod(self, job: Job, restart: str = 'Always') -> Manifest:
        """Returns the template of the pods of a job.

        Args:
          job: the job, or the first of its kind; a server's name has its pod's number, a
            collector's its index, or is its pod's where pods have none.
          restart: the pod's restart policy.
        """
        own_flags, topology = ('--collector_name=', '--name=', '--shard=', '--index='), self._topology
        alone = job.kind == 'replay_server' and len(topology.group(job.kind)) == 1
        kind = 'scaled_collect' if job.kind == 'collect' and restart != 'Never' else job.kind
        name = {} if alone else self._template['own_name'].get(kind, {})
        words = [self._with_addresses(word, job) for word in _program(job.command) if not word.startswith(own_flags)]
        parts = ['lasting'] if job.kind in ('train', 'replay_server') else []
        parts += ['server'] if job.kind in WITH_ADDRESS else []
        parts += ['workers'] if job.workers > 1 else []
        if self._options.pods.token_secret:
            words.append(f'--coordinator_token=env:{_TOKEN_VARIABLE}')
            parts.append('token')
        parts += ['reports'] if round(topology.silent_timeout_secs) and job.workers == 1 else []  # else only the chief
        hosts = [f'"{self._pod_name("train", str(i))}.{self.name}:2222"' for i in range(job.workers)]
        ports = {name: port['number'] for name, port in self._ports(job.kind).items()}
        return self._program_pod(
            job.kind,
            [*words, *(name['flags'] if name else [])],
            job.resources,
            parts,
            container_ports=[{'name': name, 'containerPort': port} for name, port in ports.items()],
            port=next(iter(ports.values()), None),
            restart=restart,
            environment=name.get('env', []),
            start_periods=max(_START_SECS, round(topology.connect_timeout_secs)) // 5,
            token_variable=_TOKEN_VARIABLE,
            token_secret=self._options.pods.token_secret,
            set_name=name.get('status', f'name={job.name}'),
            silent_secs=round(topology.silent_timeout_secs),
            status=str(self._run_dir.status('').parent),
            hosts=','.join(hosts),
        )

    def _metrics_pod(self) -> Manifest:
        """Returns the template of the pod that Prometheus asks for the numbers of all jobs."""
        words = ['tflearn', 'run-metrics', f'--root_dir={self._run_dir.root}', f'--run={self.name}', '--host=0.0.0.0']
        return self._program_pod('metrics', [*words, '--port=9100'], Resources(), ('scraped',))

    def _program_pod(
        self, kind: str, words: Sequence[str], resources: Resources, parts: Sequence[str], **values: Any
    ) -> Manifest:
        """Returns the template of pods that run the program `words`, with further parts of the template."""
        reads_files = any(word.startswith(f'--gin_file={GIN_FOLDER}/') for word in words)
        values = {
            'restart': 'Always',
            'environment': [],
            'reads': True if kind == 'metrics' else None,
            **values,
            'labels': self.labels(kind),
            'name': places.label(kind),
            'program': words[0],
            'flags': list(words[1:]),
            'resources': self._amounts(kind, resources),
            'nodes': self._nodes(resources) or None,
        }
        made = self._made('pod', **values)
        for part in (*(('gin_files',) if reads_files else ()), *parts):
            made = _merged(made, _filled(self._template['parts'][part], {**self._of_all, **values}))
        for patched in (_ALL_KINDS, kind):
            made = _merged(made, self._patch.get(patched, {}))
        containers = [made['container'], *made['pod'].get('containers', [])]  # and what the patch adds
        return {'metadata': made['metadata'], 'spec': {**made['pod'], 'containers': containers}}

    def _with_addresses(self, word: str, job: Job) -> str:
        """Returns a word of a job's command with the addresses of services and of their pods."""
        host = self._topology.host
        word = word.replace(COORDINATOR_ADDRESS, self._address(host, '0', self._ports(host)['coordinator']['number']))
        if OWN_ADDRESS not in word:
            return word
        own = '$(INDEX)' if len(self._topology.group(job.kind)) > 1 else '0'
        port = next(iter(self._ports(job.kind).values()))
        return word.replace(OWN_ADDRESS, self._address(job.kind, own, port['number']))

    def _amounts(self, kind: str, resources: Resources) -> Manifest:
        counted: Mapping[str, int] = resources.custom
        if resources.accelerators:
            counted = {**counted, self._device: resources.accelerators}
        asked = {name: str(count) for name, count in counted.items()}
        if resources.memory_gb:
            asked['memory'] = f'{round(resources.memory_gb * 1000)}M'
        cores = {'cpu': str(resources.cores)} if resources.cores else {}
        requests = {**self._template['requests'][kind], **cores, **asked}
        return {'requests': requests, 'limits': {'memory': self._template['memory_limits'][kind], **asked}}

    @property
    def _device(self) -> str:
        return _TPU if self._options.pods.tpu_topology else _GPU

    def _nodes(self, resources: Resources) -> dict[str, str]:
        if not resources.accelerators:
            return {}
        options = self._options.pods
        label = options.accelerator_label or _NODE_LABELS[self._device]
        nodes = {label: resources.accelerator} if resources.accelerator else {}
        return nodes | ({_TPU_TOPOLOGY: options.tpu_topology} if options.tpu_topology else {})


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Returns a template with values for its words in angle brackets.

    A value that is all of a text keeps its type. A list is joined to the list that it stands in; a
    key whose value is None is left out.
    """
    if isinstance(template, dict):
        filled = {key: _filled(value, values) for key, value in template.items()}
        return {key: value for key, value in filled.items() if value is not None}
    if isinstance(template, list):
        parts = [_filled(item, values) for item in template]
        return [each for part in parts for each in (part if isinstance(part, list) else [part])]
    if not isinstance(template, str):
        return template
    if whole := re.fullmatch(r'<(\w+)>', template):
        return values[whole[1]]
    return re.sub(r'<(\w+)>', lambda found: str(values[found[1]]), template)


def _read_patch(file: str, kinds: Collection[str]) -> dict[str, dict[str, Any]]:
    """Returns what the file merges into pods, by kind of job.

    Raises:
      ValueError: if it cannot be read, or has keys that nothing reads.
    """
    if not file:
        return {}
    try:
        patch = yaml.safe_load(pathlib.Path(file).read_text(encoding='utf-8'))
    except (OSError, ValueError, yaml.YAMLError) as error:
        words = ' '.join(str(error).split())
        raise UserValueError(f'got patch={file}, which cannot be read ({words}); need JSON or YAML') from error
    of_kinds = patch if isinstance(patch, dict) else {}
    unknown = [str(kind) for kind in of_kinds if kind not in (_ALL_KINDS, _GANG, *kinds)]
    for kind, parts in of_kinds.items():
        parts, known = parts if isinstance(parts, dict) else {'': None}, _PATCHED[: 1 if kind == _GANG else None]
        unknown += [f'{kind}.{key}' for key, value in parts.items() if key not in known or type(value) is not dict]
    if not isinstance(patch, dict) or unknown:
        raise UserValueError(
            f'got patch={file} with {", ".join(unknown) or "no object"}; need {{KIND: {{PART: {{...}}}}}} of the kinds '
            f'{_ALL_KINDS}, {", ".join(kinds)} and the parts {", ".join(_PATCHED)}; or {_GANG}, with metadata alone'
        )
    return patch


def _merged(own: Any, more: Any) -> Any:
    """Returns `own` with `more`: keys are added, lists appended, and other values replaced."""
    if isinstance(own, dict) and isinstance(more, dict):
        return {**own, **{key: _merged(own[key], value) if key in own else value for key, value in more.items()}}
    return [*own, *more] if isinstance(own, list) and isinstance(more, list) else more


def _program(command: Sequence[str]) -> list[str]:
    """Returns a job's command as it is in the image: a console command instead of this Python."""
    program = command[2].rpartition('.')[2].replace('_', '-')
    return [f'tflearn-{program}', *command[3:]]


def _key(path: str) -> str:
    """Returns the key of a file in a ConfigMap, which has no folders."""
    return re.sub(r'[^-._a-zA-Z0-9]', lambda found: f'_{ord(found[0]):x}_', path)
