"""Export of policies to files for ONNX Runtime or ``torch.export``, and policies from such files."""

from parenv.exporting.exporter import ExportReport, export
from parenv.exporting.onnx_policy import OnnxPolicy

__all__ = ["ExportReport", "OnnxPolicy", "export"]
