"""What attention costs: time, memory and rounding errors beside softmax, of the kernels and of whole towers."""
