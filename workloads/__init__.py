"""Runnable, NVTX-annotated PyTorch programs. Run them by path; nothing of nsysprof imports them."""
