"""Running an exported policy fast: ONNX read, compiled for one node, together with its encoder and decoder."""
