"""SGL-EPD: encode, prefill and decode on separate worker pools. Engine-free: never imports torch or sglang."""

__version__ = "0.1.0"
