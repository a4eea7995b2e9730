"""What the extra `serving` installs besides gRPC: TensorFlow Serving's messages, and Prometheus."""

from tflearn.core import extras

try:
    import prometheus_client as prometheus_client
    from tensorflow_serving.apis import get_model_metadata_pb2 as get_model_metadata_pb2
    from tensorflow_serving.apis import get_model_status_pb2 as get_model_status_pb2
    from tensorflow_serving.apis import model_service_pb2_grpc as model_service_pb2_grpc
    from tensorflow_serving.apis import predict_pb2 as predict_pb2
    from tensorflow_serving.apis import prediction_service_pb2_grpc as prediction_service_pb2_grpc
except ImportError as error:
    raise extras.import_error(error, 'serving') from error
