"""SGLang's "external model package" that makes it import one model file instead of all 288.

`SGLANG_EXTERNAL_MODEL_PACKAGE` names this package (`launch.py` sets it). SGLang then imports its default models only
when an architecture is asked for that this package does not hold, so nothing is lost when the guess is wrong.
"""
