"""GPU op → launch → owner: range paths, globs, projections and the check against nsys."""
