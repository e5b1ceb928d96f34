"""PEP 517 backend: setuptools, after a look at the environment that the package is about to enter."""

from __future__ import annotations

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - every other hook is setuptools' own
from target_environment import refuse_beside_real_kernels


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    refuse_beside_real_kernels()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    refuse_beside_real_kernels()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
