"""Rotated digits, learned by clients that are served evenly."""
