"""Every run draws the same examples; nothing depends on how fast the machine is."""

from hypothesis import settings

settings.register_profile("equipoise", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("equipoise")
