"""Host inputs and outputs: pinned staging, uploads, downloads, transfer policy."""
