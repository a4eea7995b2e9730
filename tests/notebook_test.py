"""The notebook of the documents is executed in a kernel, with short settings; it is stored without outputs."""

import json
import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / 'docs' / 'notebooks' / 'first_policy.ipynb'
SMALL = 'num_train_steps, export_interval_steps = 60, 30'


def test_it_is_stored_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding='utf-8'))
    cells = [cell for cell in notebook['cells'] if cell['cell_type'] == 'code']
    assert [cell['outputs'] or cell['execution_count'] for cell in cells] == [None] * len(cells)
    assert set(notebook['metadata']) == {'kernelspec', 'language_info'}
    nbformat.validate(nbformat.from_dict(notebook))


# Of the client's libraries.
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::ResourceWarning', 'ignore::UserWarning')
def test_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path / 'ipython'))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if 'parameters' in cell.metadata.get('tags', ())]
    parameters.source = SMALL
    (training,) = [cell for cell in notebook.cells if cell.source.startswith('import tflearn')]
    training.source = training.source.replace(
        'gin_bindings=[', "gin_bindings=['experience.Uniform.min_size = 100', 'evaluate.evaluate.num_episodes = 2',"
    )
    client = NotebookClient(notebook, timeout=240, kernel_name='python3', resources={'metadata': {'path': tmp_path}})
    client.execute()
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == 'code'}
    assert 'num_train_steps 60 reached: best mean return' in outputs['train'][-1]['text']
    (progress,) = [output['data'] for output in outputs['train'] if 'data' in output]
    assert '60 of 60' in progress['text/html'], 'drawn in one place, until the end'
    assert any('image/png' in output.get('data', {}) for output in outputs['curve']), 'the learning curve'
    assert outputs['act'][-1]['text'].startswith('return ')
