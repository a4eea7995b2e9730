"""Checks a run's metrics for signs that it does not learn: tflearn-doctor ROOT_DIR [ROOT_DIR ...].

It reads the summaries of the train, collect and evaluate jobs, of a running or an ended run, and writes nothing.
Each line is a check: LOOK (it looks wrong), ok, or unknown (the run has not recorded the metric), with the value that
was found and the section of the documentation that explains it and says what to do.
"""

import json

from absl import flags

from tflearn.extensions.experiments import checks

from . import job_flags

_STATES = {True: 'LOOK', False: 'ok', None: 'unknown'}


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-doctor', __doc__, _run, ('doctor',), arguments='ROOT_DIR ...')


def _run(switches: flags.FlagValues, *roots: str) -> int:
    from tflearn.extensions.experiments import series

    num_wrong = 0
    for root in roots:
        with job_flags.opened_run_dir(root, 'doctor') as run_dir:
            findings = checks.run_all(series.read(run_dir))
        num_wrong += sum(finding.wrong is True for finding in findings)
        if switches.json:
            print(json.dumps([{'run': root, **vars(finding), 'link': finding.link} for finding in findings]))
            continue
        print(f'{root}: {sum(finding.wrong is True for finding in findings)} of {len(findings)} checks look wrong')
        for finding in findings:
            print(f'  {_STATES[finding.wrong]:8}{finding.check:20}{finding.text}')
            if finding.wrong:
                print(f'{"":30}see {finding.link}')
    return int(num_wrong > 0 and switches.strict)


if __name__ == '__main__':
    main()
