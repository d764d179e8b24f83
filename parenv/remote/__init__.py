"""Many machines: placements whose workers are on hosts, the hosts themselves, and what passes between them.

Nothing else imports this but the command line and, when a placement is wanted, ``parenv.supervision.launch``; the
door is ``joining``.
"""
