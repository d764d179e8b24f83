"""ZeroMQ between the processes of one machine, and a wait for messages and other things at once."""
