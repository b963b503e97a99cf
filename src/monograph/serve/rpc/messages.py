"""The messages of the gRPC protocols, made from a table when this module is imported.

A line of the table is a message, or a field of it: its number, its type (`*` for repeated, `map<T>`
for a map from texts) and its name. The messages live in a pool of their own, so that a process may
also hold the classes of a client.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE, HEALTH_PACKAGE = "inference", "grpc.health.v1"
SERVICE, HEALTH_SERVICE = f"{PACKAGE}.GRPCInferenceService", f"{HEALTH_PACKAGE}.Health"
_NAMED = "1 string name, 2 string version"
_DURATIONS = ", ".join(
    f"{i} StatisticDuration {name}"
    for i, name in enumerate(
        ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
         "cache_hit", "cache_miss"), 1)
)  # fmt: skip
TABLE = f"""
Empty:
ServerLiveResponse: 1 bool live
ServerReadyResponse: 1 bool ready
ModelReadyRequest: {_NAMED}
ModelReadyResponse: 1 bool ready
ServerMetadataResponse: 1 string name, 2 string version, 3 string* extensions
ModelMetadataRequest: {_NAMED}
TensorMetadata: 1 string name, 2 string datatype, 3 int64* shape
ModelMetadataResponse: 1 string name, 2 string* versions, 3 string platform,
    4 TensorMetadata* inputs, 5 TensorMetadata* outputs
InferParameter: 1 bool bool_param |, 2 int64 int64_param |, 3 string string_param |,
    4 double double_param |, 5 uint64 uint64_param |
InferTensorContents: 1 bool* bool_contents, 2 int32* int_contents, 3 int64* int64_contents,
    4 uint32* uint_contents, 5 uint64* uint64_contents, 6 float* fp32_contents,
    7 double* fp64_contents, 8 bytes* bytes_contents
InferInputTensor: 1 string name, 2 string datatype, 3 int64* shape,
    4 map<InferParameter> parameters, 5 InferTensorContents contents
InferRequestedOutputTensor: 1 string name, 2 map<InferParameter> parameters
ModelInferRequest: 1 string model_name, 2 string model_version, 3 string id,
    4 map<InferParameter> parameters, 5 InferInputTensor* inputs,
    6 InferRequestedOutputTensor* outputs, 7 bytes* raw_input_contents
InferOutputTensor: 1 string name, 2 string datatype, 3 int64* shape,
    4 map<InferParameter> parameters, 5 InferTensorContents contents
ModelInferResponse: 1 string model_name, 2 string model_version, 3 string id,
    4 map<InferParameter> parameters, 5 InferOutputTensor* outputs, 6 bytes* raw_output_contents
ModelStreamInferResponse: 1 string error_message, 2 ModelInferResponse infer_response
ModelConfigRequest: {_NAMED}
ModelInput: 1 string name, 2 int32 data_type, 4 int64* dims
ModelOutput: 1 string name, 2 int32 data_type, 3 int64* dims
ModelDynamicBatching: 1 int32* preferred_batch_size
ModelConfig: 1 string name, 2 string platform, 4 int32 max_batch_size, 5 ModelInput* input,
    6 ModelOutput* output, 11 ModelDynamicBatching dynamic_batching, 17 string backend
ModelConfigResponse: 1 ModelConfig config
ModelStatisticsRequest: {_NAMED}
StatisticDuration: 1 uint64 count, 2 uint64 ns
InferStatistics: {_DURATIONS}
InferBatchStatistics: 1 uint64 batch_size, 2 StatisticDuration compute_input,
    3 StatisticDuration compute_infer, 4 StatisticDuration compute_output
ModelStatistics: 1 string name, 2 string version, 3 uint64 last_inference,
    4 uint64 inference_count, 5 uint64 execution_count, 6 InferStatistics inference_stats,
    7 InferBatchStatistics* batch_stats
ModelStatisticsResponse: 1 ModelStatistics* model_stats
RepositoryParameter: 1 bool bool_param |, 2 int64 int64_param |, 3 string string_param |,
    4 bytes bytes_param |
RepositoryIndexRequest: 1 string repository_name, 2 bool ready
ModelIndex: 1 string name, 2 string version, 3 string state, 4 string reason
RepositoryIndexResponse: 1 ModelIndex* models
RepositoryModelLoadRequest: 1 string repository_name, 2 string model_name,
    3 map<RepositoryParameter> parameters
RepositoryModelUnloadRequest: 1 string repository_name, 2 string model_name,
    3 map<RepositoryParameter> parameters
"""
HEALTH_TABLE = """
HealthCheckRequest: 1 string service
HealthCheckResponse: 1 int32 status
"""
_KINDS = "BOOL BYTES DOUBLE FLOAT INT32 INT64 STRING UINT32 UINT64"
SCALARS = {f"TYPE_{kind}" for kind in _KINDS.split()}
_FIELD = re.compile(r"(\d+) (map<)?(\w+)(>|\*)? (\w+)( \|)?")
_Field = descriptor_pb2.FieldDescriptorProto


def _file(package: str, table: str) -> descriptor_pb2.FileDescriptorProto:
    """Return the description of a file of messages."""
    made = descriptor_pb2.FileDescriptorProto(
        name=f"monograph/{package}.proto", package=package, syntax="proto3"
    )
    for line in re.sub(r"\n\s+", " ", table.strip()).splitlines():
        name, _, fields = line.partition(":")
        message = made.message_type.add(name=name)
        for number, is_map, kind, mark, field, choice in _FIELD.findall(fields):
            added = message.field.add(name=field, number=int(number))
            added.label = _Field.LABEL_REPEATED if is_map or mark == "*" else _Field.LABEL_OPTIONAL
            if is_map:
                entry = message.nested_type.add(name=f"{field.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=1)
                value = entry.field.add(name="value", number=2, label=1)
                _set_type(value, kind, package)
                kind = f"{name}.{entry.name}"
            _set_type(added, kind, package)
            if choice:
                if not message.oneof_decl:
                    message.oneof_decl.add(name="choice")
                added.oneof_index = 0
    return made


def _set_type(field: descriptor_pb2.FieldDescriptorProto, kind: str, package: str) -> None:
    scalar = f"TYPE_{kind.upper()}"
    if scalar in SCALARS:
        field.type = _Field.Type.Value(scalar)
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"


def _classes() -> dict[str, Any]:
    """Return the class of each message by its name."""
    pool = descriptor_pool.DescriptorPool()
    found: dict[str, Any] = {}
    for package, table in ((PACKAGE, TABLE), (HEALTH_PACKAGE, HEALTH_TABLE)):
        file = _file(package, table)
        pool.AddSerializedFile(file.SerializeToString())
        for message in file.message_type:
            descriptor = pool.FindMessageTypeByName(f"{package}.{message.name}")
            found[message.name] = message_factory.GetMessageClass(descriptor)
    return found


MESSAGES: dict[str, Any] = _classes()
"""The classes of messages by name."""
TYPE_NUMBERS = {
    name: number
    for number, name in enumerate(
        ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
         "FP32", "FP64", "STRING", "BF16"), 1)
}  # fmt: skip
"""The numbers of element types in a model's configuration."""
