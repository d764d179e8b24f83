"""Environments that coroutines and threads lease, one session at a time."""

from parenv.sessions.pool import SessionPool as SessionPool
from parenv.sessions.session import Session as Session
from parenv.sessions.session import SyncSession as SyncSession
