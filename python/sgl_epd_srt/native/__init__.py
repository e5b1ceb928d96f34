"""Prefill and decode of the native path: requests that carry references in place of images (`docs/native-path.md`)."""
