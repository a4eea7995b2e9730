"""The words that follow each command, for shells that complete them: commands of tflearn data, and flags by --help."""

import contextlib
import importlib
import io
import re
import sys

from absl import flags

from tflearn.config import files

from . import commands, data_flags

SHELLS = ('bash', 'zsh')
# The words before the first flag say which command it is, and so which words may come. Paths are completed by the shell
# itself (-o default), also after --flag=, where bash begins a new word.
_SCRIPT = """\
_tflearn() {
  local given=${COMP_WORDS[0]##*/} word words=
  for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
    [[ $word == -* ]] && break
    given+=" $word"
  done
  case $given in
%s
  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _tflearn tflearn %s
"""


def script(shell: str) -> str:
    """Returns what the shell reads."""
    verbs = [verb for group in commands.VERBS.values() for verb in group]
    programs = [f'tflearn-{program}' for program in commands.PROGRAMS]
    episodes = [*data_flags.JOBS, *data_flags.COMMANDS]
    ours = [*(f'tflearn {verb}' for verb in verbs), *(f'tflearn data {command}' for command in episodes), *programs]
    words = {'tflearn': [*verbs, '--help', '--version']} | {each: _flags(each) for each in ours}
    words['tflearn data'] += episodes
    words['tflearn completion'] += SHELLS
    words['tflearn help'] += files.names()
    # Arguments may follow, and the first case that fits is taken: that of `tflearn data copy` before `tflearn data`.
    cases = [f"    '{each}'*) words='{' '.join(words[each])}' ;;" for each in sorted(words, reverse=True)]
    start = 'autoload -U +X bashcompinit && bashcompinit\n' if shell == 'zsh' else ''
    return start + _SCRIPT % ('\n'.join(cases), ' '.join(programs))


def _flags(command: str) -> list[str]:
    """Returns the flags that the --help of a command lists; none if its extension is not there."""
    program, *words = command.split()
    sys.argv = [program, *words, '--help']
    module = '__main__' if words else program.removeprefix('tflearn-').replace('-', '_')
    before, text = set(flags.FLAGS), io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        importlib.import_module(f'.{module}', __package__).main()
    for name in set(flags.FLAGS) - before:  # the next command defines its own of the same name
        delattr(flags.FLAGS, name)
    return re.findall(r'^  (--\w+)$', text.getvalue(), re.M)
