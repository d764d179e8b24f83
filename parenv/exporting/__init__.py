"""Agents that leave: a policy as a file for ONNX Runtime or ``torch.export``, and such a file as a policy."""

from parenv.exporting.exporter import ExportReport, export
from parenv.exporting.onnx_policy import OnnxPolicy

__all__ = ["ExportReport", "OnnxPolicy", "export"]
