"""Attribute GPU ops to their owners (GPU op → launch → owner): range paths, globs, projections, and the check against
nsys.
"""
