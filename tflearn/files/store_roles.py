"""Roles: which files of a run each program writes to the store, and which it reads from it."""

import dataclasses
import re

# What an evaluation changes in the policies of the train job.
_MARKS = r'policies/[^/]+/(?:best|\d+/(?:KEPT|IN_USE|metadata\.json))'
# Earlier states that nobody goes on from.
_SET_ASIDE = re.compile(r'.*/(?:unused/|\.moved_aside-).*')


@dataclasses.dataclass(frozen=True)
class Role:
    """What a program does with the files of a run; the names are those below the run directory.

    Attributes:
      writes: a pattern of the files that it writes; it deletes them, too.
      follows: a pattern of the files that others change while it runs.
      restores: a pattern of the files that it reads once, at its start.
      folders: where the files that it follows are, '' for those beside them all; each is listed once a second.
      owns: it writes and restores sets only while it has a lock, see `RunDir.own`.
    """

    writes: str = ''
    follows: str = ''
    restores: str = ''
    folders: tuple[str, ...] = ()
    owns: bool = False

    def is_written(self, name: str) -> bool:
        return re.fullmatch(self.writes, name) is not None

    def is_followed(self, name: str) -> bool:
        return re.fullmatch(self.follows, name) is not None and not self.is_written(name)

    def is_restored(self, name: str) -> bool:
        if _SET_ASIDE.fullmatch(name):
            return False
        return re.fullmatch(self.restores, name) is not None or self.is_followed(name)


_TRAIN = Role(
    writes=rf'(?!train/stop_request\.json$)(?!{_MARKS}$)(?:(?:train|policies|products|cloning)/.*'
    r'|summaries/(?:train|collect|validation)/.*|status/train\.json|config\.gin|code_snapshot\.md)',
    follows=rf'DONE|reward_weights\.json|train/stop_request\.json|{_MARKS}',
    restores=r'(?:train|policies|products|cloning)/.*|config\.gin|status/train\.json',
    folders=('', 'train', 'policies'),
    owns=True,
)
_EVALUATE = Role(
    writes=r'evaluations\.jsonl|learning_curve\.png|evaluation\.png|videos/.*|summaries/evaluate/.*|DONE'
    rf'|status/evaluate\.json|train/stop_request\.json|policies/evaluated_policy/.*|{_MARKS}',
    follows=r'policies/.*|train/result\.json',
    restores=rf'evaluations\.jsonl|learning_curve\.png|DONE|train/stop_request\.json|policies/evaluated_policy/.*|{_MARKS}',
    folders=('train', 'policies'),
)
_LAUNCH = Role(
    writes=r'logs/.*|commands\.txt|status/launch\.json',
    follows=r'status/.*|DONE|train/result\.json|train/checkpoints/checkpoint',
    restores=r'status/launch\.json|replay/(?:\d+/)?tables\.json',
    folders=('', 'status', 'train'),
)
_EXPORT = Role(writes=rf'(?!{_MARKS}$)(?:products|tflite|policies)/.*', restores=r'policies/.*')
_ROLES = {
    'train': _TRAIN,
    'synchronous': _TRAIN,
    'train_offline': _TRAIN,
    'evaluate': _EVALUATE,
    'evaluate_policy': Role(writes=r'policy_evaluations/.*', restores=r'policies/.*|DONE'),
    'launch': _LAUNCH,
    'serve': Role(writes=r'status/serve\.json|serving/.*', follows=r'policies/.*', folders=('policies',)),
    'export': _EXPORT,
    'export_tflite': dataclasses.replace(_EXPORT, restores=r'policies/.*|replay/checkpoints/.*|replay/tables\.json'),
    'run_metrics': Role(follows=r'status/.*', folders=('status',)),
    'doctor': Role(restores=r'summaries/.*|status/.*|evaluations\.jsonl|DONE|config\.gin'),
}


def role(job: str, name: str = '') -> Role:
    """Returns a job's role.

    Args:
      job: the job's kind, such as 'collect'.
      name: the name of its status file, such as 'collect_0' or 'replay_server_1'.
    """
    status = rf'status/{re.escape(name or job)}\.json'
    if job == 'coordinator':  # or a relay
        return Role(writes=status)
    if job == 'collect':
        return Role(writes=status, follows='DONE', folders=('',))
    if job == 'replay_server':
        shard = name.rpartition('_')[2]
        mine = rf'replay/{shard}/.*' if shard.isdecimal() else r'replay/(?!\d+/).*'
        return Role(rf'{mine}|{status}', 'DONE', rf'{mine}|replay/(?:\d+/)?tables\.json', ('',), owns=True)
    return _ROLES[job]
