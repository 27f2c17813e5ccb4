"""Makes reports: composes and runs nsys, rescues what it leaves behind, and removes what is private."""
