"""Tests of the room `why`."""
