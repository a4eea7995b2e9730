"""What the extra `serving` installs besides gRPC: TensorFlow Serving's messages, and Prometheus."""

from tflearn import extras

try:
    import prometheus_client
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
    )
except ImportError as error:
    raise extras.import_error(error, 'serving') from error

__all__ = [
    'get_model_metadata_pb2',
    'get_model_status_pb2',
    'model_service_pb2_grpc',
    'predict_pb2',
    'prediction_service_pb2_grpc',
    'prometheus_client',
]
