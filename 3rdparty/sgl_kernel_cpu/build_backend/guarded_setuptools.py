"""PEP 517 backend: setuptools, after a look at the environment that the package is about to enter."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - every other hook is setuptools' own
from target_environment import refuse_beside_real_kernels

Settings = dict[str, str | list[str]]


def build_wheel(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    refuse_beside_real_kernels()
    # setuptools packs whatever an earlier build left in this folder, modules that are gone included.
    shutil.rmtree(Path("build"), ignore_errors=True)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    refuse_beside_real_kernels()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
