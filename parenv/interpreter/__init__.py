"""Workers in another Python interpreter, or in a container on this machine."""
