"""The documents: the site's pages and links, and that what they name is there."""

import configparser
import functools
import pathlib
import re
import subprocess
import sys
import types

import pytest
import yaml

from scripts import commands, data_flags, job_flags
from tests.architecture import source_tree
from tests.testing import docs_blocks
from tflearn.config import reference
from tflearn.core import errors
from tflearn.jobs.train_settings import Intervals
from tools import algorithm_pages, site_pages

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / 'docs'
PAGES = sorted([ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', ROOT / 'SECURITY.md', *DOCS.rglob('*.md')])
FILES = source_tree.read(ROOT)
EXTERNAL = ('http://', 'https://', 'mailto:')
# Pages that are made when the site is built, and what stands on them.
MADE = {
    'settings': ['<code>max_size</code>', 'an integer of at least 1', '[episodes]</td>', 'Behavioural cloning'],
    'api': ['load_policy', 'from tflearn import Learner'],
    'packages': ['sampling/', 'ring_source.py'],
    'algorithms': ['href="value-based/#dqn"', 'href="actor-critic/#droq-redq-and-sac-n"', 'LSTM, GRU, GTrXL'],
    'algorithms/value-based': ['Take it for', 'qr_dqn', 'dqn_cartpole.gin', 'target_update_period', 'CartPole-v1'],
}
# What plain English of today says otherwise: again, among, also, by that, forever, more often, failures, fixes.
OLD_WORDS = re.compile(r'\b(anew|amid|likewise|thereby|for ever|oftener|mishaps?|mends?)\b', re.IGNORECASE)


def prose(page: pathlib.Path) -> str:
    """A page without its code."""
    return re.sub(r'^```.*?^```', '', page.read_text(encoding='utf-8'), flags=re.MULTILINE | re.DOTALL)


def code(page: pathlib.Path, language: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(rf'^```{language}\n(.*?)^```', page.read_text(encoding='utf-8'), re.MULTILINE | re.DOTALL)


@functools.cache
def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r'^#+ (.*)$', prose(page), re.MULTILINE)
    plain = [re.sub(r'[^\w\s-]', '', heading.replace('`', '')).strip().lower() for heading in headings]
    return {re.sub(r'[\s]+', '-', heading) for heading in plain}


@functools.cache
def settings() -> dict[str, set[str]]:
    """What can be bound, by the last name of its owner: {'Experience': {'max_size', ...}, 'make_agent': ...}."""
    found: dict[str, set[str]] = {}
    for owner in (owner for owners in reference.sections().values() for owner in owners):
        names = {setting.name for setting in owner.settings()}
        found.setdefault(owner.configurable.attribute, set()).update(names)
    return found


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    broken = []
    for link in re.findall(r'\]\(([^)\s]+)\)', prose(page)):
        if link.startswith(EXTERNAL):
            continue
        path, _, anchor = link.partition('#')
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_site_has_every_page_once():
    menu = (ROOT / 'mkdocs.yml').read_text(encoding='utf-8').partition('\nnav:')[2]
    notebooks = [path.with_suffix('.md') for path in DOCS.rglob('*.ipynb')]
    made = [DOCS / f'{name}.md' for name in ('settings', 'api', 'packages')]
    pages = [path.relative_to(DOCS).as_posix() for path in [*DOCS.rglob('*.md'), *notebooks, *made]]
    assert sorted(re.findall(r'^ +- [^:]+: (\S+\.md)$', menu, re.MULTILINE)) == sorted(pages)
    assert len(re.findall(r'^  - ', menu, re.MULTILINE)) <= 8
    assert len(pages) <= 45


def test_the_site_can_be_built(tmp_path):
    """A broken link is an error. Nothing is fetched: no fonts, no analytics."""
    command = [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--site-dir', str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stderr
    made = {name: (tmp_path / name / 'index.html').read_text(encoding='utf-8') for name in MADE}
    assert not re.search(r'(?:src|href)="https?://[^"]+\.(?:css|js|woff2?)"', made['settings'])
    for name, texts in MADE.items():
        assert [text for text in texts if text not in made[name]] == []
    page = (tmp_path / 'python' / 'index.html').read_text(encoding='utf-8')
    assert 'md-footer__link--next' in page and 'data-md-color-scheme="slate"' in page and 'site.css' in page
    notebook = (tmp_path / 'notebooks' / 'first_policy' / 'index.html').read_text(encoding='utf-8')
    assert '>A first policy<' in notebook and 'load_policy' in notebook
    assert 'href="notebooks/first_policy/"' in (tmp_path / 'index.html').read_text(encoding='utf-8')


def test_the_site_links_the_repository_that_the_owner_names(tmp_path, monkeypatch):
    monkeypatch.setattr(site_pages, 'OWNER', tmp_path / 'owner.toml')
    for address, link in (('https://example.org/tflearn', 'https://example.org/tflearn'), ('<the address>', None)):
        site_pages.OWNER.write_text(f"repository = '{address}'\n")
        assert site_pages.on_config(types.SimpleNamespace(repo_url='')).repo_url == link


def test_there_are_few_lines():
    texts = [page.read_text(encoding='utf-8') for page in (ROOT / 'README.md', *DOCS.rglob('*.md'))]
    assert len([line for text in texts for line in text.splitlines() if line.strip()]) <= 7_500


@pytest.mark.parametrize('page', sorted(DOCS.glob('from-*.md')), ids=lambda page: page.name)
def test_a_page_for_users_of_a_peer_is_short(page):
    assert len([line for line in page.read_text(encoding='utf-8').splitlines() if line.strip()]) <= 60


def test_the_number_of_algorithms_is_named():
    number = len(algorithm_pages.modules())
    assert f'an example of each of {number} |' in (ROOT / 'README.md').read_text(encoding='utf-8')
    assert f'You choose** one of {number} [algorithms]' in (DOCS / 'index.md').read_text(encoding='utf-8')
    assert sorted(each.name for each in algorithm_pages.sections()) == sorted(algorithm_pages.modules())


def test_settings_have_what_gin_files_bind():
    bound = [
        (path.name, owner, name)
        for path in (ROOT / 'gin').rglob('*.gin')
        for owner, name in re.findall(
            r'^(?:[\w/]+[./])?(\w+)\.(\w+) = ', path.read_text(encoding='utf-8'), re.MULTILINE
        )
    ]
    assert len(bound) > 100
    assert [item for item in bound if item[2] not in settings().get(item[1], ())] == []


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_settings_that_are_named_are_there(page):
    text = prose(page) + '\n'.join(f'`{line}`' for block in code(page, 'gin') for line in block.splitlines())
    named = re.findall(r'`(?!tf\.|tf_agents\.)(?:[^`\s]*[./])?(\w+)\.(\w+)(?: = [^`]*)?`', text)
    unknown = [
        f'{owner}.{name}'
        for owner, name in named
        if owner in settings() and name not in settings()[owner] and name not in ('py', 'gin', owner, *settings())
    ]
    assert unknown == []


def test_metrics_that_are_named_are_reported():
    source = '\n'.join(file.text for file in FILES if file.parts[0] == 'tflearn')
    text = (DOCS / 'watching.md').read_text(encoding='utf-8')
    fields = set(re.findall(r'tflearn_(?:train|collect|replay_server|evaluate)_(\w+?)(?:_total)?\b', text))
    served = set(re.findall(r'`(tflearn_(?:req|ref|rel|dec|out|served)\w+?)(?:_total|_bucket)?`', text))
    assert len(fields) > 15 and len(served) > 5
    assert [name for name in fields if not re.search(rf'\b{name}\b', source)] == []
    made = {f'tflearn_{kind}' for kind in ('decisions', 'outcomes')}
    assert [name for name in served - made if f"'{name}'" not in source] == []
    (group,) = yaml.safe_load(''.join(code(DOCS / 'watching.md', 'yaml')))['groups']
    tables = set(re.findall(r'`(tflearn_\w+)`', text.partition('### Queries')[0]))
    for rule in group['rules']:
        assert rule.keys() <= {'alert', 'for', 'expr'} and rule['expr'].count('(') == rule['expr'].count(')')
        assert {*re.findall(r'tflearn_\w+', rule['expr'])} - {'tflearn_replay_server_failed_saves'} <= tables, rule
    assert any('tflearn_run_done == 1' in rule['expr'] for rule in group['rules']), 'nothing fires for ended runs'


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_words_are_plain(page):
    assert OLD_WORDS.findall(page.read_text(encoding='utf-8')) == []


FOLDERS = 'tflearn|scripts|tests|benchmarks|gin|docs|requirements'


def codes(page: pathlib.Path) -> list[str]:
    """The code within lines of a page, and its blocks of commands."""
    return [*re.findall(r'`([^`\n]+)`', prose(page)), *code(page, 'bash')]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page):
    paths = re.findall(rf'(?<![\w/.~=-])(?:\./)?((?:{FOLDERS})/[\w/.-]*\w)', '\n'.join(codes(page)))
    assert [path for path in paths if not (ROOT / path.replace('LANE', 'classic')).exists()] == []


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_verbs_that_are_named_are_there(page):
    verbs = {verb for verbs in commands.VERBS.values() for verb in verbs}
    data = {*data_flags.JOBS, *data_flags.COMMANDS}
    command = re.compile(r'^(?:\.venv/bin/)?tflearn (?!-)([\w-]+)(?:[ \t]+([a-z][\w-]*))?', re.MULTILINE)
    named = command.findall('\n'.join(codes(page)))
    wrong = [verb for verb, _ in named if verb not in verbs and verb != 'VERB']
    wrong += [f'data {part}' for verb, part in named if verb == 'data' and part and part not in data]
    programs = re.findall(r'(?<![\w./-])tflearn-([a-z][\w-]*)', '\n'.join(codes(page)))
    wrong += [f'tflearn-{name}' for name in programs if name not in (*commands.PROGRAMS, 'agents')]
    assert wrong == []


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_commands_in_documents_have_flags_that_are_there(page):
    text = page.read_text(encoding='utf-8').replace('\\\n', ' ')
    commands = re.findall(r'\btflearn(-| (?:data )?)([\w-]+)((?:[ \t]+(?:-{2}\w+(?:=(?:\'[^\']*\'|[^\s`]+))?))*)', text)
    defined = {name for group in job_flags.GROUPS.values() for name in group} | {'nobatching', 'verbosity', 'version'}
    for _, program, flags in commands:
        assert set(re.findall(r'--(\w+)', re.sub(r"'[^']*'", '', flags))) <= defined, (program, flags)


def test_services_of_documents_are_programs_with_flags_that_are_there_and_stop_in_time():
    units = []
    for text in code(DOCS / 'serving.md', 'ini'):
        units.append(configparser.ConfigParser(strict=True))
        units[-1].optionxform = str
        units[-1].read_string(text)
    *units, protected = [unit['Service'] for unit in units]
    assert 'strict' in protected['ProtectSystem'] and protected['User'] == protected['StateDirectory']
    composed = yaml.safe_load(''.join(code(DOCS / 'serving.md', 'yaml')))['services']
    services = [(unit['ExecStart'].split(), unit['TimeoutStopSec']) for unit in units]
    services += [(each['command'], each['stop_grace_period'].removesuffix('s')) for each in composed.values()]
    assert len(services) == 4
    for (program, *flags), stop_secs in services:
        given = dict(flag.removeprefix('--').split('=') for flag in flags)
        if program.endswith('tflearn-launch'):
            assert given.keys() == {'root_dir', 'gin_file'} and float(stop_secs) >= 2 * 30 + 2 * 10, (
                'jobs, then servers'
            )
            continue
        assert program.endswith('tflearn-serve') and given.keys() <= job_flags.GROUPS['serve'].keys() | {'root_dir'}
        assert float(given['lame_duck_secs']) + 5 < float(stop_secs)
        assert (given['metrics_port'], given['policies']) == ('9100', 'greedy_policy'), 'none that explores'
    assert units[0]['MemoryMax'] == '4G' and composed['policy']['mem_limit'] == '4g'
    assert units[1]['SuccessExitStatus'] == '143'
    assert units[1]['RestartPreventExitStatus'].split() == ['2', str(errors.DEADLINE_EXIT_STATUS)]


def test_targets_of_programs_are_evaluated_before_the_last_train_step():
    late = []
    for block in docs_blocks.of('python'):
        for call in re.findall(r'tflearn\.train\((.*?)^\)', block.text, re.DOTALL | re.MULTILINE):
            given = {name: int(number) for name, number in re.findall(r'(\w+_steps)=([\d_]+),', call)}
            interval = given.get('export_interval_steps', Intervals().export_interval_steps)
            if 'target_return=' in call and interval >= given.get('num_train_steps', interval + 1):
                late.append(str(block))
    assert late == []


def programs_of_tf_agents() -> list[docs_blocks.Block]:
    """The blocks that import both."""
    imports = [re.compile(rf'^(?:from|import) {module}\b', re.MULTILINE) for module in ('tf_agents', 'tflearn')]
    return [block for block in docs_blocks.of('python') if all(each.search(block.text) for each in imports)]


@pytest.mark.parametrize('block', programs_of_tf_agents(), ids=str)
def test_programs_import_tflearn_before_tf_agents_also_when_imports_are_sorted(block):
    """With TensorFlow 2.21 TF-Agents takes the Keras that is chosen until then; see tests/core/keras_3_test.py."""
    command = [sys.executable, '-m', 'ruff', 'check', '--isolated', '--select=I', '--fix', '--quiet', '-']
    done = subprocess.run(command, input=block.text, text=True, capture_output=True, timeout=60, check=True)
    for text in (block.text, done.stdout):
        modules = re.findall(r'^(?:from|import) (tflearn|tf_agents)', text, re.M)
        assert modules[0] == 'tflearn', text


def test_the_readme_begins_with_two_commands_and_is_short():
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    assert [block.strip() for block in code(ROOT / 'README.md', 'bash')] == ['./scripts/quickstart', './scripts/test']
    assert len([line for line in text.splitlines() if line.strip()]) <= 60


def test_the_readme_has_numbers_of_the_pages_that_it_links():
    row = re.compile(r'^\| .*\(\[more\]\((.+?)#.*?\)\) \| (.+?) \| (.+?) \|', re.MULTILINE)
    rows = row.findall((ROOT / 'README.md').read_text(encoding='utf-8'))
    assert len(rows) == 3
    for page, *cells in rows:
        numbers = re.findall(r'(?<= )\d+\.\d+x?|\b\d+x', ' '.join(['', *cells]).replace('RLlib 2.60', ''))
        text = (ROOT / page).read_text(encoding='utf-8')
        assert numbers and [number for number in numbers if f' {number} ' not in text] == []


def test_the_glossary_is_short():
    text = (DOCS / 'where.md').read_text(encoding='utf-8').partition('\n## Glossary\n')[2]
    words = re.findall(r'^\| \*\*(.+?)\*\* \|', text, re.MULTILINE)
    assert 10 < len(words) <= 22
    assert words == sorted(words)


@pytest.mark.parametrize('page', ['from-alf', 'from-sb3', 'from-tf-agents'])
def test_every_option_of_the_peer_has_a_row(page):
    text = (DOCS / f'{page}.md').read_text(encoding='utf-8')
    rows = ' '.join(re.findall(r'^\| (.*?) \|', text, re.MULTILINE))
    assert [name for name in OPTIONS[page].split() if f'`{name}`' not in rows] == []


# Arguments of ALF's TrainerConfig; of Stable-Baselines3's PPO, A2C, DQN and SAC; of TF-Agents' Learner and PPOLearner.
OPTIONS = {
    'from-alf': """
root_dir conf_file ml_type algorithm_ctor data_transformer_ctor random_seed num_iterations num_env_steps unroll_length
unroll_with_grad use_root_inputs_for_after_train_iter async_unroll max_unroll_length unroll_queue_size
unroll_step_interval unroll_parameter_update_period use_rollout_state temporally_independent_train_step
mask_out_loss_for_last_step sync_progress_to_envs num_checkpoints confirm_checkpoint_upon_crash no_thread_env_for_conf
evaluate num_evals eval_interval epsilon_greedy eval_uncertainty num_eval_episodes num_eval_environments async_eval
save_checkpoint_for_best_eval ddp_paras_check_interval num_summaries summary_interval summarize_first_interval
update_counter_every_mini_batch summaries_flush_secs summary_max_queue metric_min_buffer_size debug_summaries profiling
enable_amp code_snapshots summarize_grads_and_vars summarize_gradient_noise_scale summarize_action_distributions
summarize_output initial_collect_steps num_updates_per_train_iter mini_batch_length mini_batch_size
whole_replay_buffer_training replay_buffer_length priority_replay priority_replay_alpha priority_replay_beta
priority_replay_eps offline_buffer_dir offline_buffer_length rl_train_after_update_steps rl_train_every_update_steps
empty_cache normalize_importance_weights_by_max clear_replay_buffer clear_replay_buffer_but_keep_one_step
visualize_alf_tree remote_training
""",
    'from-sb3': """
policy env learning_rate n_steps batch_size n_epochs gamma gae_lambda clip_range clip_range_vf normalize_advantage
ent_coef vf_coef max_grad_norm use_sde sde_sample_freq rollout_buffer_class rollout_buffer_kwargs target_kl
stats_window_size tensorboard_log policy_kwargs verbose seed device buffer_size learning_starts tau train_freq
gradient_steps replay_buffer_class replay_buffer_kwargs optimize_memory_usage target_update_interval
exploration_fraction exploration_initial_eps exploration_final_eps action_noise target_entropy use_sde_at_warmup
use_rms_prop rms_prop_eps _init_setup_model
""",
    'from-tf-agents': """
root_dir train_step agent experience_dataset_fn after_train_strategy_step_fn triggers checkpoint_interval
summary_interval max_checkpoints_to_keep use_kwargs_in_agent_train strategy run_optimizer_variable_init use_reverb_v2
direct_sampling experience_dataset_options strategy_run_options summary_root_dir normalization_dataset_fn num_samples
num_epochs minibatch_size shuffle_buffer_size
""",
}
