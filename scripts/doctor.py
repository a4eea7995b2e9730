"""Reads a run and says what looks wrong with its learning: tflearn-doctor ROOT_DIR [ROOT_DIR ...].

It reads the summaries of the train, collect and evaluate jobs, of a run that has ended or goes on, and writes nothing.
Each line is a check: LOOK (it looks wrong), ok, or unknown (the run has not recorded what the check needs), with the
figure that was seen and the section of the documentation that says what it means and what helps.
"""

import json
from collections.abc import Mapping

from absl import flags

from tflearn.tools import checks

from . import file_program, preflight, run_directory

_STATES = {True: 'LOOK', False: 'ok', None: 'unknown'}


def report(roots: list[str], switches: Mapping[str, bool]) -> int:
    """Prints what the checks say of each run; returns the exit status."""
    preflight.import_quietly('tensorflow')
    from tflearn.tools import series

    num_wrong = 0
    for root in roots:
        with run_directory.opened(root, 'doctor') as run_dir:
            findings = checks.run_all(series.read(run_dir))
        num_wrong += sum(finding.wrong is True for finding in findings)
        if switches['json']:
            print(json.dumps([{'run': root, **vars(finding), 'link': finding.link} for finding in findings]))
            continue
        print(f'{root}: {sum(finding.wrong is True for finding in findings)} of {len(findings)} checks look wrong')
        for finding in findings:
            print(f'  {_STATES[finding.wrong]:8}{finding.check:20}{finding.text}')
            if finding.wrong:
                print(f'{"":30}see {finding.link}')
    return int(switches['strict'] and num_wrong > 0)


def main() -> None:
    """Runs the program."""
    switches = flags.FlagValues()
    flags.DEFINE_bool('json', False, 'Prints a JSON list for each run, a line each.', flag_values=switches)
    flags.DEFINE_bool('strict', False, 'Exit status 1 if a check looks wrong.', flag_values=switches)
    file_program.run('tflearn-doctor', __doc__ or '', switches, "a run's --root_dir", report)


if __name__ == '__main__':
    main()
