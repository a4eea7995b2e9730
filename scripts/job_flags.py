"""The flags of the programs: their definitions, help and checks."""

import contextlib
import inspect
import os
import pathlib
import re
import signal
import sys
import textwrap
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from absl import flags, logging

from tflearn.config import files
from tflearn.core import extensions, tokens
from tflearn.core.errors import UserError, UserValueError
from tflearn.core.system_errors import as_user_error
from tflearn.core.verbs import Verb
from tflearn.core.waiting import HOST_PORT
from tflearn.files.run_dir import RunDir, is_url, local_path
from tflearn.launch import log_format

_WIDTH = 120

# absl adds this to the help of flags that may be repeated.
_REPEATED = re.compile(r';\s*repeat this option to specify a list of values$')

# What Python says of a text that is no number.
_NO_NUMBER = re.compile(r'(flag --(\w+)=.*): (?:invalid literal for (int)|could not convert string to float)')

# Group -> flag -> what it is: the core's, and those of each extension that is there.
_FILES = (pathlib.Path(__file__).with_name('flags.toml'), *extensions.files('flags.toml'))
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    group: rows for file in _FILES for group, rows in tomllib.loads(file.read_text(encoding='utf-8')).items()
}
_DEFINE: dict[str, Callable[..., object]] = {
    'bool': flags.DEFINE_bool,
    'int': flags.DEFINE_integer,
    'float': flags.DEFINE_float,
    'str': flags.DEFINE_string,
    'list': flags.DEFINE_list,
    'repeated': flags.DEFINE_multi_string,
    'str choices': flags.DEFINE_enum,
    'repeated choices': flags.DEFINE_multi_enum,
}
# Those of every program that `read` reads; of one that runs a job; and of a job that a gin file configures.
RUN = ('root_dir', 'help', 'helpfull')
PROCESS = (*RUN, 'process')
JOB = (*PROCESS, 'connection', 'gin', 'coordinator')


def define(*groups: str, values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags of groups of flags.toml; of two with one name the last one."""
    for name, row in {name: row for group in groups for name, row in GROUPS[group].items()}.items():
        kind = row.get('type') or type(row['default']).__name__
        default = row.get('default', [] if kind in ('list', 'repeated') else None)
        given = [row[key] for key in ('choices', 'help', 'least', 'most') if key in row]
        _DEFINE[f'{kind} choices' if 'choices' in row else kind](name, default, *given, flag_values=values)
        if kind == 'float':  # absl takes NaN for a number within bounds
            is_number = lambda number: number is None or number == number  # noqa: E731
            flags.register_validator(name, is_number, 'need a number', flag_values=values)


@contextlib.contextmanager
def ending(program: str, interrupted: str = 'stopped by SIGINT') -> Iterator[None]:
    """Ends a program that runs no job by the exit statuses in docs/operate.md, as `job_process.run` ends a job.

    Args:
      program: the program's name, which begins the error line.
      interrupted: the line for SIGINT.
    """
    try:
        yield
    except KeyboardInterrupt:
        print(f'{program}: {interrupted}', file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # as in `tflearn data describe ... | head`
        os._exit(128 + signal.SIGPIPE)
    except Exception as error:
        known = as_user_error(error)
        if isinstance(known, UserError):
            from tflearn.config import job_config

            print(f'{program}: error: {job_config.plain_message(known)}', file=sys.stderr)
            sys.exit(2)
        traceback.print_exc()
        print(f'{program}: error: {type(error).__name__}: {" ".join(str(error).split())}', file=sys.stderr)
        sys.exit(1)


def tool(program: str, verb: Verb, description: str | None = None) -> None:
    """Runs a verb that is no job and has flags of its own only; does not return but for --help.

    Args:
      program: the command, which begins the error line.
      description: the first text of --help; by default the docstring of the verb's function.
    """
    values = flags.FlagValues()
    define(*verb.groups, 'help', values=values)
    with ending(program):
        rest = parse(sys.argv, values)
        if values.help:
            text = description or inspect.getdoc(verb.run)
            print(_help_text(program, text, map(values.__getitem__, values)))
            return
        need(values, *verb.required)
        check_arguments(rest, verb.arguments)
        sys.exit(verb.run(values, *rest))


def need(values: flags.FlagValues, *names: str) -> None:
    """Raises ValueError if one of these flags is not given."""
    for name in names:
        if not values[name].value:
            raise UserValueError(f'got no --{name}; need one; see --help')


def check_arguments(given: Sequence[str], needed: str = '') -> None:
    """Raises ValueError if the arguments that are no flags are not what is needed: see `Verb.arguments`."""
    is_wrong = bool(given) != bool(needed) and not (needed.startswith('[') and not given)
    if is_wrong or (len(given) > 1 and not needed.endswith(' ...')):
        got = f'the argument {given[-1]!r}' if given else 'no argument'
        raise UserValueError(f'got {got}; need {needed or "flags only"}; see --help')


def read(
    program: str, description: str | None, check: Callable[[], object], example: str = '--gin_file=dqn_cartpole'
) -> bool:
    """Reads the command line of a program whose flags are defined; a wrong one ends the process with status 2.

    Args:
      program: the program's name, which begins the error line.
      description: the docstring of the program's module, the first text of --help.
      check: checks the values of flags without TensorFlow; raises a UserError that names the flag.
      example: flags after --root_dir in the example of --help.

    Returns:
      False if the program need not run, since it has shown its help.
    """
    with ending(program):
        log_format.set_up(program)
        rest = parse(sys.argv)
        if flags.FLAGS.help or flags.FLAGS.helpfull:
            root = '--root_dir=/tmp/run ' if 'root_dir' in flags.FLAGS else ''
            modules = flags.FLAGS.flags_by_module_dict()
            ours = [flag for module, items in modules.items() if not module.startswith('absl') for flag in items]
            print(_help_text(program, description, ours, f'{program} {root}{example}'))
            if flags.FLAGS.helpfull:
                theirs = [flag for module, items in modules.items() if module.startswith('absl') for flag in items]
                print('\n\n'.join(['\nFlags of the logging library:', *map(_flag_help, theirs)]))
            return False
        if flags.FLAGS['verbosity'].using_default_value:
            logging.set_verbosity(logging.INFO)
        check_arguments(rest)
        if 'root_dir' in flags.FLAGS:
            _check_root_dir()
        check()
    return True


def _check_root_dir() -> None:
    if not flags.FLAGS.root_dir:
        raise UserValueError(
            'got no --root_dir; need a directory for the files of the run, such as --root_dir=/tmp/run'
        )
    if not is_url(flags.FLAGS.root_dir):
        local_path(flags.FLAGS.root_dir, '--root_dir')


def parse(arguments: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Reads flags from the arguments after the first one; returns the other ones. Raises ValueError for wrong ones."""
    try:
        return list(values(arguments)[1:])
    except (flags.Error, OSError, UnicodeError) as error:  # the last ones: a file of --flagfile
        text = ' '.join(str(error).split())
        if found := _NO_NUMBER.match(text):
            about = ' '.join((values[found[2]].help or '').rstrip('.').split())
            text = f'{found[1]}: need {"an integer" if found[3] else "a number"}: {about}'
        raise UserValueError(f'got a wrong flag: {text}; see --help') from error


def check(of_run: bool = False) -> None:
    """Checks the flags of `define`, as far as the gin file is not needed. Raises ValueError that names the flag.

    Args:
      of_run: whether the run's own gin file is taken if there is no flag: for what acts in its environment.
    """
    values = flags.FLAGS
    if not values.gin_file and values.root_dir and not is_url(values.root_dir):
        run_dir = RunDir(values.root_dir)
        found = [str(path) for path in (run_dir.config, run_dir.objects) if path.exists()]
        if not found and run_dir.policies.exists():
            raise UserValueError(
                f'got no --gin_file, and {run_dir.root} has no {run_dir.objects.name}, which tflearn.train writes if '
                'all its objects can be imported: no lambda, and no function or class of the script itself (the log of '
                'the run names the first one); need them in a module; or take tflearn.evaluate, or give --gin_file'
            )
        if of_run:
            values['gin_file'].value = next(iter(found), None)
    if not values.gin_file:
        runs = ', '.join(files.runs())
        own = ', or a run in --root_dir that has its own (of Python objects, if those are of modules)' * of_run
        raise UserValueError(f'got no --gin_file; need the path of one, or one of {runs}{own}')
    coordinator()


def coordinator() -> tuple[str, str | None, Literal['float32', 'bfloat16']]:
    """Returns the coordinator's address, where its token is, and the type that weights are sent as.

    Raises:
      ValueError: if the address is wrong, or there is no token; on a cluster the jobs look for theirs.
    """
    values = flags.FLAGS
    token = values.coordinator_token
    if token and ('backend' not in values or values.backend == 'local'):
        tokens.read(token, '--coordinator_token')
    elif token and not (token.startswith(('env:', '/', '~')) or pathlib.Path(token).is_file()):
        raise UserValueError(
            'got a --coordinator_token that is no path, and is not shown, since it could be the token itself; need '
            'env:NAME or the path of a file where the jobs run; on Kubernetes --backend_option=token_secret=NAME'
        )
    return one_address('coordinator_address'), values.coordinator_token, values.weights_dtype


def shared_with_server() -> dict[str, str]:
    """Returns the arguments that a job which reads the replay servers has from their bindings."""
    return {name: f'replay_server.{name}' for name in ('make_environment', 'make_agent', 'experience')}


def feed_address() -> str:
    """Returns the feed's address. Raises ValueError if there is none, or if it is wrong."""
    if not flags.FLAGS.feed_address:
        raise UserValueError('got no --feed_address; need HOST:PORT, where the feed listens')
    return one_address('feed_address')


def make_local(*names: str, values: flags.FlagValues = flags.FLAGS) -> None:
    """Makes the paths in flags absolute. Raises ValueError that names the flag for a URL."""
    for name in names:
        if path := values[name].value:
            values[name].value = str(local_path(path, f'--{name}'))


def statements(function: str, *names: str, **others: str) -> list[str]:
    """Returns gin statements that bind arguments to flags; what the user did not give is left to the gin file.

    Args:
      function: the function of a job, or a class of it, such as 'feed.feed'.
      names: the arguments whose flags have their names.
      others: the names of the flags of other arguments.
    """
    arguments = {**dict(zip(names, names, strict=True)), **others}
    given = {argument: flags.FLAGS[name] for argument, name in arguments.items()}
    return [f'tflearn.jobs.{function}.{name} = {flag.value!r}' for name, flag in given.items() if flag.present]


def given(*names: str) -> list[str]:
    """Returns those of the flags that the user gave, for another program."""
    return [f'--{name}={flags.FLAGS[name].value}' for name in names if not flags.FLAGS[name].using_default_value]


def one_address(flag: str) -> str:
    """Returns the address in a flag; raises ValueError for another value."""
    return check_address(str(flags.FLAGS[flag].value), flag)


def check_address(address: str, flag: str) -> str:
    """Returns an address, HOST:PORT. Raises ValueError, which names the flag, if it is something else."""
    match = HOST_PORT.fullmatch(address)
    if not match or not 1 <= int(match[2]) <= 65535:
        raise UserValueError(f'got --{flag}={address}; need HOST:PORT with a port from 1 to 65535')
    return address


def _help_text(title: str, description: str | None, own: Iterable[flags.Flag], example: str = '') -> str:
    """Returns the text of --help."""
    parts = [_filled(f'{title}: {(description or "").strip()}', _WIDTH), *([f'Example: {example}'] if example else [])]
    return '\n\n'.join([*parts, 'Flags:', *map(_flag_help, own)])


def _flag_help(flag: flags.Flag) -> str:
    """Returns the text of a flag in --help."""
    default = '' if flag.default in (None, [], '') or flag.default is False else f' [{flag.default}]'
    text = _filled(_REPEATED.sub('', flag.help or '') + default, _WIDTH - 6)
    return f'  --{flag.name}\n{textwrap.indent(text, "      ")}'


def _filled(text: str, width: int) -> str:
    """Returns a text whose lines are kept as they are, but for those that are too long."""
    return '\n'.join(textwrap.fill(line, width, break_on_hyphens=False) for line in text.splitlines())
