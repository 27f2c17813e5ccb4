"""Tests of `nsysprof.hotspots`."""
