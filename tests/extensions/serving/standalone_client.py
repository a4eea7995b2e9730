"""Requests actions in a program that has only tensorflow-serving-api: `standalone_client.py ADDRESS`.

Prints what the server answered as JSON.
"""

import json
import sys

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

channel = grpc.insecure_channel(sys.argv[1])
predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
models = model_service_pb2_grpc.ModelServiceStub(channel)

request = predict_pb2.PredictRequest()
request.model_spec.name = 'greedy_policy'
request.inputs['observation'].CopyFrom(tf.make_tensor_proto([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]))
answer = predictions.Predict(request, 30)

wanted = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=['signature_def'])
wanted.model_spec.name = 'greedy_policy'
signatures = get_model_metadata_pb2.SignatureDefMap()
predictions.GetModelMetadata(wanted, 30).metadata['signature_def'].Unpack(signatures)

status = get_model_status_pb2.GetModelStatusRequest()
status.model_spec.name = 'greedy_policy'
states = models.GetModelStatus(status, 30).model_version_status

answers = {
    'version': answer.model_spec.version.value,
    'action': tf.make_ndarray(answer.outputs['action']).tolist(),
    'int64_val': list(answer.outputs['action'].int64_val),
    'inputs': list(signatures.signature_def['serving_default'].inputs),
    'states': [[state.version, state.state] for state in states],
}
sys.stdout.write(json.dumps(answers))
