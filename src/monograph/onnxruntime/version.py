"""The version of ONNX Runtime whose API this package follows."""

VERSION = "1.31.1"
package_name = "onnxruntime"
cuda_version = ""
