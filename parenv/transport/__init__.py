"""How messages travel between the processes of one machine, and how to wait for them and for other things at once."""
