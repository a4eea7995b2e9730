import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests import fakes
from tflearn.actors.actor import Actor
from tflearn.agents import dqn
from tflearn.core.experience import Experience, Slicing, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.jobs import initial_agent
from tflearn.networks.networks import NetworkOptions
from tflearn.replay.storage import Storage
from tflearn.sampling.ring_source import LocalReplay
from tflearn.transforms import image, stack, transformed
from tflearn.transforms.transformed import Pipeline

FRAMES = 3
SLICING = Slicing(history_steps=FRAMES - 1)


def expected(observation):
    """Returns the stack of observations [..., (episode, step)]: copies of the first one before the episode."""
    episode, step = observation[..., 0], observation[..., 1]
    frames = [np.stack([episode, np.maximum(step - back, 0)], axis=-1) for back in (2, 1, 0)]
    return np.concatenate(frames, axis=-1)


@pytest.mark.parametrize('slicing', [SLICING, Slicing(4, 3, pad_episodes=True, history_steps=2)])
def test_trains_on_what_the_policy_acts_on(slicing):
    """Each step is drawn with its frames, an episode's first and last ones too; the replay holds each frame once."""
    environment = fakes.CheckedEnvironment((3, 5), (False, True))
    pipeline = Pipeline([stack.FrameStack(FRAMES)], environment.specs, slicing)
    assert pipeline.specs.observation.shape == (2 * FRAMES,)
    state = tf.nest.map_structure(lambda spec: tf.zeros((2, *spec.shape), spec.dtype), pipeline.state_spec)
    initial, time_step = state, environment.reset()
    for _ in range(12):
        first = tf.constant(time_step.step_type == 0)
        state = tf.nest.map_structure(
            lambda leaf, zero, first=first: tf.where(tf.reshape(first, [2, *[1] * (leaf.shape.rank - 1)]), zero, leaf),
            state,
            initial,
        )
        acted, state = pipeline.transform_time_step(tf.nest.map_structure(tf.constant, time_step), state)
        np.testing.assert_array_equal(acted.observation, expected(time_step.observation))
        time_step = environment.step(np.int64([0, 1]))

    specs = environment.specs
    agent = transformed.make_agent(
        specs,
        create_train_step(),
        Experience(slicing),
        make_agent=lambda *given: dqn.make_agent(*given, network=NetworkOptions(fc_layer_params=(4,))),
        transforms=[stack.FrameStack(FRAMES)],
    )
    experience = Experience(slicing, Uniform(max_size=500, min_size=1))
    storage = Storage(experience, initial_agent.data_spec(agent, experience))
    assert storage.layout.num_bytes < 60
    local = LocalReplay(storage, 2, 400)
    Actor(fakes.CheckedEnvironment((3, 5), (False, True)), agent.collect_policy, [lambda row: local(row, 0)]).run(40)
    batch, _ = local.batch(local.draw(tf.constant(1), tf.constant(1, tf.int64)), tf.constant(0))
    assert batch.observation.shape[1:] == (slicing.num_rows, 2)
    sequences, _ = pipeline.transform_experience(batch)
    assert sequences.observation.shape[1] == slicing.sequence_length
    now = sequences.observation.numpy()
    is_last = sequences.is_boundary().numpy()
    is_copy = np.pad(is_last[:, 1:] & is_last[:, :-1], [[0, 0], [1, 0]])  # of the boundary row, which ended the episode
    np.testing.assert_array_equal(now[~is_copy], expected(now[..., -2:])[~is_copy])
    is_step = sequences.next_step_type[:, 0] != 0
    steps = {tuple(step) for step in now[:, 0, -2:][is_step].astype(int)}
    assert {step for _, step in steps} == ({0, 1, 2, 3, 4} if slicing.stride == 1 else {0, 3})
    assert np.isfinite(agent.train(tf.nest.map_structure(lambda leaf: leaf[:8], batch)).loss)


def test_images_of_a_nest_by_default():
    image = tensor_spec.BoundedTensorSpec((4, 4, 1), tf.uint8, 0, 255, 'image')
    observation = {'image': image, 'mask': tf.TensorSpec((3,), tf.float32, 'mask')}
    specs = EnvironmentSpecs(observation, fakes.ACTION_SPEC)
    stacked = Pipeline([stack.FrameStack(FRAMES)], specs, SLICING).specs.observation
    assert stacked['image'].shape == (4, 4, 3) and stacked['image'].maximum.max() == 255
    assert stacked['mask'] == observation['mask']
    vectors = Pipeline([stack.FrameStack(FRAMES, ['mask'])], specs, SLICING).specs.observation
    assert vectors['mask'].shape == (9,) and vectors['image'] == image


@pytest.mark.parametrize(
    ('make', 'slicing', 'message'),
    [
        (lambda: [stack.FrameStack(4)], SLICING, 'history_steps=2; need 3, as FrameStack does; set Slicing.history_st'),
        (lambda: [stack.FrameStack(4)], Slicing(), 'got Slicing.history_steps=0; need 3'),
        (
            lambda: [stack.FrameStack(3)],
            Slicing(4, 3, store_policy_state=True, history_steps=2),
            'memory or a stack of frames, not both',
        ),
        (lambda: [stack.FrameStack(3, ['a'])], SLICING, "with 'a' and an observation with the parts observation"),
    ],
)
def test_refuses_what_does_not_fit(make, slicing, message):
    with pytest.raises(ValueError, match=message):
        Pipeline(make(), fakes.CheckedEnvironment().specs, slicing)


def test_refuses_numbers_without_a_dimension_and_a_nest_without_images():
    specs = EnvironmentSpecs({'a': tf.TensorSpec((), tf.float32)}, fakes.ACTION_SPEC)
    with pytest.raises(ValueError, match='need an image in it, or FrameStack.paths'):
        Pipeline([stack.FrameStack(3)], specs, SLICING)
    with pytest.raises(ValueError, match="got 'a' .* at least one dimension"):
        Pipeline([stack.FrameStack(3, ['a'])], specs, SLICING)


def test_refuses_rows_that_no_transform_needs():
    specs = fakes.CheckedEnvironment().specs
    agent = dqn.make_agent(specs, create_train_step(), Experience(SLICING))
    with pytest.raises(ValueError, match='got Slicing.history_steps=2, future_steps=0; need 0 and 0'):
        initial_agent.data_spec(agent, Experience(SLICING))


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
def test_refuses_what_does_not_fit_of_image(make, message):
    with pytest.raises(ValueError, match=message):
        make().transform_specs(SPECS)


def test_refuses_an_observation_without_images():
    specs = EnvironmentSpecs(tf.TensorSpec((3,), tf.float32, 'state'), ACTION)
    with pytest.raises(ValueError, match=r'for Grayscale; need an image \[height, width, 3\]'):
        image.Grayscale().transform_specs(specs)
