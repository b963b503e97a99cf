"""Names of ONNX Runtime that Monograph does not have, with the reasons."""

from __future__ import annotations

_SPARSE = "Monograph has no sparse tensors: use dense ones"
_ADAPTERS = "Monograph applies no adapters: merge them into the model"
_PLUGINS = "Monograph loads no execution providers: its targets are `cpu` and `gpu`"
_COMPILER = "`monograph compile` or `Session.save` writes compiled models"
_BUFFERS = "Monograph reads initialisers from the model file"
_STREAMS = "a run uses the current stream of torch"

REASONS = {
    **dict.fromkeys(("SparseTensor", "OrtSparseFormat"), _SPARSE),
    **dict.fromkeys(("AdapterFormat", "LoraAdapter"), _ADAPTERS),
    **dict.fromkeys(
        (
            "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "OrtEpDevice", "OrtHardwareDevice",
            "OrtExecutionProviderDevicePolicy", "OrtHardwareDeviceType", "get_ep_devices",
            "register_execution_provider_library", "unregister_execution_provider_library",
        ),
        _PLUGINS,
    ),
    **dict.fromkeys(
        ("ModelCompiler", "OrtCompileApiFlags", "OrtEpContextData", "OrtEpContextDataBuffer"),
        _COMPILER,
    ),
    "OrtExternalInitializerInfo": _BUFFERS,
    "OrtSyncStream": _STREAMS,
}  # fmt: skip
