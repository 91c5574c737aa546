#include "engine/cuda/kernels/pixels.cu"
