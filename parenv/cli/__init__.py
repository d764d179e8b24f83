"""The command ``parenv``, and what it runs as Python functions, such as :func:`parenv.cli.bench.bench`."""
