"""Read reports of NVIDIA Nsight Systems: SQLite exports, Parquet exports, and ``.nsys-rep`` files, which are exported
first.
"""
