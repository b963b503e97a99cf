"""GPU kernels of attention, rotary embedding and the decoding step."""
