"""Features that older versions of torch lack: their tests are skipped there, as the docs say."""

import pytest
import torch

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

compiles = pytest.mark.skipif(
    _VERSION < (2, 11), reason="torch.compile traces weightings in one graph from torch 2.11 on"
)
maps_states = pytest.mark.skipif(_VERSION < (2, 8), reason="vmap takes states within states from torch 2.8 on")
shards_on_cpu = pytest.mark.skipif(_VERSION < (2, 7), reason="FSDP2 runs on a CPU from torch 2.7 on")
