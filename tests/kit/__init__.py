"""What tests build with: tiny reports, made-up tools, slow references."""
