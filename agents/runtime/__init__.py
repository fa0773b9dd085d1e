"""What an exported policy may consist of, and running it in onnxruntime."""
