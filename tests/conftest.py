"""What holds for all tests: no model hub, one thread a model, and no settings from the developer's environment."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
for _name in [name for name in os.environ if name.startswith("MUNIMENT_")]:
    del os.environ[_name]
# A busy machine is slow, and how long an example takes proves nothing.
settings.register_profile("muniment", deadline=None)
settings.load_profile("muniment")
