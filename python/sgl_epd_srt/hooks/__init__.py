"""Hooks into SGLang, one file each; every file names the upstream symbol it was written for."""
