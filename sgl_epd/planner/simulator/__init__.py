"""A cluster in virtual time: the router's policies, the workers' schedulers and block managers, and a cost model."""

from __future__ import annotations

from sgl_epd.planner.simulator.plan import ClusterPlan, WorkerPlan, parse_cluster
from sgl_epd.planner.simulator.simulate import Hardware, Simulation, fixed_cost

__all__ = ["ClusterPlan", "Hardware", "Simulation", "WorkerPlan", "fixed_cost", "parse_cluster"]
