"""From a torch factory or an ONNX file to a model that may share batches with strangers, or a refusal that says why."""

import os

# OpenMP reads this when torch is loaded, so it stands before any import of torch. Its threads wait for each other in a
# busy loop otherwise: on two cores with other work beside it, 100 sentences one by one took 40 s, and 3 s with this.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
