"""Attribute GPU ops to owners (GPU op → launch → owner): range paths, globs, projections, the check against nsys."""
