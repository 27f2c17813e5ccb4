"""Reads reports of NVIDIA Nsight Systems: SQLite exports, Parquet exports, and ``.nsys-rep`` by exporting it."""
