"""Read reports of NVIDIA Nsight Systems: SQLite and Parquet exports, and ``.nsys-rep`` files through exports."""
