"""The door to what the extra `serving` installs: TensorFlow Serving's messages, gRPC and what goes with it."""

from tflearn import extras
from tflearn.errors import UserImportError

try:
    import grpc
    import prometheus_client
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
    )
except ImportError as error:
    remedy = extras.install_command(error.name or '') or f'install it ({error})'
    raise UserImportError(f'got no {error.name}, which serving needs; need that installed; {remedy}') from error

__all__ = [
    'get_model_metadata_pb2',
    'get_model_status_pb2',
    'grpc',
    'health',
    'health_pb2',
    'health_pb2_grpc',
    'model_service_pb2_grpc',
    'predict_pb2',
    'prediction_service_pb2_grpc',
    'prometheus_client',
]
