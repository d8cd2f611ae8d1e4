"""Noise, schedules, solvers and guidance: numpy only, usable and testable without a model."""
