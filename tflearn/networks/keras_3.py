"""A layer of `tf.keras` that holds a model or layer of Keras 3, where the package keras is Keras 3: the current lane.

    from tflearn.networks import keras_3

    layer = keras_3.Layer(lambda: keras.Sequential([keras.layers.Dense(64, 'relu'), keras.layers.Dense(2)]))

TF-Agents' networks, and optimizers of `tf.keras`, take it as they take any layer. `make_network` and
`preprocessing_layers` of `NetworkOptions` need no such call: they hold what is of Keras 3 in one themselves.
"""

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.types import is_keras_3

_SEED = 'seed_generator_state'  # Keras' name of the state of a layer's random numbers, int64 [2]: seed, draws


class Layer(tf.keras.layers.Layer):
    """Calls a model of Keras 3; its weights are this layer's, in the model's order, by which checkpoints name them.

    Training changes the model's other state, such as BatchNormalization's averages and the counts of random numbers
    drawn. The latter are in checkpoints, so that a resumed run drops what the other would have, but are no weights: no
    target network follows them, and no actor gets them. Each replica draws its own.
    """

    def __init__(self, make: Callable[[], Any], name: str | None = None, **kwargs: Any):
        """Makes the model, in the strategy's scope.

        Args:
          make: returns a new model or layer of Keras 3 each time; copies of this layer have one of their own.
          name: the layer's name; None is the model's.

        Raises:
          TypeError: if it returns anything else.
          ValueError: if Keras computes with another library than TensorFlow, or the model was made outside of the
            scope.
        """
        model = make()
        if not is_keras_3(model):
            raise UserTypeError(
                f'got a {type(model).__name__}; need a function that makes a model or layer of Keras 3; take layers of '
                'tf.keras as they are'
            )
        if (backend := _keras().config.backend()) != 'tensorflow':
            raise UserValueError(
                f"got '{model.name}' of Keras 3 on {backend}; need TensorFlow; set the environment "
                'variable KERAS_BACKEND=tensorflow before Keras is imported'
            )
        strategy = tf.distribute.get_strategy()
        if not all(strategy.extended.variable_created_in_scope(variable.value) for variable in model.variables):
            raise UserValueError(
                f"got '{model.name}' of Keras 3, made outside of the scope of a {type(strategy).__name__}; need a new "
                'one from each call of the function that makes it'
            )
        # Of its own precision, whatever that of the layers beside it.
        super().__init__(name=name or model.name, **{**kwargs, 'autocast': False, 'dtype': model.compute_dtype})
        # Not attributes, since Keras 2 would track the model by names of its own.
        self._make, self._model = (lambda: make), (lambda: model)
        self._has_variables = False

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, since TF-Agents' networks copy their layers."""
        return {**super().get_config(), 'make': self._make()}

    def __deepcopy__(self, memo: Any) -> 'Layer':
        return type(self).from_config(self.get_config())

    @property
    def trainable_weights(self) -> list[tf.Variable]:
        """The model's trainable weights."""
        return _values(self._model().trainable_weights) if self._has_variables else []

    @property
    def non_trainable_weights(self) -> list[tf.Variable]:
        """The model's other weights, those of frozen layers among them."""
        return _values(self._model().non_trainable_weights) if self._has_variables else []

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns what the model does; see the class."""
        model = self._model()
        if not self._has_variables:
            model(inputs)
            self._keep_variables()
        state = [(variable, self._own(variable)) for variable in model.non_trainable_variables]
        with _keras().StatelessScope(state, collect_losses=True) as scope:
            outputs = model(inputs, training=bool(training))
        self.add_loss(scope.losses)
        if training:
            for variable, before in state:
                self._update(variable, before, scope.get_current_value(variable))
        return outputs

    def _keep_variables(self) -> None:
        model = self._model()

        def penalties() -> tf.Tensor | None:
            # In a scope without the losses of calls, which may be of other programs.
            with _keras().StatelessScope([(weight, weight.value) for weight in model.trainable_weights]):
                found = model.losses
            return tf.add_n(found) if found else None

        self.add_loss(penalties)
        weights = set(map(id, model.weights))
        self.model_weights = _values(model.weights)
        # No attributes of this layer, whose variables are weights to TensorFlow's modules.
        others = [variable.value for variable in model.variables if id(variable) not in weights]
        self.model_state = tf.train.Checkpoint(others=others)
        self._has_variables = True

    def _own(self, variable: Any) -> tf.Tensor:
        """Returns a variable's value on this replica."""
        value, context = tf.convert_to_tensor(variable.value), tf.distribute.get_replica_context()
        return value if variable.name != _SEED or context is None else value + _offset(context)

    def _update(self, variable: Any, before: tf.Tensor, after: tf.Tensor) -> None:
        if after is not before:
            context = tf.distribute.get_replica_context()
            variable.value.assign(after if variable.name != _SEED or context is None else after - _offset(context))


def _keras() -> Any:
    """Returns the package keras, which a model of it has loaded: this library does not depend on it."""
    return sys.modules['keras']


def _offset(context: tf.distribute.ReplicaContext) -> tf.Tensor:
    """Returns what is added to the seed on a replica, int64 [2]."""
    return tf.cast([context.replica_id_in_sync_group, 0], tf.int64)


def _values(variables: Any) -> list[tf.Variable]:
    return [variable.value for variable in variables]
