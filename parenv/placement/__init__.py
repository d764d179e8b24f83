"""Where workers run: in this process, on this machine. A placement launches, carries messages, watches and ends."""
