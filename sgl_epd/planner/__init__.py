"""How many workers of which role: what a model needs, what its stages cost, what traffic asks for.

`models` reads configs, `memory` says what fits, `cost_model` how long a stage takes, `workload` who asks for what and
when, `metrics` and `goodput` how well that went. No module here starts a worker or looks at a clock.
"""
