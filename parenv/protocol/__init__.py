"""What driver and worker say to each other: messages, when they may be said, and how they become frames.

No I/O happens here. ``messages`` defines the words, ``conversation`` who may say what when, ``data`` the values
that may leave a worker, ``frames`` the bytes.
"""
