"""Every case of ONNX's backend suite that Monograph leaves out, with its reason."""

LEFT_OUT: dict[str, str] = {}
