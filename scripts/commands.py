"""The programs and verbs by what a person wants to do, and which of them an unknown word is near to."""

import difflib

from tflearn.core.errors import UserValueError

# The jobs of a run are processes, each with a program of its own, which schedulers, containers and hosts start.
PROGRAMS = ('launch', 'replay-server', 'coordinator', 'feed', 'collect', 'train', 'evaluate', 'serve')
# What a person wants to do -> the verbs for it: of extensions, of `tools`, and jobs, which are modules here.
VERBS = {
    'Train in one process': {
        'synchronous': 'collects and trains alternately, repeatable bit by bit',
        'train-offline': 'trains on episodes in files',
    },
    'Do many runs': {
        'seeds': 'runs a gin file once for each seed, and compares the runs',
        'tune': 'searches hyperparameters',
        'population': 'trains runs of which the worst copy the best',
        'policies': 'trains several policies of one game',
    },
    'Look at runs': {
        'list': 'the runs in a folder, and how they are',
        'watch': 'a run that runs elsewhere',
        'compare': 'scores of runs, with intervals',
        'report': 'one page about runs',
        'doctor': 'signs that a run does not learn',
        'track': 'gives what a run records to a tracker',
        'run-metrics': "serves a run's metrics for Prometheus",
    },
    'Use a policy': {
        'play': 'shows it in a window or as videos, or lets a person play',
        'export': 'makes a full, an ONNX or a TFLite model, or one for products',
        'promote': 'lets a version serve if it is not worse than the one before',
        'loop': "turns a product's log into its next policies",
    },
    'Prepare data and environments': {
        'data': 'records, imports, joins, describes, filters and splits episodes',
        'check-env': 'checks an environment before anything is trained in it',
    },
    'Find out': {
        'help': 'lists packaged gin files; describes one, or a setting',
        'completion': 'makes a shell complete verbs and flags',
    },
}


def check(name: str) -> None:
    """Raises ValueError, which names the nearest command, for what is no verb."""
    known = {verb: f'tflearn {verb}' for verbs in VERBS.values() for verb in verbs}
    if name in known:
        return
    known |= {program: f'tflearn-{program}' for program in PROGRAMS}
    nearest = difflib.get_close_matches(name.replace('_', '-'), known, 1, cutoff=0.0)[0]
    raise UserValueError(f'got {name!r}; need a verb of tflearn --help; the nearest command is {known[nearest]}')


def help_text() -> str:
    """Returns the text of --help."""
    lines = ['tflearn VERB: what is done beside the jobs of a run. Each has its own --help: tflearn compare --help']
    for wish, verbs in VERBS.items():
        lines += ['', f'{wish}:', *(f'  {verb:15}{about}' for verb, about in verbs.items())]
    programs = ', '.join(f'tflearn-{program}' for program in PROGRAMS[1:])
    return '\n'.join([*lines, '', f'tflearn-launch starts a run, whose jobs are programs of their own: {programs}.'])
