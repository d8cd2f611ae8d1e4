"""Settings of every test."""

from __future__ import annotations

from hypothesis import settings

# The machines that run the tests are shared: a slow example says nothing about the code.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
