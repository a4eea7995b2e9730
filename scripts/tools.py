"""The verbs of the core that are no jobs."""

import inspect
import pkgutil
from typing import Any

from absl import flags

from tflearn.core import preflight
from tflearn.core.errors import UserValueError
from tflearn.core.verbs import Verb

from . import shell_words


def _check_env(switches: flags.FlagValues, name: str) -> int:
    """Checks an environment before anything is trained in it: tflearn check-env ENVIRONMENT.

    ENVIRONMENT is a registered name (CartPole-v1, module:Name-v0), or module:Class or module:function, which makes one
    gymnasium environment. It takes random actions, and prints a line for each check: ok, LOOK (it can be trained in,
    but probably not as it was meant) or error. The exit status is 1 after an error.
    """
    preflight.import_from_here()
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.environments import check

    found = check.check_environment(check.imported(name), switches.steps, switches.seed, switches.secs)
    print('\n'.join(map(str, found)))
    states = [finding.state for finding in found]
    return int('error' in states or (switches.strict and 'LOOK' in states))


def _help(switches: flags.FlagValues, *names: str) -> int:
    """Describes gin files, and what they can bind: tflearn help, or tflearn help NAME ...

    Without NAME it lists the packaged gin files. NAME is one of them, such as sac_pendulum, or the path of another: it
    prints what it trains and what it binds, with what it includes. Or NAME is a function or dataclass, such as
    experience.Uniform, or a setting, such as Uniform.max_size or max_size: it prints what each setting is, the values
    that it can have, its unit and its default. Of another name of Python, such as Learner, tflearn.train or
    extensions.serving.client.PolicyClient, it prints the arguments and the docstring.
    """
    from tflearn.config import reference

    print('\n\n'.join(map(_help_text, names)) or reference.run_list())
    return 0


def _help_text(name: str) -> str:
    import tflearn
    from tflearn.config import files, reference

    if name.endswith('.gin') or name in files.names():
        return reference.gin_file_text(name)
    preflight.import_quietly('tensorflow', 'gym')  # whose modules have the settings
    public = name.removeprefix('tflearn.')
    try:
        text = reference.text(name)
        if name in dir(tflearn):  # train is a job of gin, and a function of Python
            text += f'\n\nOf tflearn.{name} in Python: tflearn help tflearn.{name}'
        return text
    except UserValueError:
        try:
            part = pkgutil.resolve_name(f'tflearn.{public}')
        except (AttributeError, ImportError, ValueError):
            part = None
        if not callable(part):
            raise
        return _of_python(f'tflearn.{public}', part)


def _of_python(name: str, part: Any) -> str:
    """Returns the arguments and the docstring of a function or class, and of a class its methods."""
    lines = [f'{name}{_arguments(part)}', inspect.getdoc(part) or '']
    methods = inspect.getmembers(part, inspect.isfunction) if inspect.isclass(part) else []
    for own_name, method in methods:
        if not own_name.startswith('_'):
            about = (inspect.getdoc(method) or '').partition('\n')[0]
            lines.append(f'  {own_name}{_arguments(method)}: {about}')
    if inspect.isclass(part) and (of_arguments := inspect.getdoc(part.__init__)):
        lines.insert(2, f'{of_arguments}\n')
    return '\n'.join(lines)


def _arguments(part: Any) -> str:
    """Returns the names and defaults of a callable's arguments; '' if they are unknown."""
    try:
        signature = inspect.signature(part)
    except (TypeError, ValueError):
        return ''
    empty = inspect.Parameter.empty
    plain = [each.replace(annotation=empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=empty))


def _completion(switches: flags.FlagValues, shell: str) -> int:
    """Prints what makes a shell complete verbs, programs and flags: tflearn completion bash, or zsh.

    source <(tflearn completion bash)     in ~/.bashrc
    source <(tflearn completion zsh)      in ~/.zshrc, after compinit
    """
    if shell not in shell_words.SHELLS:
        raise UserValueError(f'got {shell!r}; need one of {", ".join(shell_words.SHELLS)}')
    print(shell_words.script(shell))
    return 0


VERBS = {
    'check-env': Verb(_check_env, ('check_env',), arguments='ENVIRONMENT'),
    'help': Verb(_help, arguments='[NAME] ...'),
    'completion': Verb(_completion, arguments='SHELL'),
}
