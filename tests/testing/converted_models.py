"""Whether ONNX and TFLite models of an exported version act as its SavedModel does."""

import numpy as np

from tflearn.policies.converted import ONNX, TFLITE, Converted

NUM = 1000
FORMATS = (ONNX, TFLITE)


def differences(version, format, given=None, signature='serving_default'):
    """Returns by output: the share of other integers, or the greatest difference of floats beyond 1, of `NUM` rows."""
    model = Converted(version, format, signature)
    inputs = model.completed(given or model.random_observations(NUM))
    got, expected = model.run(model.convert(inputs), inputs), model.expected(inputs)
    assert got.keys() == expected.keys()
    found = {}
    for name, values in expected.items():
        assert (got[name].shape, got[name].dtype) == (values.shape, values.dtype)
        assert len(np.unique(values)) > 1 or name.endswith('_steps'), 'a GTrXL has seen as many in each row'
        exact = values.dtype.kind in 'iu'
        difference = got[name] != values if exact else np.abs(got[name] - values) / np.maximum(np.abs(values), 1)
        found[name] = float(np.mean(difference) if exact else np.max(difference))
    return found


def check(version, given=None, signature='serving_default'):
    for format in FORMATS:
        found = differences(version, format, given, signature)
        for name, difference in found.items():
            assert difference <= 1e-5, (format, signature, name)
