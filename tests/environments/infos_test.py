import numpy as np

from tflearn.environments.infos import EXECUTED_ACTION, InfoColumns, numeric_info


def test_only_numbers_are_kept():
    info = {
        'a': 1,
        'b': 0.5,
        'c': True,
        'd': np.float64(2.0),
        'e': np.arange(3),
        'f': 'text',
        'g': None,
        'h': {'nested': 1},
        'i': np.array(['x']),
        'j': [1, 2],
    }
    assert sorted(numeric_info(info)) == ['a', 'b', 'c', 'd', 'e', 'h/nested']


def test_columns_of_single_infos():
    columns = InfoColumns(2)
    assert columns.gather([{}, {}]) == {}
    first = columns.gather([{'x': 0.5, 'n': 3}, {'x': 1.5, 'ok': True}])
    assert {key: (value.dtype, value.tolist()[1]) for key, value in first.items()} == {
        'x': (np.float32, 1.5),
        'n': (np.int64, 0),
        'ok': (np.bool_, True),
    }
    later = columns.gather([{}, {'new': np.ones(2)}])
    assert sorted(later) == ['n', 'new', 'ok', 'x']
    assert np.isnan(later['x']).all()
    assert later['n'].tolist() == [0, 0]
    np.testing.assert_array_equal(later['new'], [[np.nan] * 2, [1, 1]])


def test_a_column_widens_but_keeps_its_shape():
    columns = InfoColumns(2)
    columns.gather([{'x': 1}, {'x': 2}])
    assert columns.gather([{'x': 1}, {'x': 0.5}])['x'].tolist() == [1.0, 0.5]
    later = columns.gather([{'x': 1}, {'x': np.ones(3)}])['x']
    assert later.dtype == np.float32
    np.testing.assert_array_equal(later, [1.0, np.nan])


def test_columns_of_a_vector_environment():
    columns = InfoColumns(2)
    info = {'x': np.array([0.5, 9.0]), '_x': np.array([True, False]), 'n': np.array([1, 2], np.int32)}
    first = columns.take({**info, 'name': np.array(['a', 'b'], object), 'other': np.arange(3)})
    assert sorted(first) == ['n', 'x']
    np.testing.assert_array_equal(first['x'], np.array([0.5, np.nan], np.float32))
    assert first['n'].dtype == np.int32
    assert np.isnan(columns.take({})['x']).all()
    nested = {'robot': {'speed': np.array([1.0, 2.0]), '_speed': np.array([False, True])}}
    np.testing.assert_array_equal(columns.take(nested)['robot/speed'], np.array([np.nan, 2.0], np.float32))


def test_executed_action_defaults_to_the_given_action():
    columns = InfoColumns(3)
    assert columns.gather([{}, {}, {}], np.array([4, 5, 6])) == {}
    info = columns.gather([{}, {'executed_action': 1}, {}], np.array([4, 5, 6]))
    assert info['executed_action'].tolist() == [4, 1, 6]
    assert columns.gather([{}, {}, {}], np.array([7, 8, 9]))['executed_action'].tolist() == [7, 8, 9]
    assert columns.take({}, np.array([7, 8, 9]))['executed_action'].tolist() == [7, 8, 9]


def test_columns_are_new_arrays():
    columns = InfoColumns(1)
    first = columns.gather([{'x': 1.0}])['x']
    second = columns.gather([{}])['x']
    second[:] = 5.0
    assert first.tolist() == [1.0]
    assert np.isnan(columns.gather([{}])['x']).all()


def test_keys_that_never_repeat_are_bounded_and_named_once(caplog):
    columns = InfoColumns(2)
    for i in range(500):
        found = columns.gather([{f'order_{i}': 1.0, 'speed': i}, {'speed': i}], np.zeros(2, np.int64))
    assert found['speed'].tolist() == [499, 499]
    assert len(found) == 200 and 'order_198' in found and 'order_199' not in found
    assert len([record for record in caplog.records if 'order_199' in record.getMessage()]) == 1
    later = columns.gather([{EXECUTED_ACTION: 1}] * 2, np.zeros(2, np.int64))
    assert later[EXECUTED_ACTION].tolist() == [1, 1]
