"""What a pool yields: containers of arrays.

Pure, and on a floor below the worker side, since workers build the same rollouts for ``postprocess``.
"""
