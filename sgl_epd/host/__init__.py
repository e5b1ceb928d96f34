"""A whole host: start workers and router, watch them, and leave nothing behind.

Engine-free. `layout` decides what runs, `supervisor` runs it through a `launcher`, `lifecycle` says when a process is
restarted, `guard` outlives the supervisor and ends whatever it left.
"""
