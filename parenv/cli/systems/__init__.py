"""The systems that ``parenv bench`` compares: a file for each library, and ``compared``, which picks and measures them.

The files of other libraries import nothing of parenv, so that ``benchmarks/peers`` can use them in virtual environments
that have the library alone. Each of a library of vector envs has ``NAME``, ``PACKAGE``, ``KINDS`` and ``make``.
"""
