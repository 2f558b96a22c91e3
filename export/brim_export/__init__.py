"""From a torch factory or an ONNX file to a model that may share batches with strangers, or a refusal that says why."""
