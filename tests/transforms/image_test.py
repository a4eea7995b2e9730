import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.core.types import EnvironmentSpecs
from tflearn.transforms import image

ACTION = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')
CAMERA = tensor_spec.BoundedTensorSpec((6, 4, 3), tf.uint8, 0, 255, 'camera')
SPECS = EnvironmentSpecs({'camera': CAMERA, 'joints': tf.TensorSpec((3,), tf.float32, 'joints')}, ACTION)


def applied(transform, dtype=np.uint8):
    """Returns random images [2, 5, ...], the transformed ones, and the spec that these have."""
    spec = transform.transform_specs(SPECS).observation
    images = np.random.default_rng(1).integers(0, 256, (2, 5, *CAMERA.shape)).astype(dtype)
    observation = {'camera': tf.constant(images), 'joints': tf.ones((2, 5, 3))}
    changed = transform.transform_observation(observation)
    np.testing.assert_array_equal(changed['joints'], 1.0)
    assert spec['joints'] == SPECS.observation['joints']
    assert changed['camera'].shape == (2, 5, *spec['camera'].shape)
    assert changed['camera'].dtype == spec['camera'].dtype
    array = changed['camera'].numpy()
    assert (array >= spec['camera'].minimum).all() and (array <= spec['camera'].maximum).all()
    return images, array


def test_scale_has_an_inverse():
    images, scaled = applied(image.Scale(-1.0, 3.0))
    np.testing.assert_allclose((scaled + 1.0) / 4.0 * 255.0, images, atol=1e-4)
    assert scaled.min() < -0.9 and scaled.max() > 2.9


@pytest.mark.parametrize('corner, rows, columns', [((None, None), (1, 5), (1, 3)), ((0, 2), (0, 4), (2, 4))])
def test_crop_keeps_the_middle_or_from_a_corner(corner, rows, columns):
    images, cropped = applied(image.Crop(4, 2, *corner))
    np.testing.assert_array_equal(cropped, images[:, :, slice(*rows), slice(*columns)])


def test_grayscale_is_the_rounded_luma():
    images, gray = applied(image.Grayscale())
    luma = images.astype(np.float64) @ [0.299, 0.587, 0.114]
    assert gray.shape[-1] == 1
    assert np.abs(gray[..., 0] - luma).max() <= 0.5 + 1e-4


def test_resize_averages_areas():
    images, resized = applied(image.Resize(3, 2))
    means = images.astype(np.float64).reshape(2, 5, 3, 2, 2, 2, 3).mean(axis=(3, 5))
    assert np.abs(resized - means).max() <= 0.5 + 1e-4
    _, nearest = applied(image.Resize(12, 8, 'nearest'))
    np.testing.assert_array_equal(nearest[:, :, ::2, ::2], images)


@pytest.mark.parametrize(
    'make, message',
    [
        (lambda: image.Scale(1.0, 1.0), 'need low < high'),
        (lambda: image.Scale(paths=['joints']), "got 'joints' with the spec .* need an image .* of bytes"),
        (lambda: image.Scale(paths=['kamera']), "'kamera' and an observation with the parts camera, joints"),
        (lambda: image.Scale(paths='camera'), 'need a list of paths'),
        (lambda: image.Crop(7, 2), 'need a part of it'),
        (lambda: image.Crop(2, 2, left=3), 'need a part of it'),
        (lambda: image.Resize(2, 2, 'lanczos'), 'one of area, bilinear, nearest'),
    ],
)
def test_refuses_what_does_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make().transform_specs(SPECS)


def test_refuses_an_observation_without_images():
    specs = EnvironmentSpecs(tf.TensorSpec((3,), tf.float32, 'state'), ACTION)
    with pytest.raises(ValueError, match=r'for Grayscale; need an image \[height, width, 3\]'):
        image.Grayscale().transform_specs(specs)
