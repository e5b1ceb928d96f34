"""Which work a worker does next. Plain objects that take `now`: the same ones run in workers and in the simulator."""
