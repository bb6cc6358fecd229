"""Test settings: fixed Hypothesis examples, and no dependence on the machine's speed or network."""

import os
import sys

from hypothesis import settings

if sys.platform == "linux":  # else gloo looks for the machine's own name, and may wait for an answer
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

settings.register_profile("equipoise", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("equipoise")
