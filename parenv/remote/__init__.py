"""Workers on other machines: the placement in the main process, the hosts, and the messages between them.

Only the command line and, for a remote placement, ``parenv.crew.launch`` import this package. Its entry point is
``placement``.
"""
