"""CPU kernels of attention, rotary embedding and cache updates."""
