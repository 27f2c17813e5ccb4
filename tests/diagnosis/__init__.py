"""Tests of what costs the steps of programs time, what to do about it, and what that gains."""
