"""Forecast how much a change would save."""
