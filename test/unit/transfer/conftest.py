"""Makes the helpers importable, whatever folder pytest is started in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# Mooncake writes a line to stderr for every connection; errors of peers that a test kills are expected.
os.environ.setdefault("GLOG_minloglevel", "3")
