"""The work of a run as one graph over all ranks: what each piece waited for, its replay, its critical path."""

from __future__ import annotations

from stashtrace.analysis.graph.build import build
from stashtrace.analysis.graph.pipeline_graph import PipelineGraph
from stashtrace.analysis.graph.work_graph import EdgeKind, Graph, Replayed, Resource

__all__ = ["EdgeKind", "Graph", "PipelineGraph", "Replayed", "Resource", "build"]
