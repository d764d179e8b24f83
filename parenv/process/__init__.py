"""Starting, watching and ending processes on this machine."""
